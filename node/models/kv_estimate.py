"""Estimates the KV memory of one row from config.json, before the model is loaded.

Layers differ: full attention grows with each token; a sliding window stops growing when it is full;
a recurrent state never grows; some layers share the KV of another. The estimate follows mlx_lm's
implementation of a family, not the family's paper. A config that is not understood counts as full
attention in all layers, an upper estimate.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from node.protocol.bounds import MOST

Config = Mapping[str, Any]
CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")


class ImpossibleNumber(ValueError):
    """A config has a number that no model can have."""


class LayerKind(Enum):
    FULL = "full"
    WINDOW = "window"
    STATE = "state"
    BOTH = "both"
    """Full attention and a recurrent state side by side."""
    NONE = "none"
    """No attention, or the KV of another layer."""


@dataclass(frozen=True, slots=True)
class KvEstimate:
    """KV memory of one row: `bytes_per_token` for each token, plus `bytes_per_row` for full windows
    and for states. 0 and 0 if the config does not say."""

    bytes_per_token: int
    bytes_per_row: int


_ROTATES = frozenset(
    {
        "llama",
        "mistral",
        "ministral3",
        "mistral3",
        "gpt_oss",
        "olmo3",
        "afmoe",
        "laguna",
        "exaone_moe",
        "gemma3n",
        "gemma4",
        "mellum",
        "muse_spark",
        "muse_glimmer",
        "spark2_5",
        "step3p5",
    }
)
"""Families whose sliding layers of `layer_types` have a rotating window in mlx_lm."""

_LATENT = frozenset(
    {
        "deepseek_v3",
        "kimi_k2",
        "kimi_k25",
        "kimi_vl",
        "kimi_k3",
        "kimi_linear",
        "joyai_llm_flash",
        "glm4_moe_lite",
        "longcat_flash",
        "mistral4",
        "bailing_hybrid",
        "bailing_moe_v3",
        "deepseek_v32",
        "glm_moe_dsa",
    }
)
"""Families with latent attention that store the latents; others unpack them first."""

_ATTENTIONS = {"longcat_flash": 2}
"""Attentions in one layer; 1 for families that are missing here."""

_GEMMA4 = {
    "num_hidden_layers": 35,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "global_head_dim": 512,
    "num_kv_shared_layers": 20,
    "sliding_window": 512,
    "sliding_window_pattern": 5,
}
_DEFAULTS: Mapping[str, Config] = {
    "gemma3": {
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "sliding_window": 512,
        "sliding_window_pattern": 6,
    },
    "gemma4": _GEMMA4,
    "gemma4_unified": _GEMMA4,
    "cohere2": {"sliding_window": 4096, "sliding_window_pattern": 4},
    "gpt_oss": {"head_dim": 64, "sliding_window": 128},
    "qwen3_5": {"full_attention_interval": 4},
    "qwen3_5_moe": {"full_attention_interval": 4},
    "deepseek_v32": {"index_head_dim": 128},
    "glm_moe_dsa": {"index_head_dim": 128},
}
"""Values that configs of these families leave out."""

_BY_NAME = {
    "sliding_attention": LayerKind.WINDOW,
    "linear_attention": LayerKind.STATE,
    "mamba": LayerKind.STATE,
    "conv": LayerKind.STATE,
    "recurrent": LayerKind.STATE,
}
_STATE_HEADS = ("linear_num_value_heads", "mamba_n_heads", "mamba_num_heads", "num_heads")
_STATE_KEYS = ("linear_key_head_dim", "mamba_d_state", "ssm_state_size", "state_size")
_STATE_VALUES = ("linear_value_head_dim", "mamba_d_head", "mamba_head_dim", "head_dim")
_STATE_VALUE_BYTES = 4
MOST_LAYERS = 1000
MOST_WIDTH = 2**24
MOST_TOKENS = 2**40
_MOST = {
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_kv_shared_layers"), MOST_LAYERS),
    **dict.fromkeys(
        ("sliding_window", "sliding_window_size", "attention_window_size", *CONTEXT_KEYS),
        MOST_TOKENS,
    ),
}
"""Largest values in a config; `MOST_WIDTH` for all other numbers that are used."""
_CONVOLUTIONS = ("linear_conv_kernel_dim", "mamba_d_conv", "conv_kernel", "conv_L_cache")


def estimate_kv(config: Config) -> KvEstimate:
    """The estimate for the model of a config.json. Raises `ImpossibleNumber`."""
    family, text = text_part(config)
    layers = first_count(("num_hidden_layers", "n_layer"), text) or 0
    value_bytes = bytes_of_value(text)
    per_token, per_row = 0, 0
    for index, kind in enumerate(_kinds(family, text, layers)):
        values = _values_per_token(family, text, index, kind)
        if kind in (LayerKind.FULL, LayerKind.BOTH):
            per_token += values * value_bytes
        elif kind is LayerKind.WINDOW:
            per_row += values * value_bytes * _window(text)
        if kind in (LayerKind.STATE, LayerKind.BOTH):
            per_row += _state_bytes(text, value_bytes)
    if max(per_token, per_row) > MOST:
        raise ImpossibleNumber(f"its layers would keep {max(per_token, per_row):.3g} bytes of KV")
    return KvEstimate(per_token, per_row)


def text_part(config: Config) -> tuple[str, Config]:
    """The family of a model's text part, and its config completed by the family's defaults."""
    nested = config.get("text_config")
    given = {**config, **nested} if isinstance(nested, dict) else config
    family = str(given.get("model_type") or "").removesuffix("_text")
    return family, {
        **_DEFAULTS.get(family, {}),
        **{k: v for k, v in given.items() if v is not None},
    }


def bytes_of_value(text: Config) -> int:
    """Bytes of a number in the type in which the model computes."""
    return 4 if (text.get("torch_dtype") or text.get("dtype")) == "float32" else 2


def first_count(keys: tuple[str, ...], *configs: Config) -> int | None:
    """The first positive whole number under one of `keys`; the largest of a list with one for each
    layer. Raises `ImpossibleNumber`."""
    counts = (count(config, key) for config in configs for key in keys)
    return next((each for each in counts if each is not None), None)


def count(config: Config, key: str) -> int | None:
    """The positive whole number under the key, or None. All numbers that are used come from here.
    Raises `ImpossibleNumber` if it is larger than any model's."""
    value = config.get(key)
    if isinstance(value, list):
        if len(value) > MOST_LAYERS:
            raise ImpossibleNumber(f"its {key} is a list of {len(value)}")
        value = max((item for item in value if isinstance(item, int)), default=None)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        return None
    if value > (most := _MOST.get(key, MOST_WIDTH)):
        raise ImpossibleNumber(f"its {key} is more than {most:,}")
    return value


