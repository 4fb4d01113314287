"""Bytes of KV for each family, from its config alone."""

from typing import Any

import pytest

from node.kv_estimate import KvEstimate, estimate_kv, first_count

BASE: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_size": 64,
    "torch_dtype": "bfloat16",
}
LAYER = 2 * 2 * 16 * 2
"""Bytes for one token in one of its layers."""
FULL = "full_attention"
SLIDING = "sliding_attention"
MIXED = [SLIDING, FULL, SLIDING, SLIDING]
LATENT = {
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
}
GDN = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
}
GDN_STATE = 4 * 16 * 8 * 4 + 4 * (4 * 8 + 2 * 2 * 16) * 2


def of(model_type: str, **config: Any) -> tuple[int, int]:
    estimate = estimate_kv(BASE | {"model_type": model_type} | config)
    return estimate.bytes_per_token, estimate.bytes_per_row


def test_full_attention_grows_in_every_layer() -> None:
    assert of("llama") == (4 * LAYER, 0)
    assert of("qwen3", torch_dtype=None, dtype="float32") == (4 * LAYER * 2, 0)
    assert of("llama", head_dim=None) == (4 * 2 * 2 * 8 * 2, 0)
    assert of("llama", num_key_value_heads=None) == (4 * 2 * 8 * 16 * 2, 0)
    assert of("openelm", num_key_value_heads=[1, 1, 2, 4]) == (8 * 2 * 16 * 2, 0)


@pytest.mark.parametrize("model_type", ["llama", "gpt_oss", "olmo3", "exaone_moe", "ministral3"])
def test_a_sliding_window_stops_growing(model_type: str) -> None:
    found = of(model_type, layer_types=MIXED, sliding_window=100)
    assert found == (LAYER, 3 * 100 * LAYER)


@pytest.mark.parametrize("model_type", ["gemma2", "qwen2", "phi3", "something_new"])
def test_a_window_that_mlx_lm_keeps_whole_counts_as_full(model_type: str) -> None:
    assert of(model_type, layer_types=MIXED, sliding_window=100) == (4 * LAYER, 0)


@pytest.mark.parametrize(
    "config",
    [
        {"sliding_window": 100},
        {"layer_types": MIXED},
        {"layer_types": MIXED[:3], "sliding_window": 100},
    ],
)
def test_a_window_of_no_known_layer_or_width_counts_as_full(config: dict[str, Any]) -> None:
    assert of("llama", **config) == (4 * LAYER, 0)


@pytest.mark.parametrize(
    ("model_type", "pattern"),
    [("gemma3_text", 2), ("cohere2", 2), ("exaone4", "LG"), ("gpt_oss", None)],
)
def test_a_pattern_says_which_layers_slide(model_type: str, pattern: Any) -> None:
    found = of(model_type, sliding_window=100, sliding_window_pattern=pattern)
    assert found == (2 * LAYER, 2 * 100 * LAYER)


def test_a_gemma3_that_leaves_out_its_shape_has_that_of_its_family() -> None:
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34}
    estimate = estimate_kv({"model_type": "gemma3", "torch_dtype": "bfloat16", "text_config": text})
    layer_bytes = 2 * 4 * 256 * 2
    assert estimate == KvEstimate(5 * layer_bytes, 29 * 512 * layer_bytes)


def test_layers_that_share_kv_keep_none() -> None:
    shared = {"layer_types": MIXED, "sliding_window": 100, "num_kv_shared_layers": 2}
    assert of("gemma3n", **shared) == (LAYER, 100 * LAYER)
    wide = 2 * 1 * 64 * 2
    gemma4 = shared | {"global_head_dim": 64, "num_global_key_value_heads": 1}
    assert of("gemma4_text", **gemma4, attention_k_eq_v=True) == (wide, 100 * LAYER)
    assert of("gemma4_unified", **gemma4) == (2 * wide, 100 * LAYER)


