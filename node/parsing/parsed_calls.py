"""Turns a call as a model wrote it, in JSON or otherwise, into a `ParsedCall`, by one rule for all
formats.

A call names a tool of the request, and its arguments are an object, or a string that contains one.
If the arguments are missing, null or an empty string, they become an empty object only if the tool
requires none: arguments are never invented.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from node.parsing.json_text import read_json
from node.parsing.scanning.sink import ParsedCall
from node.parsing.scanning.source import Source
from node.parsing.scanning.step import Malformed

INNER = "function"
"""Key of an inner object that, in the output of some models, is the call."""
NAMES = ("name", INNER, "tool_name", "tool")
ARGUMENTS = ("arguments", "parameters", "args")
"""Keys that models use for the name and the arguments of a call. The first that is present
counts."""


def call_of(source: Source, name: object, arguments: object, call_id: str = "") -> ParsedCall:
    """Returns the call of a name with arguments: an object, its JSON text, or nothing. Raises
    `Malformed` if it is not a call."""
    if not isinstance(name, str) or name not in source.calls.schemas:
        raise Malformed
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        return ParsedCall(name, no_arguments(source, name), call_id)
    if isinstance(arguments, str):
        _object_in(arguments)
        return ParsedCall(name, arguments, call_id)
    if isinstance(arguments, Mapping):
        return ParsedCall(name, arguments, call_id)
    raise Malformed


def no_arguments(source: Source, name: str) -> dict[str, Any]:
    """Returns the arguments of a call that has none. Raises `Malformed` if the tool requires
    some."""
    if source.calls.schemas[name].get("required"):
        raise Malformed
    return {}


def json_call(source: Source, value: object) -> ParsedCall:
    """Returns the call in a JSON value such as `{"name": …, "arguments": {…}}`. Raises `Malformed`
    if it is not one."""
    if not isinstance(value, Mapping):
        raise Malformed
    inner = value.get(INNER)
    call = inner if isinstance(inner, Mapping) else value
    return call_of(source, first_of(call, NAMES), first_of(call, ARGUMENTS))


def emit_calls(source: Source, calls: Iterable[ParsedCall]) -> None:
    """Emits the calls in order. Raises `OutputEnded`."""
    for call in calls:
        source.calls.emit(*call)


def first_of(call: Mapping[str, Any], keys: tuple[str, ...]) -> object:
    return next((call[key] for key in keys if key in call), None)


def _object_in(text: str) -> Mapping[str, Any]:
    """Returns the object that a text spells. Raises `Malformed`."""
    value: Any = text
    try:
        # Some models write the object as a string within a string.
        for _ in range(2):
            value = read_json(value) if isinstance(value, str) else value
    except ValueError:
        raise Malformed from None
    if not isinstance(value, Mapping):
        raise Malformed
    return value
