"""Tiny random models of every kind of cache, with the tokenizer of `tiny`.

As there, the text is noise that depends on the whole prompt, and rounding decides no token.
"""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map_with_path
from mlx_lm.utils import _get_classes

from tests.mlx.tiny import CONTEXT_TOKENS, VOCAB_SIZE, make_tiny

WINDOW_TOKENS = 32
_WIDTH = 64
_HEAD_WIDTH = 32

_ATTENTION: dict[str, Any] = {
    "hidden_size": _WIDTH,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": _HEAD_WIDTH,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
_EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
}
_DELTA_NET: dict[str, Any] = {
    "num_hidden_layers": 3,
    "full_attention_interval": 3,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "linear_conv_kernel_dim": 4,
    "partial_rotary_factor": 0.5,
}
_WINDOWS: dict[str, Any] = {
    "num_hidden_layers": 3,
    "sliding_window": WINDOW_TOKENS,
    "sliding_window_pattern": 3,
}
_LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 64,
    "q_lora_rank": 32,
    "qk_rope_head_dim": 32,
    "qk_nope_head_dim": 16,
    "v_head_dim": 32,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "first_k_dense_replace": 1,
}

_CONFIGS: dict[str, dict[str, Any]] = {
    "llama": _ATTENTION,
    # Every second layer knows no places of tokens.
    "smollm3": {**_ATTENTION, "no_rope_layer_interval": 2},
    "gemma3_text": {
        **_ATTENTION,
        **_WINDOWS,
        "query_pre_attn_scalar": _HEAD_WIDTH,
        "rope_local_base_freq": 10000.0,
        "rope_global_base_freq": 100000.0,
    },
    "gpt_oss": {
        **_ATTENTION,
        "sliding_window": WINDOW_TOKENS,
        "layer_types": ["sliding_attention", "full_attention"],
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "qwen3_5": {
        **_ATTENTION,
        **_DELTA_NET,
        "rope_parameters": {
            "type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
            "mrope_section": [4, 2, 2],
        },
    },
    "qwen3_next": {
        **_ATTENTION,
        **_DELTA_NET,
        **_EXPERTS,
        "shared_expert_intermediate_size": 48,
    },
    "qwen3_moe": {**_ATTENTION, **_EXPERTS},
    # The last two layers use the keys and values of those before.
    "gemma4_text": {
        **_ATTENTION,
        **_WINDOWS,
        "num_hidden_layers": 4,
        "sliding_window_pattern": 2,
        "num_kv_shared_layers": 2,
        "global_head_dim": 64,
        "hidden_size_per_layer_input": 16,
        "vocab_size_per_layer_input": VOCAB_SIZE,
        "use_double_wide_mlp": False,
        "tie_word_embeddings": True,
    },
    # Each layer has states and KV in one `CacheList`.
    "falcon_h1": {
        **_ATTENTION,
        "mamba_d_ssm": 64,
        "mamba_n_heads": 4,
        "mamba_d_head": 16,
        "mamba_d_state": 16,
        "embedding_multiplier": 1.0,
        "attention_out_multiplier": 1.0,
        "key_multiplier": 1.0,
        "lm_head_multiplier": 1.0,
        "mlp_multipliers": [1.0, 1.0],
        "ssm_in_multiplier": 1.0,
        "ssm_out_multiplier": 1.0,
        "ssm_multipliers": [1.0] * 5,
    },
    "mamba2": {
        "hidden_size": _WIDTH,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_heads": 8,
        "head_dim": 16,
        "state_size": 16,
        "n_groups": 1,
        "conv_kernel": 4,
        "use_bias": False,
        "use_conv_bias": True,
        "layer_norm_epsilon": 1e-5,
        "time_step_limit": [0.0, 100.0],
        "time_step_rank": "auto",
        "tie_word_embeddings": False,
    },
    # These take padding into their states.
    "mamba": {
        "hidden_size": _WIDTH,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "state_size": 16,
        "conv_kernel": 4,
        "use_bias": False,
        "use_conv_bias": True,
        "time_step_rank": 4,
        "tie_word_embeddings": False,
    },
    "rwkv7": {
        "hidden_size": _WIDTH,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "head_dim": _HEAD_WIDTH,
        "norm_eps": 1e-5,
        "a_low_rank_dim": 16,
        "v_low_rank_dim": 16,
        "gate_low_rank_dim": 16,
        "decay_low_rank_dim": 16,
        "tie_word_embeddings": False,
    },
    "nemotron_h": {
        **_ATTENTION,
        "hybrid_override_pattern": ["M", "*", "M", "-"],
        "num_hidden_layers": 4,
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
        "mamba_proj_bias": False,
        "ssm_state_size": 16,
        "conv_kernel": 4,
        "n_groups": 1,
        "attention_bias": False,
        "mlp_bias": False,
        "use_bias": False,
        "use_conv_bias": True,
        "layer_norm_epsilon": 1e-5,
        "time_step_limit": [0.0, 100.0],
    },
    "lfm2": {
        **_ATTENTION,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "layer_types": ["conv", "full_attention", "conv"],
        "num_hidden_layers": 3,
        "norm_eps": 1e-5,
        "conv_bias": False,
        "conv_L_cache": 3,
        "block_dim": _WIDTH,
        "block_multiple_of": 32,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
    },
    "deepseek_v3": {**_ATTENTION, **_LATENT},
    # Two KV caches a layer; one is that of the index that picks what is attended to.
    "deepseek_v32": {
        **_ATTENTION,
        **_LATENT,
        "index_head_dim": 32,
        "index_n_heads": 2,
        "index_topk": 24,
    },
}

KINDS: tuple[str, ...] = tuple(_CONFIGS)
PADDING_BLIND = ("mamba", "rwkv7", "nemotron_h")
"""Kinds that cannot distinguish padding from tokens."""


def make_kind(kind: str, folder: Path, **changes: Any) -> Path:
    """Writes a model of this `model_type` into a new folder; `changes` are of its config.json."""
    make_tiny(folder)
    config = {
        "model_type": kind,
        "vocab_size": VOCAB_SIZE,
        "max_position_embeddings": CONTEXT_TOKENS,
        "eos_token_id": 2,
        "torch_dtype": "float32",
        **_CONFIGS[kind],
        **changes,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    mx.random.seed(11)
    model_class, args_class = _get_classes(config)
    parameters = model_class(args_class.from_dict(config)).parameters()
    embedding = 0.3 if config["tie_word_embeddings"] else 4.0
    drawn = tree_map_with_path(lambda name, array: _weight(name, array, embedding), parameters)
    weights: Any = tree_flatten(drawn)
    mx.save_safetensors(str(folder / "model.safetensors"), dict(weights), {"format": "mlx"})
    return folder


def _weight(name: str, initial: mx.array, embedding: float) -> mx.array:
    """Matrices of variance 1 / fan-in, or more where attention shall be sharp and logits far
    apart. Vectors stay as they are, but for those below."""
    if name.endswith("A_log"):
        # States that fade within a few tokens would not need to be restored.
        return mx.log(mx.random.uniform(0.02, 0.2, initial.shape))
    if name.endswith("sinks"):
        return mx.random.normal(initial.shape)
    if initial.ndim < 2:
        return initial
    fan_in = initial.shape[1] if "conv" in name else initial.shape[-1]
    drawn: mx.array = mx.random.normal(initial.shape) * (_gain(name, embedding) / fan_in**0.5)
    return drawn


def _gain(name: str, embedding: float) -> float:
    if name.endswith("embed_tokens.weight"):
        # Where it is the head too, a strong one would only ever repeat the last token.
        return embedding
    if "lm_head" in name:
        return 3.0
    return 2.0 if "attn" in name or "attention" in name else 1.0