@pytest.mark.parametrize(
    ("model_type", "config"),
    [
        ("qwen3_5", {"full_attention_interval": 2}),
        ("qwen3_next", {"full_attention_interval": 2}),
        ("qwen3_next", {"layer_types": ["linear_attention", FULL] * 2}),
        ("olmo_hybrid", {"layer_types": ["linear_attention", FULL] * 2}),
        ("kimi_linear", {"linear_attn_config": {"full_attn_layers": [2, 4]}}),
        ("jamba", {"attn_layer_period": 2, "attn_layer_offset": 1}),
        ("nemotron_h", {"hybrid_override_pattern": "M*M*"}),
    ],
)
def test_recurrent_layers_do_not_grow(model_type: str, config: dict[str, Any]) -> None:
    assert of(model_type, **GDN, **config) == (2 * LAYER, 2 * GDN_STATE)


def test_a_hybrid_in_a_vision_config_is_read_from_its_text_part() -> None:
    text = BASE | GDN | {"model_type": "qwen3_5_text"}
    found = estimate_kv({"model_type": "qwen3_5", "vision_config": {}, "text_config": text})
    assert found == KvEstimate(LAYER, 3 * GDN_STATE)


def test_attention_and_state_may_stand_side_by_side() -> None:
    mamba = {"mamba_n_heads": 2, "mamba_d_head": 8, "mamba_d_state": 16, "mamba_n_groups": 1}
    assert of("falcon_h1", **mamba) == (4 * LAYER, 4 * 2 * 8 * 16 * 4)


def test_convolutions_and_the_first_mamba_have_small_states() -> None:
    kinds = ["conv", FULL, "conv", FULL]
    assert of("lfm2", layer_types=kinds, conv_L_cache=3) == (2 * LAYER, 2 * 3 * 64 * 2)
    assert of("lfm2", full_attn_idxs=[1, 3], conv_L_cache=3) == (2 * LAYER, 2 * 3 * 64 * 2)
    mamba = {"num_hidden_layers": 4, "hidden_size": 64, "state_size": 16, "conv_kernel": 4}
    state = 2 * 64 * (16 * 4 + 4 * 2)
    assert estimate_kv({"model_type": "mamba"} | mamba) == KvEstimate(0, 4 * state)


def test_latent_attention_counts_what_is_kept() -> None:
    assert of("deepseek_v3", **LATENT) == (4 * (32 + 8) * 2, 0)
    assert of("deepseek_v2", **LATENT) == (4 * 8 * (16 + 8 + 12) * 2, 0)
    assert of("longcat_flash", **LATENT) == (4 * 2 * (32 + 8) * 2, 0)
    assert of("deepseek_v32", **LATENT, index_head_dim=4) == (4 * (32 + 8 + 8) * 2, 0)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"num_hidden_layers": "many", "num_attention_heads": 4},
        {"num_hidden_layers": 2},
        {"num_hidden_layers": 10**12, "num_attention_heads": 4, "hidden_size": 8},
        {"num_hidden_layers": True, "num_attention_heads": True},
    ],
)
def test_a_config_that_does_not_say_gives_nothing(config: dict[str, Any]) -> None:
    assert estimate_kv(config) == KvEstimate(0, 0)


@pytest.mark.parametrize("value", ["x", [], [[]], {"a": 1}, -1, 1.5, True, [None], 3])
def test_values_of_any_kind_are_no_failure(value: Any) -> None:
    keys = [
        *(BASE | LATENT | GDN),
        "layer_types",
        "sliding_window",
        "sliding_window_pattern",
        "hybrid_override_pattern",
        "linear_attn_config",
        "full_attn_idxs",
        "attn_layer_period",
        "attn_layer_offset",
        "num_kv_shared_layers",
        "global_head_dim",
        "text_config",
    ]
    for key in keys:
        for model_type in ("gemma4", "gemma3", "exaone4", "deepseek_v3"):
            estimate = estimate_kv(BASE | {"model_type": model_type, key: value})
            assert estimate.bytes_per_token >= 0
    assert estimate_kv(dict.fromkeys(keys, value)).bytes_per_row >= 0


def test_a_count_is_a_positive_whole_number() -> None:
    config = {"a": 0, "b": True, "c": "7", "d": [1, 5, None], "e": 3}
    assert first_count(("a", "b", "c", "d", "e"), config) == 5
    assert first_count(("x", "e"), {}, config) == 3
    assert first_count(("a", "b", "c"), config) is None
