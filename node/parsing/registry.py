"""All formats by name, with the names that other servers give them. They are found by listing the
folder `formats`, where each file has a `FAMILY`."""

import pkgutil
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import import_module

from node.parsing import formats
from node.parsing.calls.any_of import AnyOf
from node.parsing.calls.bracket import BRACKET
from node.parsing.calls.function_xml import FUNCTION_XML
from node.parsing.calls.marked import MarkedLayout
from node.parsing.format import (
    NO_REASONING,
    ModelFamily,
    NoToolFormat,
    OutputLayout,
    ReasoningFormat,
    ToolFormat,
)
from node.parsing.selection import NONE, Formats
from node.parsing.whole_blocks import WHOLE_BLOCKS

_USUAL = "hermes"
"""The family that is tried first, and whose spelling is used, if nothing is known of a model."""


def in_order(families: Mapping[str, ModelFamily]) -> list[ModelFamily]:
    """Returns the families in the order in which they are tried: by name, except for those that
    yield to others. Raises `ValueError` if some yield to each other or to an unknown family."""
    waiting, found = dict(sorted(families.items())), []
    if lost := {name for each in families.values() for name in each.yields_to} - families.keys():
        raise ValueError(f"Formats yield to what there is not: {sorted(lost)}.")
    while waiting:
        ready = [name for name in waiting if not waiting.keys() & set(waiting[name].yields_to)]
        if not ready:
            raise ValueError(f"Formats yield to each other: {sorted(waiting)}.")
        found.append(waiting.pop(_USUAL if _USUAL in ready else ready[0]))
    return found


def _families() -> list[ModelFamily]:
    names = [each.name for each in pkgutil.iter_modules(formats.__path__)]
    return in_order({name: import_module(f"{formats.__name__}.{name}").FAMILY for name in names})


def _aliases(known: Sequence[Mapping[str, Sequence[str]]]) -> dict[str, str]:
    return {alias: name for each in known for name, aliases in each.items() for alias in aliases}


_FAMILIES = _families()
_LAYOUTS: Mapping[str, OutputLayout] = {
    form.name: form for each in _FAMILIES for form in each.layouts
}
"""Formats of outputs as a whole; each name stands for a reasoning format and a tool format
alike."""
_REASONING: Mapping[str, ReasoningFormat] = {
    form.name: form
    for form in (NO_REASONING, *(form for each in _FAMILIES for form in each.reasoning))
}
REASONING_MARKERS = frozenset(
    marker for form in _REASONING.values() for marker in (*form.openers, *form.closers)
)
"""The markers of all reasoning formats."""
_KNOWN = [
    *(form for each in _FAMILIES if each.is_marked for form in each.tool_calls),
    *(BRACKET, FUNCTION_XML),
]
_AUTO = AnyOf("auto", (*_KNOWN, *WHOLE_BLOCKS))
"""Calls of any format that has markup of its own, as they come; for models whose format is
unknown."""
_TOOL_CALLS: Mapping[str, ToolFormat] = {
    form.name: form
    for form in (
        *(NoToolFormat(), _AUTO),
        *_KNOWN,
        *(form for each in _FAMILIES if not each.is_marked for form in each.tool_calls),
    )
}
REASONING_ALIASES = _aliases([each.reasoning_aliases for each in _FAMILIES])
"""Names that other servers give a reasoning format, with our name."""
TOOL_CALL_ALIASES = _aliases([{"auto": ("generic",)}, *(f.tool_call_aliases for f in _FAMILIES)])
"""Names that other servers give a tool format, with our name."""


def reasoning_name(name: str) -> str:
    """Returns the name of a reasoning format for any of its names, in any case. Raises
    `KeyError`."""
    known = name.lower().replace("-", "_")
    known = REASONING_ALIASES.get(known, known)
    if known not in _REASONING and known not in _LAYOUTS:
        raise KeyError(name)
    return known


def tool_call_name(name: str) -> str:
    """Returns the name of a tool format for any of its names, in any case. Raises `KeyError`."""
    known = name.lower().replace("-", "_")
    known = TOOL_CALL_ALIASES.get(known, known)
    if known not in _TOOL_CALLS and known not in _LAYOUTS:
        raise KeyError(name)
    return known


def reasoning_names() -> list[str]:
    return sorted({*_REASONING, *_LAYOUTS})


def tool_call_names() -> list[str]:
    return sorted({*_TOOL_CALLS, *_LAYOUTS})


def are_compatible(reasoning: str, tool_calls: str) -> bool:
    """True if one output can have both formats. A format of outputs as a whole goes with itself or
    with `none`. Raises `KeyError`."""
    names = {reasoning_name(reasoning), tool_call_name(tool_calls)}
    return len(names - {NONE}) < 2 or not names & _LAYOUTS.keys()


def override(found_formats: Formats, reasoning: str = "", tool_calls: str = "") -> Formats:
    """Returns a model's formats if one or both are given explicitly, by any of their names;
    `found_formats` are those found for the model. A found format that does not go with a given one
    is replaced by `none`, and a given format of outputs as a whole stands for both."""
    given = reasoning or tool_calls
    if given in _LAYOUTS and not (reasoning and tool_calls):
        return Formats(given, given)
    chosen = Formats(reasoning or found_formats.reasoning, tool_calls or found_formats.tool_calls)
    if are_compatible(*chosen):
        return chosen
    return Formats(reasoning or NONE, tool_calls or NONE) if given else found_formats


@lru_cache(maxsize=256)
def layout_for(reasoning: str, tool_calls: str, *, reads_calls: bool = True) -> OutputLayout:
    """Returns the reader of outputs with the two formats. Without `reads_calls`, calls are text.
    Raises `KeyError`."""
    reasoning, tool_calls = reasoning_name(reasoning), tool_call_name(tool_calls)
    for name in (tool_calls, reasoning):
        if name in _LAYOUTS:
            return _LAYOUTS[name]
    return MarkedLayout(_REASONING[reasoning], _TOOL_CALLS[tool_calls], reads_calls=reads_calls)
