"""Bytes of KV for each family, from its config alone."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.models.attention_scratch import attention_scores
from node.models.kv_estimate import (
    CONTEXT_KEYS,
    ImpossibleNumber,
    KvEstimate,
    estimate_kv,
    first_count,
)
from node.protocol.bounds import MOST
from tests.fakes import processor_time

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
def test_a_pattern_determines_which_layers_slide(model_type: str, pattern: Any) -> None:
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
        {"num_hidden_layers": True, "num_attention_heads": True},
    ],
)
def test_a_config_without_the_numbers_gives_nothing(config: dict[str, Any]) -> None:
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


NUMBERS = [
    *("num_hidden_layers", "n_layer", "num_attention_heads", "n_head", "num_key_value_heads"),
    *("hidden_size", "n_embd", "head_dim", "global_head_dim", "kv_lora_rank", "qk_rope_head_dim"),
    *("qk_nope_head_dim", "v_head_dim", "index_head_dim", "sliding_window", "state_size"),
    *("conv_kernel", "mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_expand"),
    *("num_kv_shared_layers", "full_attention_interval", "attn_layer_period", "attn_layer_offset"),
    *("max_position_embeddings", "layer_types", "full_attn_idxs", "linear_attn_config"),
]
WHOLE = st.integers(-(10**31), 10**31) | st.integers(1, 2000) | st.integers(2**23, 2**25)
VALUES = st.one_of(
    WHOLE,
    st.floats(),
    st.none(),
    st.booleans(),
    st.text(max_size=2),
    st.lists(WHOLE | st.floats() | st.text(max_size=2) | st.lists(st.none()), max_size=4),
    st.dictionaries(st.sampled_from(["full_attn_layers"]), st.lists(WHOLE | st.lists(WHOLE))),
)
CONFIGS = st.dictionaries(st.sampled_from(NUMBERS), VALUES)
FAMILIES = st.sampled_from(["llama", "gemma3", "gemma4", "deepseek_v3", "falcon_h1", "exaone4", ""])


@given(CONFIGS, CONFIGS | st.none(), FAMILIES)
def test_whatever_a_config_contains_the_estimate_is_a_number_of_bytes_or_a_refusal(
    config: dict[str, Any], text: dict[str, Any] | None, family: str
) -> None:
    whole = config | {"model_type": family} | ({} if text is None else {"text_config": text})
    try:
        with processor_time(1.0):
            estimate = estimate_kv(whole)
            scores = attention_scores(whole)
            context = first_count(CONTEXT_KEYS, whole)
    except ImpossibleNumber:
        return
    for figure in (estimate.bytes_per_token, estimate.bytes_per_row, scores.bytes_per_pair):
        assert type(figure) is int and 0 <= figure <= MOST
    assert context is None or 0 < context <= MOST


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("num_hidden_layers", 10**9, "its num_hidden_layers is more than 1,000"),
        ("num_attention_heads", 10**30, "its num_attention_heads is more than 16,777,216"),
        ("num_attention_heads", [8] * 1001, "its num_attention_heads is a list of 1001"),
        ("head_dim", 2**25, "its head_dim is more than"),
        ("sliding_window", 2**41, "its sliding_window is more than"),
    ],
)
def test_what_is_true_of_no_model_is_refused_by_its_name(key: str, value: Any, words: str) -> None:
    config = {**BASE, "model_type": "llama", "layer_types": ["sliding_attention"] * 4}
    with pytest.raises(ImpossibleNumber) as refused:
        estimate_kv(config | {"sliding_window": 100} | {key: value})
    assert words in str(refused.value)


def test_numbers_that_are_each_possible_may_be_none_together() -> None:
    wide = {"num_hidden_layers": 1000, "num_attention_heads": 2**24, "head_dim": 2**24}
    with pytest.raises(ImpossibleNumber, match="bytes of KV"):
        estimate_kv(wide)
