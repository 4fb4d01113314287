import json

import msgspec
import pytest

from node.protocol.messages import ModelState, ModelStatus
from node.protocol.models import ModelCard
from node.protocol.ollama.models import (
    OllamaModel,
    ps_body,
    show_body,
    tagged,
    tags_body,
    untagged,
)

STATUS = ModelStatus(
    "org/m",
    ModelState.READY,
    weight_bytes=10,
    disk_bytes=11,
    memory_bytes=12,
    family="qwen3",
    parameters=4_022_468_096,
    quantization="4-bit",
    keep_alive_s=300.0,
    idle_s=60.0,
)
CARD = ModelCard("org/m", 4096, ("completion", "tools", "reasoning"))


def model(**fields: object) -> OllamaModel:
    return OllamaModel(CARD, (msgspec.structs.replace(STATUS, **fields),))


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        ("m", {"m"}, "m"),
        ("m:latest", {"m"}, "m"),
        ("m", {"m:latest"}, "m:latest"),
        ("m:latest", {"m:latest", "m"}, "m:latest"),
        ("m:4b", {"m"}, "m:4b"),
        ("x:latest", {"m"}, "x:latest"),
    ],
)
def test_a_name_is_known_with_and_without_its_tag(name: str, known: set[str], meant: str) -> None:
    assert untagged(name, known.__contains__) == meant
    assert untagged(tagged(meant), known.__contains__) in (meant, tagged(meant))


def test_a_list_has_tags_sizes_and_details() -> None:
    (listed,) = json.loads(tags_body([model()], 0.0))["models"]
    assert listed.pop("digest")
    assert listed == {
        "name": "org/m:latest",
        "model": "org/m:latest",
        "modified_at": "1970-01-01T00:00:00.000000Z",
        "size": 11,
        "details": {
            "parent_model": "",
            "format": "safetensors",
            "family": "qwen3",
            "families": ["qwen3"],
            "parameter_size": "4.022B",
            "quantization_level": "4-bit",
        },
    }


def test_only_loaded_models_are_running_and_say_until_when() -> None:
    (running,) = json.loads(ps_body([model()], 0.0))["models"]
    assert (running["size"], running["size_vram"], running["context_length"]) == (12, 12, 4096)
    assert running["expires_at"] == "1970-01-01T00:04:00.000000Z"
    for never in ({"pinned": True}, {"keep_alive_s": None}):
        (running,) = json.loads(ps_body([model(**never)], 0.0))["models"]
        assert running["expires_at"].startswith("2318")
    for state in (ModelState.ON_DISK, ModelState.LOADING, ModelState.PULLING):
        assert json.loads(ps_body([model(state=state)], 0.0)) == {"models": []}


def test_a_model_is_shown_with_its_context_and_abilities() -> None:
    shown = json.loads(show_body(model(), 0.0))
    assert shown["capabilities"] == ["completion", "tools", "thinking"]
    info = shown["model_info"]
    assert info["general.architecture"] == "qwen3"
    assert info["general.parameter_count"] == 4_022_468_096
    assert info["qwen3.context_length"] == 4096
    # A third-party server reports nothing of its models.
    bare = OllamaModel(ModelCard("gpt"), (ModelStatus("gpt", ModelState.READY, weight_bytes=0),))
    assert json.loads(show_body(bare, 0.0))["capabilities"] == ["completion"]
