"""Checkpoints that hold more than text, in whatever layout, and mixed quantization."""

import gc
import logging
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache

from node.engine.base import LoadError
from node.engine.model.load import load_folder
from node.models.kv_estimate import estimate_kv
from node.models.store import read_entry
from tests.mlx.checkpoints import (
    GEMMA3,
    GEMMA3_TEXT,
    LLAMA,
    QWEN3_5,
    QWEN3_5_TEXT,
    QWEN3_VL,
    TEXT,
    arrays,
    foreign,
    logits,
    make_network,
    write,
)

pytestmark = pytest.mark.mlx

nn: Any = import_module("mlx.nn")

Rename = Callable[[str], str]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "model"


def load(folder: Path) -> Any:
    return load_folder(folder, lambda fraction: None)


def same(network: Any, original: Any) -> bool:
    return bool(mx.array_equal(logits(network), logits(original)))


def as_it_is(name: str) -> str:
    return name


def model_first(name: str) -> str:
    """`language_model.model.x` as `model.language_model.x`, the head at the top."""
    name = name.replace("language_model.model.", "model.language_model.")
    return name.replace("language_model.lm_head.", "lm_head.")


def at_the_top(name: str) -> str:
    return name.removeprefix("language_model.")


def below_text_model(name: str) -> str:
    return name.replace("model.", "model.text_model.", 1)


def below_language_model(name: str) -> str:
    return f"language_model.{name}"


SIGHT = ("vision_tower.encoder.layers.0.mlp.fc1.weight", "multi_modal_projector.linear.weight")
NEW_SIGHT = ("model.vision_tower.layers.0.w", "model.multi_modal_projector.w")


@pytest.mark.parametrize(
    ("config", "rename", "extra"),
    [
        (GEMMA3, as_it_is, SIGHT),
        (GEMMA3, model_first, NEW_SIGHT),
        (QWEN3_VL, as_it_is, ("vision_tower.blocks.0.attn.qkv.weight",)),
        (QWEN3_VL, model_first, ("model.visual.blocks.0.attn.qkv.weight",)),
        (QWEN3_VL, at_the_top, ("visual.blocks.0.attn.qkv.weight", "visual.merger.w")),
        (QWEN3_5, as_it_is, ("vision_tower.blocks.0.w", "language_model.mtp.fc.weight")),
        (QWEN3_5, model_first, ("model.visual.blocks.0.w", "mtp.layers.0.mlp.w", "mtp.fc.w")),
        (LLAMA, as_it_is, ("vision_model.a.weight", "audio_tower.conv1d.weight", "mtp.0.w")),
        (LLAMA, below_language_model, SIGHT),
    ],
)
def test_loads_the_text_part_alone(
    tiny: Path, folder: Path, config: dict[str, Any], rename: Rename, extra: tuple[str, ...]
) -> None:
    original = make_network(config)
    weights = {rename(name): array for name, array in arrays(original).items()}
    write(folder, tiny, config, weights | foreign(*extra))
    model = load(folder)
    assert type(model.network) is type(original)
    assert arrays(model.network).keys() == arrays(original).keys()
    assert model.weight_bytes == sum(array.nbytes for array in arrays(original).values())
    assert same(model.network, original)


def nested(model_type: str, text: dict[str, Any]) -> dict[str, Any]:
    text = {key: value for key, value in text.items() if key != "tie_word_embeddings"}
    return {"model_type": model_type, "tie_word_embeddings": False, "text_config": text}


@pytest.mark.parametrize(
    ("config", "known", "rename", "extra"),
    [
        (nested("idefics9", LLAMA), LLAMA, below_text_model, ("model.connector.w",)),
        (nested("llava_new", LLAMA), LLAMA, below_language_model, SIGHT),
        (nested("gemma9", GEMMA3_TEXT), GEMMA3_TEXT, below_language_model, SIGHT),
        (nested("omni9", QWEN3_5_TEXT), QWEN3_5, as_it_is, ("audio_tower.conv1d.weight",)),
        (QWEN3_5_TEXT, QWEN3_5, at_the_top, ("mtp.fc.weight",)),
    ],
)
def test_a_type_that_is_unknown_is_read_by_its_text_part(
    tiny: Path,
    folder: Path,
    config: dict[str, Any],
    known: dict[str, Any],
    rename: Rename,
    extra: tuple[str, ...],
) -> None:
    original = make_network(known)
    weights = {rename(name): array for name, array in arrays(original).items()}
    write(folder, tiny, config, weights | foreign(*extra))
    assert same(load(folder).network, original)


