"""Determines which modules of a network are quantized, and how: entries of config.json, matched by
path.

Other tools' checkpoints name a module `language_model.model.layers.1.mlp.up_proj` that is
`model.layers.1.mlp.up_proj` in our network. An entry and a module match if one path ends with the
other, by whole segments (`layers.1` is no part of `layers.11`), after the wrappers in front are
removed. The longest match wins.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from node.models.safetensors_header import core_name, foreign_part

_PARAMETERS = ("group_size", "bits", "mode")
_AFFINE = {"group_size": 64, "bits": 4, "mode": "affine"}

Segments = tuple[str, ...]
Named = list[tuple[str, Any]]


def read_quantization(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns MLX's quantization section of a config.json, wherever it is; None if there is none.

    A `quantization_config` with a method comes from another tool, and mlx_lm reads it.
    """
    text = config.get("text_config")
    for source in (config, text if isinstance(text, dict) else {}):
        section = source.get("quantization")
        if isinstance(section, dict):
            return section
        section = source.get("quantization_config")
        if isinstance(section, dict) and "bits" in section and "quant_method" not in section:
            return section
    return None


def match_modules(section: Mapping[str, Any], modules: Iterable[str]) -> dict[str, Any]:
    """Returns the quantization section with each entry under the path of its module.

    `modules` are the paths of all modules that can be quantized. A module without an entry is
    quantized if its scales are in the weights, as its weights are packed. Raises `ValueError` if
    two entries that disagree match a module equally well.
    """
    defaults = {key: section.get(key, _AFFINE[key]) for key in _PARAMETERS}
    index = _Entries(section)
    resolved: dict[str, Any] = dict(defaults)
    for path in modules:
        entry = index.find(path)
        if entry is False:
            resolved[path] = False
        elif isinstance(entry, dict):
            resolved[path] = _complete(entry, defaults)
    return resolved


def _complete(entry: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Fills the entry's missing values from the defaults, unless it has another mode."""
    known = {key: entry[key] for key in (*_PARAMETERS, "global_scale") if key in entry}
    if known.get("mode", defaults["mode"]) == defaults["mode"]:
        return {**defaults, **known}
    return known


class _Entries:
    """The entries of a section by every suffix of their paths."""

    def __init__(self, section: Mapping[str, Any]) -> None:
        self._by_end: dict[Segments, Named] = defaultdict(list)
        self._whole: dict[Segments, Named] = defaultdict(list)
        for name, value in section.items():
            if not isinstance(value, bool | dict) or foreign_part(name) is not None:
                continue
            segments = core_name(name)
            self._whole[segments].append((name, value))
            for start in range(len(segments)):
                self._by_end[segments[start:]].append((name, value))

    def find(self, path: str) -> Any:
        """Returns the value of the module's entry; None if there is none."""
        segments = core_name(path)
        whole = self._whole.get(segments, [])
        exact = [named for named in whole if named[0] == path]
        ends = (self._whole.get(segments[start:], []) for start in range(1, len(segments)))
        for found in (exact, whole, self._by_end.get(segments, []), *ends):
            if found:
                return _only(path, found)
        return None


def _only(path: str, found: Named) -> Any:
    name, value = found[0]
    for other, other_value in found[1:]:
        if other_value != value:
            raise ValueError(f"the entries {name} and {other} are both for {path}, and disagree")
    return value