def _window(text: Config) -> int:
    return (
        first_count(("sliding_window", "sliding_window_size", "attention_window_size"), text) or 0
    )


def _kinds(family: str, text: Config, layers: int) -> list[LayerKind]:
    """The kind of each layer."""
    if family == "falcon_h1":
        return [LayerKind.BOTH] * layers
    if count(text, "num_attention_heads") is None and count(text, "n_head") is None:
        return [LayerKind.STATE if _state_bytes(text, 2) else LayerKind.NONE] * layers
    kinds = _listed_kinds(family, text, layers) or _periodic_kinds(family, text, layers)
    # A window of unknown width counts as full attention.
    if LayerKind.WINDOW in kinds and not _window(text):
        kinds = [LayerKind.FULL if kind is LayerKind.WINDOW else kind for kind in kinds]
    shared = count(text, "num_kv_shared_layers") or 0
    if family in ("gemma3n", "gemma4", "gemma4_unified") and shared < layers:
        kinds[layers - shared :] = [LayerKind.NONE] * shared
    return kinds


def _listed_kinds(family: str, text: Config, layers: int) -> list[LayerKind] | None:
    """The kinds if the config lists them layer by layer."""
    pattern = text.get("hybrid_override_pattern")
    if isinstance(pattern, str) and len(pattern) == layers:
        by_letter = {"*": LayerKind.FULL, "M": LayerKind.STATE}
        return [by_letter.get(letter, LayerKind.NONE) for letter in pattern]
    linear = text.get("linear_attn_config")
    if isinstance(linear, dict) and isinstance(linear.get("full_attn_layers"), list):
        full = _whole_numbers(linear["full_attn_layers"])
        return [LayerKind.FULL if i + 1 in full else LayerKind.STATE for i in range(layers)]
    full_indices = text.get("full_attn_idxs")
    if isinstance(full_indices, list):
        indices = _whole_numbers(full_indices)
        return [LayerKind.FULL if i in indices else LayerKind.STATE for i in range(layers)]
    names = text.get("layer_types")
    # mlx_lm uses only the pattern of these two families.
    if isinstance(names, list) and len(names) == layers and family not in ("gemma3", "cohere2"):
        kinds = [_BY_NAME.get(str(name), LayerKind.FULL) for name in names]
        rotates = family.removesuffix("_unified") in _ROTATES
        return [LayerKind.FULL if k is LayerKind.WINDOW and not rotates else k for k in kinds]
    return None


