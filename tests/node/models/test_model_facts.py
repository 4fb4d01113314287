from typing import Any

import pytest

from node.models.model_facts import ModelFacts, model_facts

GIB = 2**30


@pytest.mark.parametrize(
    ("config", "facts"),
    [
        ({}, ModelFacts("", GIB // 2, "")),
        (
            {"model_type": "llama", "torch_dtype": "bfloat16"},
            ModelFacts("llama", GIB // 2, "bfloat16"),
        ),
        ({"model_type": "x", "dtype": "float32"}, ModelFacts("x", GIB // 4, "float32")),
        (
            {"model_type": "qwen3", "quantization": {"bits": 4, "group_size": 64}},
            ModelFacts("qwen3", round(GIB / 0.5625), "4-bit"),
        ),
        (
            {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}},
            ModelFacts("gemma3_text", GIB // 2, ""),
        ),
        (
            {"model_type": 5, "quantization": {"bits": "4"}, "text_config": 7},
            ModelFacts("", GIB // 2, ""),
        ),
        ({"model_type": "a\nb", "quantization": {"bits": 99}}, ModelFacts("", GIB // 2, "")),
    ],
)
def test_facts_come_from_the_configuration_and_the_size(
    config: dict[str, Any], facts: ModelFacts
) -> None:
    assert model_facts(config, GIB) == facts