@pytest.mark.parametrize("model_type", ["steam_text", "cache", "base"])
def test_a_type_without_a_class_is_refused(tiny: Path, folder: Path, model_type: str) -> None:
    text = {**TEXT, "model_type": "steam"}
    write(folder, tiny, {"model_type": model_type, "text_config": text}, foreign("a"))
    with pytest.raises(LoadError, match=rf"^Models of type {model_type} are not supported\.$"):
        load(folder)


def test_one_line_names_what_was_left_out(
    tiny: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="node.engine.model.weights")
    weights = arrays(make_network(GEMMA3)) | foreign(*SIGHT, values=1 << 18)
    load(write(folder, tiny, GEMMA3, weights))
    (line,) = caplog.messages
    assert "2 tensors (2.0 MiB) of multi_modal_projector, vision_tower" in line


def test_logs_nothing_where_nothing_was_left_out(
    tiny: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="node.engine.model.weights")
    load(write(folder, tiny, LLAMA, arrays(make_network(LLAMA))))
    assert caplog.messages == []


def test_what_was_left_out_takes_no_memory(tiny: Path, folder: Path) -> None:
    weights = arrays(make_network(GEMMA3)) | foreign(*SIGHT, values=1 << 22)
    write(folder, tiny, GEMMA3, weights)
    del weights
    gc.collect()
    mx.reset_peak_memory()
    before_bytes = mx.get_active_memory()
    model = load(folder)
    gc.collect()
    assert mx.get_active_memory() - before_bytes < model.weight_bytes + (1 << 20)
    assert mx.get_peak_memory() - before_bytes < 1 << 24


@pytest.mark.parametrize(
    "name", ["model.vision.weight", "visuals.weight", "model.layers.0.visual.w", "mtp2.w", "odd.w"]
)
def test_any_other_tensor_is_an_error_that_names_it(tiny: Path, folder: Path, name: str) -> None:
    write(folder, tiny, LLAMA, arrays(make_network(LLAMA)) | foreign(name))
    with pytest.raises(LoadError, match=rf"not in model: {name}\.$"):
        load(folder)


def test_a_missing_parameter_is_an_error_that_names_it(tiny: Path, folder: Path) -> None:
    weights = arrays(make_network(GEMMA3))
    del weights["language_model.model.norm.weight"]
    write(folder, tiny, GEMMA3, weights | foreign(*SIGHT))
    with pytest.raises(LoadError, match=r"Missing 1 parameters: language_model\.model\.norm\.w"):
        load(folder)


def test_of_many_names_an_error_gives_the_first(tiny: Path, folder: Path) -> None:
    write(
        folder, tiny, LLAMA, arrays(make_network(LLAMA)) | foreign(*(f"odd.{n}" for n in "abcde"))
    )
    with pytest.raises(LoadError, match=r"model: odd\.a, odd\.b, odd\.c and 2 more\.$"):
        load(folder)


# --- mixed quantization ----------------------------------------------------------------------

TWELVE = {**LLAMA, "num_hidden_layers": 12}
DEFAULT = {"group_size": 32, "bits": 4}
BITS: dict[int, Any] = {
    1: {"group_size": 32, "bits": 8},
    10: {"group_size": 64, "bits": 2},
    11: False,
    0: {"group_size": 32, "bits": 4, "mode": "mxfp4"},
}


def layer_of(path: str) -> int | None:
    segments = path.split(".")
    return int(segments[segments.index("layers") + 1]) if "layers" in segments else None


def quantized(config: dict[str, Any]) -> Any:
    network = make_network(config)

    def choose(path: str, module: Any) -> Any:
        if not hasattr(module, "to_quantized"):
            return False
        return BITS.get(layer_of(path) or 0, DEFAULT) if layer_of(path) is not None else DEFAULT

    nn.quantize(network, class_predicate=choose)
    mx.eval(network.parameters())
    return network


def entries(network: Any, rename: Rename) -> dict[str, Any]:
    """Returns the entries of the layers with bits of their own."""
    return {
        rename(path): BITS[layer_of(path) or 0]
        for path, module in network.named_modules()
        if isinstance(module, nn.QuantizedLinear | nn.Linear) and layer_of(path) in BITS
    }


def packing(network: Any) -> dict[str, Any]:
    return {
        path: (module.group_size, module.bits, module.mode) if hasattr(module, "bits") else None
        for path, module in network.named_modules()
        if isinstance(module, nn.Linear | nn.Embedding | nn.QuantizedLinear | nn.QuantizedEmbedding)
    }


