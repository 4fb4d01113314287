"""Reads the arguments of a call as a JSON object and emits them as they arrive.

The emitted text is strictly valid JSON and fits the tool's schema as far as `coercion` can make it;
text that is such JSON already is emitted as the model wrote it. Numbers, and strings where the
schema allows no string, are buffered until they are complete; everything else is emitted at once.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from node.parsing.coercion import (
    MOST_DEPTH,
    branch_of,
    fit,
    property_schema,
    types_of,
)
from node.parsing.json_text import DEPTH, is_strict_json, read_json, write_characters, write_json
from node.parsing.scanning.open_call import OpenCall
from node.parsing.scanning.source import Source
from node.parsing.scanning.step import Malformed, Step

_PLAIN = re.compile(
    r'(?:[^"\\\x00-\x1f\ud800-\udfff]++|\\(?:["\\/bfnrt]|u(?![dD][89a-fA-F])[0-9a-fA-F]{4}))*+'
)
"""Characters of a string that stand for themselves, and escapes of whole characters."""
_CODE = re.compile(r"\\u[0-9a-fA-F]{4}")
_HALF = re.compile(r"\\u[dD][89a-fA-F]")
_FIRST = re.compile(r"\\u[dD][89abAB]")
_SECOND = re.compile(r"\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_TORN = re.compile(r"|\\(?:u[0-9a-fA-F]{0,3})?")
"""The rest of an escape within which the output ends."""
_CODE_LENGTH = 6
_REPLACEMENT = "\\ufffd"
_SCALAR = re.compile(r"[\w.+\-]*")
_SPACE = re.compile(r"[^ \t\n\r]")


def read_json_arguments(source: Source, call: OpenCall) -> Step[None]:
    """Reads the object that comes as the arguments of the call. Raises `Malformed`."""
    if call.is_streamed:
        yield from _Reading(source, call).braced(call.schema, 0)
        return
    # Finding its end costs less than reading it in pieces.
    if (yield from source.peek()) != "{":
        raise Malformed
    call.put((yield from source.json()))


class _Reading:
    """Reads the arguments of one call."""

    def __init__(self, source: Source, call: OpenCall) -> None:
        self._source = source
        self._call = call
        self._write = call.write

    def braced(self, schema: object, depth: int) -> Step[None]:
        source, write, call = self._source, self._write, self._call
        inner = branch_of(schema, "object", call.schema) if isinstance(schema, Mapping) else {}
        yield from source.expect("{")
        write("{")
        yield from self._space()
        separator = yield from source.accept("}")
        write(separator)
        while separator != "}":
            name = yield from self._name()
            scalar = yield from self._scalar()
            if not depth:
                call.begin_member(name)
            if scalar:
                write(scalar)
            else:
                yield from self._value(property_schema(inner, name), depth + 1)
            yield from self._space()
            if not depth:
                call.end_member()
            separator = yield from source.expect(",", "}")
            write(separator)
            if separator == ",":
                yield from self._space()

    def _list(self, schema: object, depth: int) -> Step[None]:
        source, write = self._source, self._write
        items: object = None
        if isinstance(schema, Mapping):
            items = branch_of(schema, "array", self._call.schema).get("items")
        yield from source.expect("[")
        write("[")
        yield from self._space()
        separator = yield from source.accept("]")
        write(separator)
        while separator != "]":
            yield from self._value(items, depth + 1)
            yield from self._space()
            separator = yield from source.expect(",", "]")
            write(separator)
            if separator == ",":
                yield from self._space()

    def _value(self, schema: object, depth: int) -> Step[None]:
        if depth >= DEPTH:
            raise Malformed
        schema = schema if depth <= MOST_DEPTH else None
        first = yield from self._source.peek()
        if first == '"':
            yield from self._string(schema)
        elif first == "{":
            yield from self.braced(schema, depth)
        elif first == "[":
            yield from self._list(schema, depth)
        else:
            self._write((yield from self._scalar()))

    def _scalar(self) -> Step[str]:
        """Reads a number or a word as JSON; "" if another value comes. Raises `Malformed` if it is
        not a value."""
        if (yield from self._source.peek()) in ('"', "{", "["):
            return ""
        text = yield from self._source.run(_SCALAR)
        if self._source.at_end:
            raise Malformed
        try:
            return text if is_strict_json(text) else write_json(read_json(text))
        except ValueError:
            raise Malformed from None

    def _string(self, schema: object) -> Step[None]:
        types = types_of(schema, self._call.schema)
        if not types or "string" in types:
            yield from self._characters(self._write)
            return
        pieces: list[str] = []
        yield from self._characters(pieces.append)
        text = "".join(pieces)
        value = read_json(text)
        found = fit(value, schema, self._call.schema)
        self._write(text if found is value else write_json(found))

    def _name(self) -> Step[str]:
        """Reads the name of a member and the text up to its value."""
        pieces: list[str] = []
        if (yield from self._source.peek()) != '"':
            raise Malformed
        yield from self._characters(pieces.append)
        name = "".join(pieces)
        self._write(name)
        yield from self._space()
        self._write((yield from self._source.expect(":")))
        yield from self._space()
        value: Any = read_json(name)
        return str(value)

    def _characters(self, emit: Callable[[str], None]) -> Step[None]:
        """Passes a string, with its quotes, to `emit` as strictly valid JSON."""
        source = self._source
        emit((yield from source.expect('"')))
        while True:
            yield from source.pass_run(_PLAIN, emit)
            mark = yield from source.peek()
            if mark == '"':
                emit((yield from source.expect('"')))
                return
            if mark == "\\":
                emit((yield from self._escape()))
            elif mark:
                emit(write_characters((yield from source.expect(mark))))
            else:
                raise Malformed

    def _escape(self) -> Step[str]:
        """Waits for all of an escape and reads it unless it is plain; returns "" for a plain one. A
        backslash that begins no escape is a character. Raises `Malformed` if the output ends within
        it."""
        source = self._source
        ahead = yield from source.peek(2)
        if ahead[1:] == "u":
            ahead = yield from source.peek(_CODE_LENGTH)
        if _TORN.fullmatch(ahead):
            raise Malformed
        if _PLAIN.fullmatch(ahead):
            return ""
        if _HALF.match(ahead) and _CODE.fullmatch(ahead):
            yield from source.expect(ahead)
            return (yield from self._whole(ahead))
        yield from source.expect("\\")
        return "\\\\"

    def _whole(self, half: str) -> Step[str]:
        """Returns the escapes of a character, having read the first of a pair; a single surrogate
        is replaced."""
        source = self._source
        if not _FIRST.match(half):
            return _REPLACEMENT
        other = yield from source.peek()
        if other == "\\":
            other = yield from source.peek(_CODE_LENGTH)
        if _TORN.fullmatch(other):
            raise Malformed
        if _SECOND.fullmatch(other):
            return half + (yield from source.expect(other))
        return _REPLACEMENT

    def _space(self) -> Step[None]:
        space = yield from self._source.space()
        if space:
            self._write(_SPACE.sub(" ", space))
