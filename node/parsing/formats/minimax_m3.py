"""MiniMax M3: calls in XML, in which each tag follows a token of its own.

The tags are named after the arguments; objects and lists are tags within tags:
`N<invoke name="f">N<a>vN</a>N<list>N<item>1N</item>N</list>N</invoke>`, where N is the token.
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from node.ipc.generate import ToolSchema
from node.parsing.calls.bracket import with_recovery
from node.parsing.calls.sections import SectionCalls
from node.parsing.calls.spelled_json import bare_name, between, blocks
from node.parsing.coercion import Schema, branch_of, property_schema, typed, types_of
from node.parsing.constraints.arguments import arguments_of
from node.parsing.constraints.lark import Lark
from node.parsing.constraints.values import (
    OF_LISTS,
    Argument,
    Flat,
    SchemaPlace,
    flat_schemas,
    members_of,
    repetition,
    takes,
)
from node.parsing.format import ModelFamily, ReasoningFormat
from node.parsing.scanning.markers import markers_of
from node.parsing.scanning.source import Source
from node.parsing.scanning.step import Malformed, Step
from node.parsing.values.bare_arguments import BareArguments
from node.parsing.values.raw_values import RawText, in_order, spell_raw, written_name

_MARK = "]<]minimax[>["
_IN_MARK = "<]minimax["
_INVOKE_END = f"{_MARK}</invoke>"
_TAG = f"{_MARK}<"
_ITEM = "item"
_REST_OF_TAG = re.compile(r"[^>\n]*")
_NAME = re.compile(r"[^>\n/\"' ](?:[^>\n]*[^>\n\"' ])?")
"""Names that can be written in a tag unchanged."""
_NOT_IN_TAGS = frozenset(("enum", *OF_LISTS))


class MinimaxM3(SectionCalls):
    name = "minimax_m3"
    sections = (f"{_MARK}<tool_call>",)
    section_ends = (f"{_MARK}</tool_call>",)
    calls = (f"{_MARK}<invoke name=",)
    openers = (*sections, *calls)
    orphans = (*section_ends, _INVOKE_END)

    def calls_grammar(self, lark: Lark, tools: Sequence[ToolSchema], *, parallel: bool) -> str:
        calls = []
        for tool in tools:
            begin = lark.text(f'{self.calls[0]}"{bare_name(tool, _NAME)}">')
            body = _spell_members(lark, arguments_of(tool))
            calls.append(f"{begin} {body} {lark.text(_INVOKE_END)}")
        body = blocks(lark, lark.one_of(calls), parallel=parallel)
        return between(lark, self.sections[0], body, self.section_ends[0])

    def read_call(self, source: Source, begin: str) -> Step[None]:
        name = (yield from _read_tag(source)).strip("\"' ")
        call = source.calls.open(name)
        schema = call.schema
        yield from source.space()
        mark = yield from source.expect(_TAG, _INVOKE_END)
        arguments = BareArguments(call)
        while mark == _TAG:
            key = yield from _read_tag(source)
            inner_schema = property_schema(schema, key)
            if "string" in types_of(inner_schema, schema):
                # Tags within a string are text.
                arguments.begin(key)
                yield from source.pass_to(markers_of((f"{_MARK}</{key}>",)), arguments.write)
                arguments.end()
            else:
                arguments.put(key, (yield from self._value(source, key, inner_schema, schema)))
            yield from source.space()
            mark = yield from source.expect(_TAG, _INVOKE_END)
        arguments.close()
        call.end()

    def _value(self, source: Source, key: str, schema: object, root: Schema) -> Step[Any]:
        """Reads a value up to the end tag of its key."""
        end = f"{_MARK}</{key}>"
        types = types_of(schema, root)
        if "string" in types:
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
            inner_schema = inner.get("items") if is_list else property_schema(inner, key)
            value = yield from self._value(source, key, inner_schema, root)
            items.append(value)
            fields[key] = value
            yield from source.space()
            if (yield from source.expect(_TAG, end)) == end:
                return items if is_list else fields
            key = yield from _read_tag(source)


def _spell_members(lark: Lark, members: Sequence[Argument], *, may_be_empty: bool = True) -> str:
    """Returns the expression of an object's tags. Raises `UnsupportedConstraint`."""
    written = [(_spell_member(lark, each), each.is_required) for each in members]
    return in_order(lark, written, may_be_empty=may_be_empty)


def _spell_member(lark: Lark, member: Argument) -> str:
    """Returns the expression of a value in its tag. Raises `UnsupportedConstraint`."""
    schema, place = member.schema, member.place
    name = written_name(member.name, _NAME.pattern, place)
    types = types_of(schema, place.root)
    end = f"{_MARK}</{name}>"
    begin = lark.text(f"{_TAG}{name}>")
    kinds = types - {"null"}
    if kinds not in ({"array"}, {"object"}) or (flat := _plain(member, *kinds)) is None:
        return f"{begin} {spell_raw(lark, member, RawText(end, (_IN_MARK,), in_json=(_IN_MARK,)))}"
    # An empty tag is an empty value if there is only one type.
    may_be_empty = types == kinds
    key = json.dumps((place.param, may_be_empty, flat))
    value = lark.shared(key, partial(_spell_nested, lark, flat, place, may_be_empty=may_be_empty))
    if not may_be_empty:
        value = lark.one_of([value, lark.text("null")])
    return f"{begin} {value} {lark.text(end)}"


def _plain(member: Argument, kind: str) -> Flat | None:
    """Returns the schema of a list or an object that tags can spell; None if it must be written as
    JSON."""
    schema, place = member.schema, member.place
    flats = [flat for flat in flat_schemas(schema, place) if takes(flat, kind)]
    if len(flats) != 1 or _NOT_IN_TAGS & flats[0].keys():
        return None
    (flat,) = flats
    inner = branch_of(schema, kind, place.root)
    content = "items" if kind == "array" else "properties"
    is_read = inner.get(content) == flat.get(content) and isinstance(flat.get(content), Mapping)
    return {**flat, "type": kind} if is_read and (flat[content] or kind == "array") else None


def _spell_nested(lark: Lark, flat: Flat, place: SchemaPlace, *, may_be_empty: bool) -> str:
    if flat["type"] == "object":
        body = _spell_members(lark, members_of(flat, place), may_be_empty=may_be_empty)
        if not body:
            raise place.unsupported("an object without members beside null")
        return body
    item = lark.rule(
        _spell_member(lark, Argument(_ITEM, flat["items"], is_required=True, place=place))
    )
    return f"{item}{repetition(flat, fewest=0 if may_be_empty else 1)}"


def _read_tag(source: Source) -> Step[str]:
    """Reads the rest of an opening tag. Raises `Malformed` for a closing tag."""
    name = yield from source.run(_REST_OF_TAG)
    yield from source.expect(">")
    if not name or name.startswith("/"):
        raise Malformed
    return name


def _empty(types: frozenset[str], space: str) -> Any:
    """Returns the value of a tag without content."""
    if types == {"object"}:
        return {}
    return [] if types == {"array"} else space


MINIMAX_M3 = MinimaxM3()
MINIMAX_M3_REASONING = ReasoningFormat(
    "minimax_m3", ("<mm:think>",), ("</mm:think>",), closes_first=True
)

FAMILY = ModelFamily(
    tool_calls=(with_recovery(MINIMAX_M3),),
    reasoning=(MINIMAX_M3_REASONING,),
)
