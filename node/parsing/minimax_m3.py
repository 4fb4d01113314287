"""MiniMax M3: calls in XML of which each tag follows a token that nothing else holds.

The tags are named by the arguments; objects and lists are tags within tags:
`N<invoke name="f">N<a>vN</a>N<list>N<item>1N</item>N</list>N</invoke>` with N for the token.
"""

import re
from typing import Any

from node.parsing.coercion import Schema, branch_of, property_schema, typed, types_of
from node.parsing.format import ReasoningFormat
from node.parsing.sections import SectionCalls
from node.parsing.source import Malformed, Source, Step

_MARK = "]<]minimax[>["
_INVOKE_END = f"{_MARK}</invoke>"
_TAG = f"{_MARK}<"
_ITEM = "item"
_REST_OF_TAG = re.compile(r"[^>\n]*")
_DEPTH = 32


class MinimaxM3(SectionCalls):
    name = "minimax_m3"
    sections = (f"{_MARK}<tool_call>",)
    section_ends = (f"{_MARK}</tool_call>",)
    calls = (f"{_MARK}<invoke name=",)
    openers = (*sections, *calls)
    blanks = tuple(zip(sections, section_ends, strict=True))
    orphans = (*section_ends, _INVOKE_END)

    def read_call(self, source: Source, begin: str) -> Step[None]:
        name = (yield from _read_tag(source)).strip("\"' ")
        if name not in source.schemas:
            raise Malformed
        schema = source.schemas[name]
        yield from source.space()
        mark = yield from source.expect(_TAG, _INVOKE_END)
        arguments: dict[str, Any] = {}
        if mark == _TAG:
            yield from self._object(source, arguments, schema, schema, _INVOKE_END)
        source.call(name, arguments)

    def _object(
        self, source: Source, into: dict[str, Any], schema: Schema, root: Schema, end: str
    ) -> Step[None]:
        """Reads on within the first of an object's tags, up to the object's end."""
        mark = _TAG
        while mark == _TAG:
            key = yield from _read_tag(source)
            value = yield from self._value(source, key, property_schema(schema, key), root)
            into[key] = value
            yield from source.space()
            mark = yield from source.expect(_TAG, end)

    def _value(self, source: Source, key: str, schema: object, root: Schema) -> Step[Any]:
        """Up to the end tag of the key."""
        end = f"{_MARK}</{key}>"
        types = types_of(schema, root)
        if "string" in types:
            # Tags within it are text.
            text, _ = yield from source.capture(end)
            return typed(text, schema, root)
        space = yield from source.space()
        mark = yield from source.accept(_TAG, end)
        if not mark:
            text, _ = yield from source.capture(end)
            return typed(space + text, schema, root)
        if mark == end:
            return _empty(types, space)
        return (yield from self._nested(source, schema, root, end))

    def _nested(self, source: Source, schema: object, root: Schema, end: str) -> Step[Any]:
        types = types_of(schema, root)
        first = yield from _read_tag(source)
        is_list = types == {"array"} or (first == _ITEM and "array" in (types or {"array"}))
        inner = branch_of(schema, "array" if is_list else "object", root)
        items: list[Any] = []
        fields: dict[str, Any] = {}
        key = first
        while True:
            said = inner.get("items") if is_list else property_schema(inner, key)
            value = yield from self._value(source, key, said, root)
            items.append(value)
            fields[key] = value
            yield from source.space()
            if (yield from source.expect(_TAG, end)) == end:
                return items if is_list else fields
            key = yield from _read_tag(source)


def _read_tag(source: Source) -> Step[str]:
    """Reads the rest of a tag that begins. Raises `Malformed` where it ends one."""
    name = yield from source.run(_REST_OF_TAG)
    yield from source.expect(">")
    if not name or name.startswith("/"):
        raise Malformed
    return name


def _empty(types: frozenset[str], space: str) -> Any:
    """What nothing between two tags is."""
    if types == {"object"}:
        return {}
    return [] if types == {"array"} else space


MINIMAX_M3 = MinimaxM3()
MINIMAX_M3_REASONING = ReasoningFormat(
    "minimax_m3", ("<mm:think>",), ("</mm:think>",), closes_first=True
)
