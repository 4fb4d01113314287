"""Which entry of a quantization section is for which module."""

from typing import Any

import pytest

from node.engine.model.quantization import match_modules, read_quantization

DEFAULT = {"group_size": 64, "bits": 4, "mode": "affine"}
Q = "self_attn.q_proj"


def matched(section: dict[str, Any], *modules: str) -> dict[str, Any]:
    """Returns the section's settings for the modules, its defaults aside."""
    resolved = match_modules(DEFAULT | section, modules)
    assert {key: resolved.pop(key) for key in DEFAULT} == DEFAULT
    return resolved


def bits(value: int) -> dict[str, int]:
    return {"bits": value}


@pytest.mark.parametrize(
    ("entry", "module"),
    [
        (f"model.layers.1.{Q}", f"model.layers.1.{Q}"),
        (f"language_model.model.layers.1.{Q}", f"model.layers.1.{Q}"),
        (f"model.language_model.layers.1.{Q}", f"model.layers.1.{Q}"),
        (f"model.language_model.layers.1.{Q}", f"language_model.model.layers.1.{Q}"),
        (f"model.layers.1.{Q}", f"language_model.model.layers.1.{Q}"),
        (f"layers.1.{Q}", f"model.layers.1.{Q}"),
        (f"thinker.model.layers.1.{Q}", f"model.layers.1.{Q}"),
        ("lm_head", "language_model.lm_head"),
        ("model.language_model.embed_tokens", "model.embed_tokens"),
        ("q_proj", f"model.layers.1.{Q}"),
    ],
)
def test_an_entry_matches_whatever_stands_in_front(entry: str, module: str) -> None:
    assert matched({entry: False}, module) == {module: False}


@pytest.mark.parametrize(
    ("entry", "module"),
    [
        (f"model.layers.1.{Q}", f"model.layers.10.{Q}"),
        (f"model.layers.1.{Q}", f"model.layers.11.{Q}"),
        (f"layers.11.{Q}", f"model.layers.1.{Q}"),
        (f"1.{Q}", f"model.layers.11.{Q}"),
        ("proj", f"model.layers.1.{Q}"),
        (f"vision_tower.encoder.layers.1.{Q}", f"model.layers.1.{Q}"),
        (f"model.visual.layers.1.{Q}", f"model.layers.1.{Q}"),
        (f"mtp.layers.1.{Q}", f"model.layers.1.{Q}"),
        ("model.layers.1.mlp", "model.layers.1.mlp.up_proj"),
    ],
)
def test_an_entry_matches_whole_segments_of_the_same_part(entry: str, module: str) -> None:
    assert matched({entry: False}, module) == {}


def test_the_longest_match_wins_in_any_order() -> None:
    section = {"q_proj": False, f"layers.1.{Q}": bits(8), f"x.layers.1.{Q}": bits(6)}
    module = f"model.layers.1.{Q}"
    for order in (section, dict(reversed(section.items()))):
        assert matched(order, module) == {module: DEFAULT | bits(8)}
    exact = section | {module: bits(2)}
    assert matched(exact, module) == {module: DEFAULT | bits(2)}


def test_equal_matches_must_agree() -> None:
    module = f"model.layers.1.{Q}"
    section = {f"a.layers.1.{Q}": bits(8), f"b.layers.1.{Q}": bits(8)}
    assert matched(section, module) == {module: DEFAULT | bits(8)}
    with pytest.raises(ValueError, match=rf"^the entries a\..* and c\..* are both for {module}"):
        matched(section | {f"c.layers.1.{Q}": bits(4)}, module)


def test_an_entry_takes_from_the_defaults_only_what_fits_its_mode() -> None:
    section = {"a": bits(8), "b": {"mode": "mxfp4"}, "c": {"bits": 8, "mode": "affine", "x": 1}}
    eight = DEFAULT | bits(8)
    assert matched(section, "a", "b", "c") == {"a": eight, "b": {"mode": "mxfp4"}, "c": eight}


def test_true_is_no_entry_and_options_are_none() -> None:
    section = {"a": True, "quant_method": "x", "quantize_embeddings": True, "linear_class": "b"}
    assert matched(section, "a", "b") == {}


def test_defaults_that_are_not_given_are_those_of_mlx() -> None:
    assert match_modules({"mode": "affine"}, ()) == DEFAULT


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({}, None),
        ({"quantization": None, "text_config": None}, None),
        ({"quantization": DEFAULT, "quantization_config": bits(8)}, DEFAULT),
        ({"quantization_config": DEFAULT}, DEFAULT),
        ({"text_config": {"quantization": DEFAULT}}, DEFAULT),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, None),
        ({"quantization_config": {"bits": 4}, "text_config": {}}, bits(4)),
    ],
)
def test_finds_the_section_of_mlx(config: dict[str, Any], found: Any) -> None:
    assert read_quantization(config) == found
