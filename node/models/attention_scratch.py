"""What the attention of a model holds while a prompt is prefilled, told from config.json.

A fused kernel keeps no scores. Without one there are those of each query and each key, for all
heads of a layer: 16 heads, a chunk of 2,048 tokens and 100,000 keys make 6.5 GB of them.
"""

from dataclasses import dataclass

from node.models.kv_estimate import Config, bytes_of_value, first_count, text_part

FUSED_WIDTHS = frozenset({64, 80, 128})
"""Of keys that are as wide as values: those for which MLX 0.32 has a fused kernel for a chunk on
Metal (`ScaledDotProductAttention::use_fallback`)."""
_ARRAYS = 2
"""Of scores at a time: before the softmax and behind it."""
_LATENT_ARRAYS = 3
"""Those of the rotated part come apart."""
_INDEXED_ARRAYS = 4
"""So do those of the index. Both measured on MLX's CPU backend."""


@dataclass(frozen=True, slots=True)
class AttentionScores:
    """What one layer holds at a time for each pair of a query and a key."""

    bytes_per_pair: int = 0
    """Of all heads together; 0 where there is no attention, or the config does not say."""
    is_fused: bool = True
    """Whether a GPU holds none of it."""


def attention_scores(config: Config) -> AttentionScores:
    """For the model of a config.json."""
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
