"""From what a model wrote of a call, in JSON or otherwise, to the call: one rule for all formats.

A call names a tool of the request, and its arguments are an object, or a string that holds one.
Where there are none at all, or null, or an empty string, they are an empty object only if the tool
has no required ones: a call is never made up.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from node.parsing.json_text import read_json
from node.parsing.scanning.sink import Call
from node.parsing.scanning.source import Source
from node.parsing.scanning.step import Malformed

INNER = "function"
"""What some models call an object within the object, which is the call."""
NAMES = ("name", INNER, "tool_name", "tool")
ARGUMENTS = ("arguments", "parameters", "args")
"""What models call the parts of a call. The first that is there counts."""


def call_of(source: Source, name: object, arguments: object, call_id: str = "") -> Call:
    """The call of a name with arguments, which are an object, JSON text of one, or nothing. Raises
    `Malformed` where it is none."""
    if not isinstance(name, str) or name not in source.schemas:
        raise Malformed
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        return Call(name, no_arguments(source, name), call_id)
    if isinstance(arguments, str):
        _object_in(arguments)
        return Call(name, arguments, call_id)
    if isinstance(arguments, Mapping):
        return Call(name, arguments, call_id)
    raise Malformed


def no_arguments(source: Source, name: str) -> dict[str, Any]:
    """The arguments of a call that has none. Raises `Malformed` where the tool wants some."""
    if source.schemas[name].get("required"):
        raise Malformed
    return {}


def json_call(source: Source, value: object) -> Call:
    """The call that a JSON value is, such as `{"name": …, "arguments": {…}}`. Raises `Malformed`
    where it is none."""
    if not isinstance(value, Mapping):
        raise Malformed
    inner = value.get(INNER)
    call = inner if isinstance(inner, Mapping) else value
    return call_of(source, first_of(call, NAMES), first_of(call, ARGUMENTS))


def tell(source: Source, calls: Iterable[Call]) -> None:
    """Tells them in order. Raises `Finished`."""
    for call in calls:
        source.call(*call)


def first_of(call: Mapping[str, Any], keys: tuple[str, ...]) -> object:
    return next((call[key] for key in keys if key in call), None)


def _object_in(text: str) -> Mapping[str, Any]:
    """The object that a text spells. Raises `Malformed`."""
    value: Any = text
    try:
        # Some models write the string of a string.
        for _ in range(2):
            value = read_json(value) if isinstance(value, str) else value
    except ValueError:
        raise Malformed from None
    if not isinstance(value, Mapping):
        raise Malformed
    return value
