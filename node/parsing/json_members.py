"""Objects in JSON that are calls, read member by member, so that it shows early that they are."""

import re
from typing import Any

from node.parsing.json_text import read_json
from node.parsing.source import Source
from node.parsing.step import Malformed, Step
from node.parsing.tell import ARGUMENTS, INNER, NAMES

_SCALAR = re.compile(r"[\w.+\-]*")


def read_call_object(source: Source) -> Step[dict[str, Any]]:
    """Reads an object that may be a call; its members. Raises `Malformed`."""
    members: dict[str, Any] = {}
    yield from source.expect("{")
    yield from source.space()
    separator = "}" if (yield from source.accept("}")) else ","
    while separator == ",":
        yield from source.space()
        key = yield from read_string(source)
        yield from source.space()
        yield from source.expect(":")
        yield from source.space()
        members[key] = yield from _read_member(source, key)
        yield from source.space()
        separator = yield from source.expect(",", "}")
    return members


def read_string(source: Source) -> Step[str]:
    """Reads a JSON string. Raises `Malformed`."""
    if (yield from source.peek()) != '"':
        raise Malformed
    value: Any = yield from source.json_value()
    return str(value)


def _read_member(source: Source, key: str) -> Step[Any]:
    if key in ARGUMENTS or key in source.schemas:
        source.allow_call_length()
    first = yield from source.peek()
    if key == INNER and first == "{":
        return (yield from read_call_object(source))
    value = yield from (source.json_value() if first in ("{", "[", '"') else _read_scalar(source))
    if key in NAMES and value in source.schemas:
        source.allow_call_length()
    return value


def _read_scalar(source: Source) -> Step[Any]:
    text = yield from source.run(_SCALAR)
    try:
        return read_json(text)
    except ValueError:
        raise Malformed from None
