"""Tests the estimate of attention's allocations while a prompt is prefilled, from configs as they
are published."""

from typing import Any

import pytest

from node.models.attention_scratch import AttentionScores, attention_scores

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "torch_dtype": "bfloat16",
}


@pytest.mark.parametrize(
    ("config", "bytes_per_pair", "is_fused"),
    [
        pytest.param(LLAMA, 32 * 4, True, id="heads of 128"),
        pytest.param(LLAMA | {"torch_dtype": "float32"}, 32 * 8, True, id="32 bits"),
        pytest.param(LLAMA | {"head_dim": 256}, 32 * 4, False, id="wide heads"),
        pytest.param(LLAMA | {"head_dim": 96}, 32 * 4, False, id="odd heads"),
        pytest.param(LLAMA | {"v_head_dim": 64}, 32 * 4, False, id="other values"),
        pytest.param(LLAMA | {"attn_logit_softcapping": 50.0}, 32 * 4, False, id="capped"),
        pytest.param({"model_type": "gemma3"}, 8 * 4, False, id="gemma3 leaves its heads out"),
        pytest.param(
            {"model_type": "gemma4", "head_dim": 128, "global_head_dim": 512},
            8 * 4,
            False,
            id="wide heads in some layers",
        ),
        pytest.param(
            {"model_type": "qwen3_5", "text_config": LLAMA | {"head_dim": 256}},
            32 * 4,
            False,
            id="text in a part of its own",
        ),
        pytest.param(
            LLAMA | {"kv_lora_rank": 512, "qk_rope_head_dim": 64}, 32 * 6, False, id="latent"
        ),
        pytest.param(
            LLAMA | {"kv_lora_rank": 512, "index_n_heads": 64}, 32 * 8, False, id="with an index"
        ),
        pytest.param({"model_type": "mamba", "hidden_size": 768}, 0, True, id="no attention"),
    ],
)
def test_scores_of_a_layer(config: dict[str, Any], bytes_per_pair: int, is_fused: bool) -> None:
    assert attention_scores(config) == AttentionScores(bytes_per_pair, is_fused)