@pytest.mark.parametrize("section", ["quantization", "quantization_config"])
@pytest.mark.parametrize(
    "prefix", ["model.", "", "language_model.model.", "model.language_model.", "thinker.model."]
)
def test_each_module_has_the_bits_of_its_own_entry(
    tiny: Path, folder: Path, prefix: str, section: str
) -> None:
    original = quantized(TWELVE)
    named = entries(original, lambda path: prefix + path.removeprefix("model."))
    write(folder, tiny, TWELVE | {section: DEFAULT | named}, arrays(original))
    model = load(folder)
    loaded = packing(model.network)
    assert loaded == packing(original)
    assert loaded["model.layers.0.mlp.up_proj"] == (32, 4, "mxfp4")
    assert loaded["model.layers.1.mlp.up_proj"] == (32, 8, "affine")
    assert loaded["model.layers.10.mlp.up_proj"] == (64, 2, "affine")
    assert loaded["model.layers.11.mlp.up_proj"] is None
    assert loaded["model.layers.2.mlp.up_proj"] == (32, 4, "affine")
    assert loaded["lm_head"] == (32, 4, "affine")
    assert same(model.network, original)


@pytest.mark.parametrize("rename", [as_it_is, model_first, at_the_top])
def test_entries_of_vision_layers_are_not_for_text(
    tiny: Path, folder: Path, rename: Rename
) -> None:
    config = {**GEMMA3, "text_config": {**GEMMA3_TEXT, "num_hidden_layers": 12}}
    original = quantized(config)
    sight = {f"vision_tower.encoder.layers.{layer}.self_attn.q_proj": False for layer in range(12)}
    section = DEFAULT | sight | entries(original, rename)
    write(folder, tiny, config | {"quantization": section}, arrays(original) | foreign(*SIGHT))
    model = load(folder)
    assert packing(model.network) == packing(original)
    assert same(model.network, original)


@pytest.mark.parametrize("layer", [1, 10, 11])
def test_an_entry_that_contradicts_the_weights_is_an_error(
    tiny: Path, folder: Path, layer: int
) -> None:
    original = quantized(TWELVE)
    named = entries(original, as_it_is)
    wrong = f"layers.{layer}.mlp.up_proj"
    named[f"model.{wrong}"] = {"group_size": 32, "bits": 6}
    write(folder, tiny, TWELVE | {"quantization": DEFAULT | named}, arrays(original))
    with pytest.raises(LoadError, match=rf"cannot be loaded: .*model\.{wrong}\.\w+\.$"):
        load(folder)


def test_entries_that_disagree_are_an_error(tiny: Path, folder: Path) -> None:
    original = quantized(TWELVE)
    both = {"a.layers.3.mlp.up_proj": False, "b.layers.3.mlp.up_proj": DEFAULT}
    write(folder, tiny, TWELVE | {"quantization": DEFAULT | both}, arrays(original))
    with pytest.raises(LoadError, match=r"a\.layers.* and b\.layers.* are both for model\.layers"):
        load(folder)


def test_another_tools_packing_is_still_read_by_mlx_lm(tiny: Path, folder: Path) -> None:
    original = make_network(LLAMA)
    nn.quantize(original, mode="mxfp4")
    section = {"quantization_config": {"quant_method": "mxfp4"}}
    write(folder, tiny, LLAMA | section, arrays(original))
    network = load(folder).network
    assert set(packing(network).values()) == {(32, 4, "mxfp4")}
    assert same(network, original)


# --- what the agent expects before the load --------------------------------------------------

HYBRID = {**LLAMA, "model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2}


@pytest.mark.parametrize(
    "config",
    [
        LLAMA,
        LLAMA | {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 32},
        GEMMA3,
        QWEN3_VL,
        QWEN3_5,
        HYBRID | {"sliding_window": 32},
    ],
)
def test_the_agents_estimate_of_the_kv_is_what_the_caches_take(config: dict[str, Any]) -> None:
    network = make_network(config)
    cache = make_prompt_cache(network)
    sizes = []
    for chunk_tokens in (256, 256):
        for start in range(0, chunk_tokens, 32):
            network(mx.arange(start, start + 32)[None], cache=cache)
        mx.eval([layer.state for layer in cache])
        sizes.append(sum(layer.nbytes for layer in cache))
    estimate = estimate_kv(config)
    assert estimate.bytes_per_token == (sizes[1] - sizes[0]) / 256
    rest_bytes = sizes[1] - 512 * estimate.bytes_per_token
    # A rotating window keeps the chunk that filled it too.
    assert rest_bytes / 2 <= estimate.bytes_per_row <= rest_bytes * 1.2


@pytest.mark.parametrize("config", [LLAMA, GEMMA3, QWEN3_5])
def test_the_agents_estimate_of_the_weights_is_what_is_loaded(
    tiny: Path, folder: Path, config: dict[str, Any]
) -> None:
    weights = arrays(make_network(config)) | foreign(*SIGHT, "mtp.fc.weight", values=99_999)
    write(folder, tiny, config, weights)
    assert read_entry(folder).weight_bytes == load(folder).weight_bytes