def _whole_numbers(values: list[Any]) -> frozenset[int]:
    return frozenset(each for each in values if isinstance(each, int))


def _periodic_kinds(family: str, text: Config, layers: int) -> list[LayerKind]:
    """The kinds if a number says that every so many layers have full attention."""
    pattern = text.get("sliding_window_pattern")
    if family == "exaone4" and isinstance(pattern, str) and pattern:
        return [
            LayerKind.WINDOW if pattern[i % len(pattern)] == "L" else LayerKind.FULL
            for i in range(layers)
        ]
    if family == "gpt_oss":
        return [LayerKind.FULL if i % 2 else LayerKind.WINDOW for i in range(layers)]
    if family == "step3p5":
        return [LayerKind.FULL] * layers
    for key, other, families in (
        ("full_attention_interval", LayerKind.STATE, None),
        ("sliding_window_pattern", LayerKind.WINDOW, ("gemma3", "gemma4", "cohere2")),
    ):
        period = count(text, key)
        if period and (families is None or family.removesuffix("_unified") in families):
            return [LayerKind.FULL if (i + 1) % period == 0 else other for i in range(layers)]
    period, offset = count(text, "attn_layer_period"), text.get("attn_layer_offset")
    if period and isinstance(offset, int):
        return [LayerKind.FULL if i % period == offset else LayerKind.STATE for i in range(layers)]
    return [LayerKind.FULL] * layers


def _values_per_token(family: str, text: Config, index: int, kind: LayerKind) -> int:
    """Numbers that an attention layer stores for one token."""
    heads = first_count(("num_attention_heads", "n_head"), text)
    if heads is None or kind in (LayerKind.STATE, LayerKind.NONE):
        return 0
    rank = count(text, "kv_lora_rank")
    if rank is not None:
        rope_dim = count(text, "qk_rope_head_dim") or 0
        if family in _LATENT:
            indexer = 2 * (count(text, "index_head_dim") or 0)
            return (rank + rope_dim) * _ATTENTIONS.get(family, 1) + indexer
        key_dim = (count(text, "qk_nope_head_dim") or 0) + rope_dim
        return heads * (key_dim + (count(text, "v_head_dim") or 0))
    kv_heads = _kv_heads(text, index)
    hidden = first_count(("hidden_size", "n_embd"), text) or 0
    head_dim = count(text, "head_dim") or hidden // heads
    global_dim = count(text, "global_head_dim")
    if kind is LayerKind.FULL and global_dim:
        head_dim = global_dim
        if text.get("attention_k_eq_v"):
            kv_heads = count(text, "num_global_key_value_heads") or kv_heads
    return 2 * (kv_heads or heads) * head_dim


def _kv_heads(text: Config, index: int) -> int | None:
    """KV heads of one layer, also if the config lists them by layer."""
    listed = text.get("num_key_value_heads")
    if isinstance(listed, list) and index < len(listed):
        return count({"num_key_value_heads": listed[index]}, "num_key_value_heads")
    return count(text, "num_key_value_heads")


def _state_bytes(text: Config, value_bytes: int) -> int:
    """Size of one layer's recurrent state and of the input tail that its convolution needs."""
    kernel = first_count(_CONVOLUTIONS, text) or 0
    hidden = count(text, "hidden_size") or 0
    key_dim = first_count(_STATE_KEYS, text)
    if key_dim is None:
        return kernel * hidden * value_bytes
    heads = first_count(_STATE_HEADS, text)
    if heads is None:
        # In the first Mamba each channel has one state.
        channels = (count(text, "mamba_expand") or 2) * hidden
        return channels * (key_dim * _STATE_VALUE_BYTES + kernel * value_bytes)
    value_dim = first_count(_STATE_VALUES, text) or 0
    groups = first_count(("linear_num_key_heads", "mamba_n_groups", "n_groups"), text) or heads
    tail = kernel * (heads * value_dim + 2 * groups * key_dim)
    return heads * key_dim * value_dim * _STATE_VALUE_BYTES + tail * value_bytes
