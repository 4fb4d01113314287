"""Calls as JSON objects, alone or in a list, between the markers that a model family has for them.

Families that differ in nothing but markers are data here: each has a file of its own.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from node.parsing.format import ToolFormat
from node.parsing.hermes import tell_json_call
from node.parsing.json_text import read_json
from node.parsing.source import Malformed, Source, Step
from node.types import PartKind

NAME = re.compile(r"[^\s\[\](){}<>=,;\"']*")
"""Characters of a function's name where it stands bare."""

Tell = Callable[[Source, Any], None]
"""Tells the call that a JSON value is. Raises `Malformed` where it is none."""


class JsonCalls(ToolFormat):
    """`{"name": …, "arguments": {…}}`, or a list of such, between markers."""

    def __init__(
        self,
        name: str,
        openers: tuple[str, ...],
        closers: tuple[str, ...] = (),
        starts: tuple[str, ...] = (),
    ) -> None:
        """An opener that ends with a bracket begins the list. `starts` are brackets and braces:
        what they begin has to be nothing but calls."""
        self.name = name
        self.openers = openers
        self.orphans = closers
        self.starts = starts

    def read(self, source: Source, opener: str) -> Step[None]:
        if opener in self.starts:
            yield from read_bare_calls(source, opener)
            return
        yield from source.space()
        yield from read_marked_calls(source, in_list=opener.endswith("["))
        yield from close_block(source, *self.orphans)


def read_marked_calls(
    source: Source, *, in_list: bool = False, tell: Tell = tell_json_call
) -> Step[None]:
    """Reads the list that comes, or began before (`in_list`), or else the objects that come.
    Raises `Malformed`."""
    if not in_list:
        in_list = bool((yield from source.accept("[")))
    if in_list:
        yield from source.space()
        if (yield from source.accept("]")):
            source.edge()
            return
    while True:
        call = yield from source.json_value()
        tell(source, call)
        yield from source.space()
        if in_list:
            if (yield from source.expect(",", "]")) == "]":
                return
        elif not (yield from source.accept(",", ";")) and (yield from source.peek()) != "{":
            return
        yield from source.space()


def read_bare_calls(source: Source, opener: str, said: str = "") -> Step[None]:
    """Reads calls that nothing marks: a list of them, or objects parted by `;`. It has begun with
    `opener`; `said` is content before the first. Raises `Malformed` as soon as it cannot be a
    call."""
    in_list = opener == "["
    if in_list:
        yield from source.space()
        yield from source.expect("{")
    while True:
        name, arguments = yield from read_exact_call(source)
        yield from source.space()
        end = (yield from source.expect(",", "]")) if in_list else ""
        source.say(PartKind.CONTENT, said)
        said = ""
        source.call(name, arguments)
        if end == "]":
            return
        parted = end or (yield from source.accept(";", ","))
        yield from source.space()
        if not parted and (yield from source.peek()) != "{":
            return
        yield from source.expect("{")


def read_exact_call(source: Source) -> Step[tuple[str, Mapping[str, Any]]]:
    """Reads on behind the `{` of an object that has to be exactly a call: the name of a declared
    tool, arguments, and nothing else. (name, arguments). Raises `Malformed`."""
    name = ""
    arguments: Mapping[str, Any] | None = None
    while True:
        yield from source.space()
        key = yield from read_string(source)
        yield from source.space()
        yield from source.expect(":")
        yield from source.space()
        if key == "name" and not name:
            name = yield from read_string(source)
            if name not in source.schemas:
                raise Malformed
        elif key in ("arguments", "parameters") and arguments is None:
            arguments = yield from read_object(source)
        elif key != "type" or (yield from read_string(source)) != "function":
            raise Malformed
        yield from source.space()
        if (yield from source.expect(",", "}")) == "}":
            break
    if not name or arguments is None:
        raise Malformed
    return name, arguments


def read_string(source: Source) -> Step[str]:
    """Reads a JSON string. Raises `Malformed`."""
    if (yield from source.peek()) != '"':
        raise Malformed
    value: Any = yield from source.json_value()
    return str(value)


def read_declared_name(source: Source) -> Step[str]:
    """Reads the bare name of a tool that may be called. Raises `Malformed`."""
    name = yield from source.run(NAME)
    if name not in source.schemas:
        raise Malformed
    return name


def read_object(source: Source) -> Step[Mapping[str, Any]]:
    """Reads a JSON object, or a string that holds one. Raises `Malformed`."""
    value = yield from source.json_value()
    if isinstance(value, str):
        try:
            value = read_json(value)
        except ValueError:
            raise Malformed from None
    if not isinstance(value, Mapping):
        raise Malformed
    return value


def close_block(source: Source, *closers: str) -> Step[None]:
    """Reads what ends the block, if it comes: some models stop without it."""
    if closers:
        yield from source.space()
        yield from source.accept(*closers)


def read_arguments(source: Source, *ends: str) -> Step[str]:
    """Reads a call's arguments, then one of the ends, which may be missing behind an object; their
    JSON text. Nothing before an end is no arguments. Raises `Malformed`."""
    yield from source.space()
    if (yield from source.accept(*ends)):
        return "{}"
    text = yield from source.json()
    yield from close_block(source, *ends)
    return text
