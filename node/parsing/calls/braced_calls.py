"""Calls as `call:f{a:v}` between markers: Gemma 4 and FunctionGemma.

The arguments are not JSON: keys are bare, and strings stand between tokens and may contain
anything. Small models also write `call:f(a="v")` or a `tool_code` block in Python, or omit the
tokens.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from node.ipc.generate import ToolSchema
from node.parsing.calls.json_calls import NAME, read_declared_name, read_marked_calls
from node.parsing.calls.python_blocks import read_brackets, read_call_list, read_python
from node.parsing.calls.spelled_json import bare_name
from node.parsing.coercion import Schema, property_schema, typed
from node.parsing.constraints.arguments import arguments_of
from node.parsing.constraints.lark import Lark, Text
from node.parsing.constraints.schema import UnsupportedConstraint
from node.parsing.constraints.text_patterns import patterns_of
from node.parsing.constraints.values import Flat, SchemaPlace
from node.parsing.format import ToolFormat
from node.parsing.parsed_calls import emit_calls
from node.parsing.scanning.markers import Markers
from node.parsing.scanning.open_call import Members, OpenCall
from node.parsing.scanning.source import Source
from node.parsing.scanning.step import Malformed, Step
from node.parsing.values.literal_values import Language, spell_members

_KEY = re.compile(r"[^\s:{}\[\],<\"]*")
_BARE = re.compile(r"[^,{}\[\]\n]*")
_ANY_KEY = r"[A-Za-z_][0-9A-Za-z_]{0,63}"
_DEPTH = 64


class _Place(NamedTuple):
    """The schema at one position of the arguments, the tool's schema that its references point
    into, and the nesting depth."""

    schema: object
    root: Schema
    depth: int

    def member(self, key: str) -> "_Place":
        schema = self.schema
        return self._at(property_schema(schema, key) if isinstance(schema, Mapping) else None)

    def item(self) -> "_Place":
        return self._at(self.schema.get("items") if isinstance(self.schema, Mapping) else None)

    def _at(self, schema: object) -> "_Place":
        return _Place(schema, self.root, self.depth + 1)


class _Begun(NamedTuple):
    """The start of a call in Python."""

    text: str
    is_printed: bool


class _Braced(Language):
    """Writes values with bare keys, and strings that contain anything except their quote."""

    words = {True: ("true",), False: ("false",), None: ("null",)}
    separator = ","

    def __init__(self, quote: str, *, sorts: bool) -> None:
        self._quote = quote
        self.sorts = sorts

    def spell_text(self, lark: Lark, flat: Flat, place: SchemaPlace) -> str:
        text = Text(tuple(patterns_of(flat, place)))
        return f"{lark.text(self._quote)} {lark.text_until([text], self._quote)}"

    def spell_string(self, lark: Lark, value: str) -> str:
        is_written = self._quote not in value
        return lark.text(f"{self._quote}{value}{self._quote}") if is_written else ""

    def spell_key(self, lark: Lark, name: str, place: SchemaPlace) -> str:
        if self._quote in name:
            raise UnsupportedConstraint(
                f"The model cannot write the name {name} of an argument.", place.param
            )
        is_bare = name and _KEY.fullmatch(name)
        return lark.text(f"{name}:" if is_bare else f"{self._quote}{name}{self._quote}:")

    def spell_any_key(self, lark: Lark) -> str:
        return f"{lark.regex(_ANY_KEY)} {lark.text(':')}"


class BracedCalls(ToolFormat):
    """Calls as `call:f{a:v}`, one or more between markers."""

    def __init__(
        self,
        name: str,
        markers: tuple[str, str],
        quote: str,
        stop_tokens: tuple[str, ...] = (),
        *,
        sorts: bool = False,
    ) -> None:
        """`quote` stands at both ends of a string. `sorts` is True if models write members in the
        order of their names."""
        opener, closer = markers
        self.name = name
        self.openers = (opener, "```tool_code")
        self.starts = ("call:", "tool_code =", "tool_code=")
        self.orphans = (closer, *stop_tokens)
        self.stop_tokens = stop_tokens
        self._opener = opener
        self._closer = closer
        self._quote = quote
        self._quotes = Markers((quote,))
        self._language = _Braced(quote, sorts=sorts)

    def calls_grammar(self, lark: Lark, tools: Sequence[ToolSchema], *, parallel: bool) -> str:
        calls = []
        for tool in tools:
            begin = lark.text(f"{self._opener}call:{bare_name(tool, NAME)}{{")
            body = spell_members(lark, self._language, arguments_of(tool))
            calls.append(f"{begin} {body} {lark.text('}' + self._closer)}")
        call = lark.one_of(calls)
        return lark.many(call) if parallel else call

    def read(self, source: Source, opener: str) -> Step[None]:
        if "tool_code" in opener:
            yield from self._tool_code(source, opener)
            return
        if opener == self._opener:
            yield from source.space()
            if (yield from source.peek()) == "{":
                yield from read_marked_calls(source)
                yield from self._close(source)
                return
            yield from source.expect("call:")
        passed = ""
        while True:
            passed = yield from self._call(source, passed)
            yield from source.space()
            if not (yield from source.accept("call:")):
                break
        if passed:
            raise Malformed
        yield from self._close(source)

    def _close(self, source: Source) -> Step[None]:
        yield from source.space()
        yield from source.accept(self._closer)

    def _call(self, source: Source, passed: str) -> Step[str]:
        """Reads a call and emits it, after the text `passed` of earlier calls of undeclared tools,
        which is content beside other calls of the block. Returns the text that is still to be
        emitted this way."""
        begin = source.position - len("call:")
        name = yield from source.run(NAME)
        yield from source.space()
        bracket = yield from source.expect("{", "(")
        if name not in source.calls.schemas:
            skipped = self._object(source, _Place({}, {}, 0))
            yield from (skipped if bracket == "{" else read_brackets(source, bracket))
            return passed + source.since(begin)
        if bracket == "(":
            source.calls.declared_schema(name)
            calls = yield from read_python(source, name + bracket)
            source.output.emit_beside(passed)
            emit_calls(source, calls)
        else:
            call = source.calls.open(name, before=passed)
            yield from self._arguments(source, call)
            call.end()
        return ""

    def _arguments(self, source: Source, call: OpenCall) -> Step[None]:
        """Reads arguments from behind the `{` of a call."""
        members = Members(call)
        place, separator = _Place(call.schema, call.schema, 0), ","
        while separator == ",":
            yield from source.space()
            if (yield from source.accept("}")):
                break
            key = yield from self._key(source)
            yield from source.space()
            yield from source.expect(":")
            yield from source.space()
            if members.takes_text(key) and (yield from source.accept(self._quote)):
                members.begin_text(key)
                yield from source.pass_to(self._quotes, members.text)
                members.end_text()
            else:
                members.value(key, (yield from self._value(source, place.member(key))))
            yield from source.space()
            separator = yield from source.expect(",", "}")
        members.close()

    def _tool_code(self, source: Source, opener: str) -> Step[None]:
        yield from source.space()
        begun: _Begun | None = None
        if (yield from source.accept("[")):
            emit_calls(source, (yield from read_call_list(source)))
        else:
            begun = yield from self._begin_line(source)
        while begun is not None:
            emit_calls(source, (yield from read_python(source, begun.text)))
            if begun.is_printed:
                yield from source.accept(")")
            begun = yield from source.maybe(self._begin_line(source))
        yield from source.space()
        yield from source.accept("```" if opener.startswith("```") else "print(tool_code)")

    def _begin_line(self, source: Source) -> Step["_Begun"]:
        """Reads the start of a call in Python; each call is on a line of its own."""
        yield from source.space()
        printed = yield from source.accept("print(")
        name = yield from read_declared_name(source)
        return _Begun(name + (yield from source.expect("(")), bool(printed))

    def _object(self, source: Source, place: _Place) -> Step[dict[str, Any]]:
        """Reads an object from behind its `{`."""
        value: dict[str, Any] = {}
        while True:
            yield from source.space()
            if (yield from source.accept("}")):
                return value
            key = yield from self._key(source)
            yield from source.space()
            yield from source.expect(":")
            value[key] = yield from self._value(source, place.member(key))
            yield from source.space()
            if (yield from source.expect(",", "}")) == "}":
                return value

    def _list(self, source: Source, place: _Place) -> Step[list[Any]]:
        """Reads a list from behind its `[`."""
        values: list[Any] = []
        while True:
            yield from source.space()
            if (yield from source.accept("]")):
                return values
            values.append((yield from self._value(source, place.item())))
            yield from source.space()
            if (yield from source.expect(",", "]")) == "]":
                return values

    def _key(self, source: Source) -> Step[str]:
        if (yield from source.accept(self._quote)):
            key, _ = yield from source.capture(self._quote)
            return key
        if (yield from source.peek()) == '"':
            return str((yield from source.json_value()))
        key = yield from source.run(_KEY)
        if not key:
            raise Malformed
        return key

    def _value(self, source: Source, place: _Place) -> Step[Any]:
        if place.depth > _DEPTH:
            raise Malformed
        yield from source.space()
        if (yield from source.accept(self._quote)):
            text, _ = yield from source.capture(self._quote)
            return text
        bracket = yield from source.accept("{", "[")
        if bracket == "{":
            return (yield from self._object(source, place))
        if bracket:
            return (yield from self._list(source, place))
        if (yield from source.peek()) == '"':
            return (yield from source.json_value())
        text = (yield from source.run(_BARE)).strip()
        if not text or source.at_end:
            raise Malformed
        return typed(text, place.schema, place.root)
