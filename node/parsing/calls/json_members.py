"""JSON objects that are calls, read member by member: the tool's name usually comes first, so the
arguments can be emitted as they arrive."""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from node.parsing.calls.json_arguments import read_json_arguments
from node.parsing.json_text import read_json
from node.parsing.parsed_calls import ARGUMENTS, INNER, NAMES, first_of, json_call
from node.parsing.scanning.open_call import OpenCall
from node.parsing.scanning.sink import ParsedCall
from node.parsing.scanning.source import Source
from node.parsing.scanning.step import Malformed, NotACall, Step

_SCALAR = re.compile(r"[\w.+\-]*")


class CallShape(NamedTuple):
    """Defines which objects of a format are calls."""

    call_of: Callable[[Source, object], ParsedCall | None]
    """Returns the call that an element of a list is; None for an element to ignore. Raises
    `Malformed` if it is not a call."""
    tool_before: Callable[[Mapping[str, Any], str], object]
    """Returns the name of the tool whose arguments follow a key, given the members before it; None
    if no arguments follow."""
    is_streamed: bool = True
    """True if calls of a list may be emitted before the list has ended."""


def _named(members: Mapping[str, Any], key: str) -> object:
    return first_of(members, NAMES) if key in ARGUMENTS else None


STANDARD = CallShape(json_call, _named)
"""Calls as `{"name": …, "arguments": {…}}`, under any of the keys that models use."""


class Found(NamedTuple):
    """The content of an object."""

    members: dict[str, Any]
    """The members without the arguments of the call that was opened."""
    call: OpenCall | None
    """The call that was opened, with its arguments read."""


def read_json_call(
    source: Source,
    shape: CallShape = STANDARD,
    before: str = "",
    into: list[ParsedCall] | None = None,
) -> Step[None]:
    """Reads an object and emits its call, after the content `before`, or appends the call to
    `into`. Raises `NotACall` if the object is complete but not a call, `Malformed` if it breaks
    off."""
    found = yield from _Members(source, shape, before, is_opened=into is None).read()
    if found.call is not None:
        found.call.end()
        return
    try:
        call = shape.call_of(source, found.members)
    except Malformed:
        raise NotACall from None
    if call is None:
        raise NotACall
    if into is not None:
        into.append(call)
        return
    opened = source.calls.open(call.name, call.call_id, before=before)
    opened.put(call.arguments)
    opened.end()


def read_members(source: Source) -> Step[dict[str, Any]]:
    """Reads an object. Raises `Malformed`."""
    return (yield from _Members(source, STANDARD, "", is_opened=False).read()).members


def read_string(source: Source) -> Step[str]:
    """Reads a JSON string. Raises `Malformed`."""
    if (yield from source.peek()) != '"':
        raise Malformed
    value: Any = yield from source.json_value()
    return str(value)


class _Members:
    """Reads the members of an object that may be a call."""

    def __init__(self, source: Source, shape: CallShape, before: str, *, is_opened: bool) -> None:
        """`is_opened` is True if a call is opened when its arguments follow its name."""
        self._source = source
        self._shape = shape
        self._before = before
        self._is_opened = is_opened
        self._call: OpenCall | None = None

    def read(self) -> Step[Found]:
        members: dict[str, Any] = {}
        source = self._source
        yield from source.expect("{")
        yield from source.space()
        separator = "}" if (yield from source.accept("}")) else ","
        while separator == ",":
            yield from source.space()
            key = yield from read_string(source)
            yield from source.space()
            yield from source.expect(":")
            yield from source.space()
            yield from self._read_member(members, key)
            yield from source.space()
            separator = yield from source.expect(",", "}")
        return Found(members, self._call)

    def _read_member(self, members: dict[str, Any], key: str) -> Step[None]:
        source = self._source
        first = yield from source.peek()
        tool = self._shape.tool_before(members, key)
        opens = self._is_opened and self._call is None and first == "{"
        if opens and _is_tool(source, tool):
            self._call = source.calls.open(str(tool), before=self._before)
            yield from read_json_arguments(source, self._call)
        elif key == INNER and first == "{":
            members[key] = (yield from self.read()).members
        else:
            members[key] = yield from _read_value(source, key, first)


def _is_tool(source: Source, name: object) -> bool:
    return isinstance(name, str) and name in source.calls.schemas


def _read_value(source: Source, key: str, first: str) -> Step[Any]:
    if key in ARGUMENTS or key in source.calls.schemas:
        source.block.allow_call_length()
    value = yield from (source.json_value() if first in ("{", "[", '"') else _read_scalar(source))
    if key in NAMES and _is_tool(source, value):
        source.block.allow_call_length()
    return value


def _read_scalar(source: Source) -> Step[Any]:
    text = yield from source.run(_SCALAR)
    try:
        return read_json(text)
    except ValueError:
        raise Malformed from None
