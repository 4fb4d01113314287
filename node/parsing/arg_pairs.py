"""Arguments as `<arg_key>a</arg_key><arg_value>v</arg_value>`, which several formats write under
tags of their own. Values are bare text that may hold anything, as those of `invoke`."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from node.parsing.coercion import property_schema, typed
from node.parsing.invoke import read_value
from node.parsing.source import Source, Step


class PairTags(NamedTuple):
    key: str
    key_end: str
    value: str
    value_end: str
    ends: tuple[str, ...]
    """What ends the call."""
    note: str = ""
    """What may stand between key and value: the value's type, which the schema knows as well."""
    note_end: str = ""


def read_pairs(
    source: Source,
    tags: PairTags,
    schema: Mapping[str, Any],
    value: Callable[[str, object, Mapping[str, Any]], Any] = typed,
) -> Step[dict[str, Any]]:
    """Reads arguments up to the call's end; `value` is what the text of one says by its schema and
    the tool's. Raises `Malformed`."""
    arguments: dict[str, Any] = {}
    yield from source.space()
    tag = yield from source.expect(tags.key, *tags.ends)
    while tag == tags.key:
        key, _ = yield from source.capture(tags.key_end)
        yield from source.space()
        if tags.note and (yield from source.accept(tags.note)):
            yield from source.capture(tags.note_end)
            yield from source.space()
        yield from source.expect(tags.value)
        text, tag = yield from read_value(source, (tags.value_end,), (tags.key, *tags.ends))
        key = key.strip()
        arguments[key] = value(text, property_schema(schema, key), schema)
    return arguments
