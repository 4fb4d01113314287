"""Turns a model folder into a network for text, its weights still lazy.

mlx_lm reads and quantizes. This module does what mlx_lm leaves to the caller: it chooses the class
for a nested config, renames tensors under another prefix, leaves out tensors that text does not
need, and matches quantization entries under other paths.
"""

import copy
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm import utils as mlx_lm_utils

from node.engine.model.quantization import match_modules, read_quantization
from node.models.safetensors_header import FOREIGN_PARTS, core_name, foreign_part

logger = logging.getLogger(__name__)

Arrays = dict[str, mx.array]
_MIB = 1024**2


class UnsupportedModel(ValueError):
    """mlx_lm has no class for the model."""


def load_network(folder: Path) -> Any:
    """Returns a network with the weights of `folder`, not yet evaluated. Never runs code of the
    folder.

    Tensors of foreign parts (see `node.models.safetensors_header`) are left out, with one line in
    the log. Raises `UnsupportedModel`; `ValueError` with names if parameters are missing or tensors
    left over; and mlx_lm's errors for broken files.
    """
    config = mlx_lm_utils.load_config(folder)
    changes, model_class, arguments_class = _choose_class(config)
    config = config | changes
    network = model_class(arguments_class.from_dict(copy.deepcopy(config)))
    section = read_quantization(config)
    if section is not None:
        changes["quantization"] = match_modules(section, _quantizable(network))
    # An attribute of the instance shadows the method of its class.
    network.sanitize = _TextOnly(network)
    loaded, _ = mlx_lm_utils.load_model(
        folder,
        lazy=True,
        model_config=changes,
        get_model_classes=_always(network, arguments_class),
        trust_remote_code=False,
    )
    del network.sanitize
    return loaded


def _choose_class(config: dict[str, Any]) -> tuple[dict[str, Any], Any, Any]:
    """Returns (changes of the config, model class, class of its arguments)."""
    for changes in _readings(config):
        try:
            # mlx_lm's own choice, which includes renamed model types; it has no public name.
            classes = mlx_lm_utils._get_classes(config | changes)
        except (ValueError, AttributeError):
            continue
        return changes, *classes
    raise UnsupportedModel(f"Models of type {config['model_type']} are not supported")


def _readings(config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the ways to read a config: as it is; as the text part of a class for both; and by its
    text part alone."""
    text = config.get("text_config")
    tied = {key: config[key] for key in ("tie_word_embeddings",) if key in config}
    nested = tied | text if isinstance(text, dict) else None
    yield {} if nested is None else {"text_config": nested}
    for part in (config, nested or {}):
        model_type = part.get("model_type")
        if not isinstance(model_type, str):
            continue
        if part is nested:
            yield dict(nested)
        if model_type.endswith("_text"):
            yield {"model_type": model_type.removesuffix("_text"), "text_config": part}


def _always(network: Any, arguments_class: Any) -> Callable[[dict[str, Any]], Any]:
    """Returns a `get_model_classes` for mlx_lm that ignores its arguments and returns this
    network."""
    return lambda config: (lambda arguments: network, arguments_class)


def _quantizable(network: Any) -> list[str]:
    return [path for path, module in network.named_modules() if hasattr(module, "to_quantized")]


class _TextOnly:
    """Replaces a network's `sanitize`: leaves out foreign tensors, renames, and sanitizes."""

    def __init__(self, network: Any) -> None:
        parameters: Any = tree_flatten(network.parameters())
        names = [name for name, _ in parameters]
        self._rename = _renaming(names)
        self._sanitize = getattr(network, "sanitize", dict)
        self._foreign = FOREIGN_PARTS - {part for name in names for part in name.split(".")}

    def __call__(self, weights: Arrays) -> Arrays:
        # First, since a `sanitize` may mistake an audio encoder's convolution for a layer's.
        left_out = {name for name in weights if foreign_part(name) in self._foreign}
        _log_left_out({name: weights[name] for name in left_out})
        kept = {self._rename(name): weights[name] for name in weights if name not in left_out}
        return self._sanitize(kept)


def _log_left_out(left_out: Mapping[str, mx.array]) -> None:
    if left_out:
        parts = sorted({str(foreign_part(name)) for name in left_out})
        size_mib = sum(array.nbytes for array in left_out.values()) / _MIB
        logger.info(
            "Left out %d tensors (%.1f MiB) of %s: only text is served.",
            len(left_out),
            size_mib,
            ", ".join(parts),
        )


def _renaming(parameters: Iterable[str]) -> Callable[[str], str]:
    """Returns the function that renames a file's tensors to the place of the language model in the
    network: under `language_model.` or at the top. Names that show neither are left to mlx_lm's
    `sanitize`."""
    parameters = list(parameters)
    if all(name.startswith("language_model.") for name in parameters):
        if any(name.startswith("language_model.model.") for name in parameters):
            return lambda name: _renamed(name, "language_model.")
    elif not any("language_model" in name.split(".") for name in parameters):
        return lambda name: _renamed(name, "")
    return lambda name: name


def _renamed(name: str, prefix: str) -> str:
    core = core_name(name)
    wrappers = name.split(".")[: -len(core)]
    says_where = "language_model" in wrappers or "text_model" in wrappers
    if core[0] == "lm_head" and (says_where or not wrappers):
        return prefix + ".".join(core)
    return f"{prefix}model.{'.'.join(core)}" if says_where else name
