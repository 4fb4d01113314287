"""JSON values of a body as the rest of the program may have them."""

import math
from typing import Any

from node.errors import BadRequest

_VALUES = ("const", "enum")
_NAMED_SCHEMAS = ("$defs", "definitions", "patternProperties", "properties")
"""Keywords of JSON Schema whose value is no schema, and those that hold schemas by name."""


def json_without_null(value: Any, path: str) -> Any:
    """The value without the fields that are null, deeply; a list keeps its nulls. Raises
    `BadRequest` for numbers that JSON's readers do not share."""
    if isinstance(value, dict):
        return {
            key: json_without_null(each, path) for key, each in value.items() if each is not None
        }
    if isinstance(value, list):
        return [json_without_null(each, path) for each in value]
    return _shared(value, path)


def tool_schema(schema: Any, path: str) -> Any:
    """A JSON schema without its keywords that are null, deeply, as some clients send those that
    they do not use. The values of `const` and `enum` stay as they are. Raises as
    `json_without_null`."""
    if isinstance(schema, list):
        return [tool_schema(each, path) for each in schema]
    if not isinstance(schema, dict):
        return _shared(schema, path)
    return {
        key: _keyword(key, value, path)
        for key, value in schema.items()
        if value is not None or key == "const"
    }


def _keyword(key: str, value: Any, path: str) -> Any:
    if key in _VALUES:
        return _as_it_is(value, path)
    if key in _NAMED_SCHEMAS and isinstance(value, dict):
        # Names are no keywords, whatever they are.
        named = ((name, each) for name, each in value.items() if each is not None)
        return {name: tool_schema(each, path) for name, each in named}
    return tool_schema(value, path)


def _as_it_is(value: Any, path: str) -> Any:
    if isinstance(value, dict):
        return {key: _as_it_is(each, path) for key, each in value.items()}
    if isinstance(value, list):
        return [_as_it_is(each, path) for each in value]
    return _shared(value, path)


def _shared(value: Any, path: str) -> Any:
    """A value that is no container, as long as all readers of JSON have the same of it."""
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise BadRequest(f"{path} holds an integer of more than 64 bits.", param=path)
    if isinstance(value, float) and not math.isfinite(value):
        raise BadRequest(f"{path} holds a number that is not finite.", param=path)
    return value
