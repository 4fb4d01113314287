"""Memory that the attention of a model needs while it prefills a prompt, from config.json.

A fused kernel stores no scores. Without one there is a score for each query and key in each head of
a layer: 16 heads, a chunk of 2,048 tokens and 100,000 keys make 6.5 GB of them.
"""

from dataclasses import dataclass

from node.models.kv_estimate import Config, bytes_of_value, first_count, text_part

FUSED_WIDTHS = frozenset({64, 80, 128})
"""Head widths for which MLX 0.32 has a fused kernel for a chunk on Metal, if keys are as wide as
values (`ScaledDotProductAttention::use_fallback`)."""
_ARRAYS = 2
"""Arrays of scores at a time: before and after the softmax."""
_LATENT_ARRAYS = 3
"""Latent attention has an array of its own for the rotated part."""
_INDEXED_ARRAYS = 4
"""An index adds one more. Both were measured on MLX's CPU backend."""


@dataclass(frozen=True, slots=True)
class AttentionScores:
    """Memory of one layer for each pair of a query and a key."""

    bytes_per_pair: int = 0
    """Bytes of all heads together; 0 if there is no attention, or the config does not say."""
    is_fused: bool = True
    """True if a GPU stores no scores."""


def attention_scores(config: Config) -> AttentionScores:
    """The scores of the model of a config.json."""
    _, text = text_part(config)
    heads = first_count(("num_attention_heads", "n_head"), text)
    if heads is None:
        return AttentionScores()
    arrays = _ARRAYS
    if first_count(("kv_lora_rank",), text) is not None:
        has_index = first_count(("index_n_heads",), text) is not None
        arrays = _INDEXED_ARRAYS if has_index else _LATENT_ARRAYS
    is_fused = arrays == _ARRAYS and not text.get("attn_logit_softcapping")
    return AttentionScores(
        heads * arrays * bytes_of_value(text), is_fused and _has_fused_widths(text, heads)
    )


def _has_fused_widths(text: Config, heads: int) -> bool:
    hidden = first_count(("hidden_size", "n_embd"), text) or 0
    width = first_count(("head_dim",), text) or hidden // heads
    value_width = first_count(("v_head_dim",), text) or width
    global_width = first_count(("global_head_dim",), text) or width
    return width == value_width and {width, global_width} <= FUSED_WIDTHS
