"""Normalizes JSON values of a body for the code behind the dialects."""

import math
from typing import Any

from node.errors import BadRequest

_VALUES = ("const", "enum")
_NAMED_SCHEMAS = ("$defs", "definitions", "patternProperties", "properties")
"""Keywords of JSON Schema: those whose value is not a schema, and those whose value maps names to
schemas."""


def json_without_null(value: Any, path: str) -> Any:
    """Returns the value without its null fields, at any depth; lists keep their nulls. Raises
    `BadRequest` for numbers that JSON parsers treat differently."""
    if isinstance(value, dict):
        return {
            key: json_without_null(each, path) for key, each in value.items() if each is not None
        }
    if isinstance(value, list):
        return [json_without_null(each, path) for each in value]
    return _shared(value, path)


def tool_schema(schema: Any, path: str) -> Any:
    """Returns a JSON schema without its null keywords, at any depth: some clients send null for
    keywords that they do not use. The values of `const` and `enum` stay as they are. Raises as
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
        # The keys here are names, not keywords, even where they look like one.
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
    """Returns a scalar if all JSON parsers read the same value from it, else raises
    `BadRequest`."""
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise BadRequest(f"{path} has an integer of more than 64 bits.", param=path)
    if isinstance(value, float) and not math.isfinite(value):
        raise BadRequest(f"{path} has a number that is not finite.", param=path)
    return value
