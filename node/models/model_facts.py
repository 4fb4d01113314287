"""Reads what people are told of a model from its `config.json` and its size."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_MOST_CHARS = 100
_MOST_BITS = 16
_GROUP_BYTES = 4
"""A quantized group of weights has a scale and a bias of two bytes each."""
_BYTES_EACH = {"float32": 4.0, "float16": 2.0, "bfloat16": 2.0}


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Empty or 0 where it is unknown."""

    family: str = ""
    parameters: int = 0
    """Number of weights, an estimate by their size."""
    quantization: str = ""


def model_facts(config: Mapping[str, Any], weight_bytes: int) -> ModelFacts:
    """Returns the facts of a model with this configuration."""
    text = config.get("text_config")
    owners = (text, config) if isinstance(text, Mapping) else (config,)
    family = _first_text(owners, "model_type")
    dtype = _first_text(owners, "torch_dtype") or _first_text(owners, "dtype")
    quantization, bytes_each = dtype, _BYTES_EACH.get(dtype, 2.0)
    given = config.get("quantization") or config.get("quantization_config")
    bits, group = (_count(given, name) for name in ("bits", "group_size"))
    if 0 < bits <= _MOST_BITS:
        quantization = f"{bits}-bit"
        bytes_each = bits / 8 + (_GROUP_BYTES / group if group else 0.0)
    return ModelFacts(family, round(weight_bytes / bytes_each), quantization)


def _first_text(owners: tuple[Mapping[str, Any], ...], name: str) -> str:
    values = (owner.get(name) for owner in owners)
    texts = (each for each in values if isinstance(each, str) and 0 < len(each) <= _MOST_CHARS)
    return next((each for each in texts if each.isprintable()), "")


def _count(given: object, name: str) -> int:
    value = given.get(name) if isinstance(given, Mapping) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
