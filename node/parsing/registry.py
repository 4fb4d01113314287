"""All formats by name, and the names that other servers give them: found by looking into the folder
`formats`, of which each file has a `FAMILY`."""

import pkgutil
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import import_module

from node.parsing import formats
from node.parsing.calls.any_of import AnyOf
from node.parsing.calls.bracket import BRACKET
from node.parsing.calls.function_xml import FUNCTION_XML
from node.parsing.calls.marked import Marked
from node.parsing.format import (
    NO_REASONING,
    Grammar,
    ModelFamily,
    NoCalls,
    ReasoningFormat,
    ToolFormat,
)
from node.parsing.selection import NONE, Formats
from node.parsing.whole_blocks import WHOLE_BLOCKS

_USUAL = "hermes"
"""The family that is asked first, and whose spelling is used, where nothing is known of a model."""


def in_order(families: Mapping[str, ModelFamily]) -> list[ModelFamily]:
    """As they are asked, by name but for those that yield to others. Raises `ValueError` where some
    yield to each other, or to what there is not."""
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
_WHOLE: Mapping[str, Grammar] = {form.name: form for each in _FAMILIES for form in each.whole}
"""Formats of outputs as a whole: their name is one of reasoning and of tool calls alike."""
_REASONING: Mapping[str, ReasoningFormat] = {
    form.name: form
    for form in (NO_REASONING, *(form for each in _FAMILIES for form in each.reasoning))
}
REASONING_MARKERS = frozenset(
    marker for form in _REASONING.values() for marker in (*form.openers, *form.closers)
)
"""Of all formats."""
_KNOWN = [
    *(form for each in _FAMILIES if each.is_marked for form in each.tool_calls),
    *(BRACKET, FUNCTION_XML),
]
_AUTO = AnyOf("auto", (*_KNOWN, *WHOLE_BLOCKS))
"""Calls of any format that has markup of its own, as they come; for models of which nothing is
known."""
_TOOL_CALLS: Mapping[str, ToolFormat] = {
    form.name: form
    for form in (
        *(NoCalls(), _AUTO),
        *_KNOWN,
        *(form for each in _FAMILIES if not each.is_marked for form in each.tool_calls),
    )
}
REASONING_ALIASES = _aliases([each.reasoning_aliases for each in _FAMILIES])
"""What other servers call a reasoning format."""
TOOL_CALL_ALIASES = _aliases([{"auto": ("generic",)}, *(f.tool_call_aliases for f in _FAMILIES)])
"""What other servers call a tool-call format."""


def reasoning_name(name: str) -> str:
    """The name of a reasoning format, aliases resolved, whatever its case. Raises `KeyError`."""
    known = name.lower().replace("-", "_")
    known = REASONING_ALIASES.get(known, known)
    if known not in _REASONING and known not in _WHOLE:
        raise KeyError(name)
    return known


def tool_call_name(name: str) -> str:
    """The name of a tool-call format, aliases resolved, whatever its case. Raises `KeyError`."""
    known = name.lower().replace("-", "_")
    known = TOOL_CALL_ALIASES.get(known, known)
    if known not in _TOOL_CALLS and known not in _WHOLE:
        raise KeyError(name)
    return known


def reasoning_names() -> list[str]:
    return sorted({*_REASONING, *_WHOLE})


def tool_call_names() -> list[str]:
    return sorted({*_TOOL_CALLS, *_WHOLE})


def go_together(reasoning: str, tool_calls: str) -> bool:
    """Whether an output can have both formats: that of an output as a whole goes with itself, or
    with `none`. Raises `KeyError`."""
    names = {reasoning_name(reasoning), tool_call_name(tool_calls)}
    return len(names - {NONE}) < 2 or not names & _WHOLE.keys()


def override(told: Formats, reasoning: str = "", tool_calls: str = "") -> Formats:
    """The formats of a model of which `told` is known where one or both are given, by names that
    aliases are resolved of. One that does not go with what is given is left out, and a given one
    of outputs as a whole decides both."""
    given = reasoning or tool_calls
    if given in _WHOLE and not (reasoning and tool_calls):
        return Formats(given, given)
    chosen = Formats(reasoning or told.reasoning, tool_calls or told.tool_calls)
    if go_together(*chosen):
        return chosen
    return Formats(reasoning or NONE, tool_calls or NONE) if given else told


@lru_cache(maxsize=256)
def grammar_for(reasoning: str, tool_calls: str, *, reads_calls: bool = True) -> Grammar:
    """What reads an output of the two formats, as text where it would be calls if not
    `reads_calls`. Raises `KeyError`."""
    reasoning, tool_calls = reasoning_name(reasoning), tool_call_name(tool_calls)
    for name in (tool_calls, reasoning):
        if name in _WHOLE:
            return _WHOLE[name]
    return Marked(_REASONING[reasoning], _TOOL_CALLS[tool_calls], reads_calls=reads_calls)
