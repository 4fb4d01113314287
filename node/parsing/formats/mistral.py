"""Mistral, Devstral, Magistral, Ministral: calls behind `[TOOL_CALLS]`.

Three generations: a JSON list, `f{…}`, and `f[CALL_ID]id[ARGS]{…}`, with a marker for each call. An
answer ends with its calls: the text behind them is dropped, since these models invent the results
there. A later call with its own marker is read, and is text if it is not a call. Reasoning stands
in `[THINK]` … `[/THINK]`.
"""

import re
from collections.abc import Mapping, Sequence

from node.ipc.generate import ToolSchema
from node.ipc.messages import PartKind
from node.parsing.calls.json_calls import NAME, emit_list, read_call, read_declared_name
from node.parsing.calls.json_members import CallShape, read_members
from node.parsing.calls.spelled_json import arguments_of, bare_name, call_objects, list_of
from node.parsing.constraints.lark import Lark
from node.parsing.format import ModelFamily, ReasoningFormat, ToolFormat
from node.parsing.parsed_calls import json_call
from node.parsing.scanning.markers import Markers
from node.parsing.scanning.sink import ParsedCall
from node.parsing.scanning.source import Source
from node.parsing.scanning.step import Malformed, Step

_OPENER = "[TOOL_CALLS]"
_OPENERS = Markers((_OPENER,))
_ID = re.compile(r"[A-Za-z0-9_-]*")
_SPELLED_ID = "[A-Za-z0-9]{9}"
_ID_KEY = ', "id": "'
_QUOTE = '"'


class Mistral(ToolFormat):
    name = "mistral"
    openers = (_OPENER,)
    orphans = ("[ARGS]", "[CALL_ID]")

    def read(self, source: Source, opener: str) -> Step[None]:
        yield from self._calls(source)
        while (yield from source.skip(_OPENERS)):
            try:
                yield from self._calls(source)
            except Malformed:
                source.output.emit(PartKind.CONTENT, _OPENER)
                raise

    def calls_grammar(self, lark: Lark, tools: Sequence[ToolSchema], *, parallel: bool) -> str:
        opener = lark.text(_OPENER)
        if not lark.is_token("[ARGS]"):
            call_id = f"{lark.text(_ID_KEY)} {lark.regex(_SPELLED_ID)} {lark.text(_QUOTE)}"
            call = call_objects(lark, tools, ("name",), ("arguments",), call_id)
            return f"{opener} {lark.space()} {list_of(lark, call, parallel=parallel)}"
        call_id = lark.optional(f"{lark.text('[CALL_ID]')} {lark.regex(_SPELLED_ID)}")
        if not lark.is_token("[CALL_ID]"):
            call_id = ""
        calls = [
            f"{opener} {lark.text(bare_name(tool, NAME))} {call_id} {lark.text('[ARGS]')} "
            f"{arguments_of(lark, tool)}"
            for tool in tools
        ]
        return lark.many(lark.one_of(calls)) if parallel else lark.one_of(calls)

    def _calls(self, source: Source) -> Step[None]:
        yield from source.space()
        while (yield from source.accept(_OPENER)):
            yield from source.space()
        if (yield from source.accept("[")):
            yield from emit_list(source, _SHAPE)
        elif (yield from source.peek()) == "{":
            yield from self._objects(source)
        else:
            yield from self._named(source)

    def _objects(self, source: Source) -> Step[None]:
        """Reads objects: the first must be a call, and later ones are calls if they can be."""
        more: ParsedCall | None = yield from self._object(source)
        while more is not None:
            source.calls.emit(*more)
            more = yield from source.maybe(self._next_object(source))

    def _next_object(self, source: Source) -> Step[ParsedCall]:
        yield from source.space()
        yield from source.accept(",")
        yield from source.space()
        return (yield from self._object(source))

    def _object(self, source: Source) -> Step[ParsedCall]:
        return _call(source, (yield from read_members(source)))

    def _named(self, source: Source) -> Step[None]:
        name = yield from read_declared_name(source)
        call_id = ""
        yield from source.space()
        if (yield from source.accept("[CALL_ID]")):
            call_id = yield from source.run(_ID)
        yield from source.accept("[ARGS]")
        yield from source.space()
        (yield from read_call(source, name, call_id=call_id)).end()


def _element(source: Source, value: object) -> ParsedCall | None:
    """Returns the call in an element of a list; None for an element that is not an object, which is
    dropped like text behind a call."""
    return _call(source, value) if isinstance(value, Mapping) else None


def _call(source: Source, value: object) -> ParsedCall:
    call = json_call(source, value)
    call_id = value.get("id") if isinstance(value, Mapping) else None
    return call._replace(call_id=call_id if isinstance(call_id, str) else "")


_SHAPE = CallShape(_element, lambda members, key: None, is_streamed=False)
"""The id of a call follows its arguments, so the call is emitted only at its end."""
MISTRAL = Mistral()
MISTRAL_REASONING = ReasoningFormat("mistral", ("[THINK]",), ("[/THINK]",), repeats=True)

FAMILY = ModelFamily(
    tool_calls=(MISTRAL,),
    reasoning=(MISTRAL_REASONING,),
    tool_call_aliases={"mistral": ("magistral",)},
    reasoning_aliases={"mistral": ("magistral",)},
)
