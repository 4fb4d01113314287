"""Arguments as `a="v" n=1`, which models write in place of their own spelling."""

import re
from typing import Any

from node.parsing.calls.json_calls import NAME
from node.parsing.calls.json_members import read_string
from node.parsing.coercion import Schema, property_schema, typed
from node.parsing.scanning.source import Source
from node.parsing.scanning.step import Malformed, Step


def read_key_values(
    source: Source, schema: Schema, bare: "re.Pattern[str]", *ends: str
) -> Step[dict[str, Any]]:
    """Reads arguments of a tool's schema up to one of the ends. `bare` matches the characters of a
    value without quotes. Raises `Malformed`."""
    arguments: dict[str, Any] = {}
    while True:
        yield from source.space()
        if (yield from source.accept(*ends)):
            return arguments
        key = yield from source.run(NAME)
        yield from source.expect("=")
        arguments[key] = yield from read_loose_value(source, schema, key, bare)
        yield from source.accept(",")


def read_loose_value(
    source: Source, schema: Schema, key: str, bare: "re.Pattern[str]"
) -> Step[Any]:
    """Reads a value that is JSON, or text with or without quotes. Raises `Malformed`."""
    first = yield from source.peek()
    if first in ("{", "["):
        return (yield from source.json_value())
    if first == '"':
        text = yield from read_string(source)
    elif (yield from source.accept("'")):
        text, _ = yield from source.capture("'")
    else:
        text = (yield from source.run(bare)).strip().removesuffix(",")
        if not text:
            raise Malformed
    return typed(text, property_schema(schema, key), schema)
