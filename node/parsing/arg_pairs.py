"""Arguments as `<arg_key>a</arg_key><arg_value>v</arg_value>`, which several formats write under
tags of their own. Values are bare text that may hold anything, as those of `invoke`."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from node.parsing.coercion import property_schema, typed, types_of
from node.parsing.format import ToolFormat
from node.parsing.invoke import read_value
from node.parsing.json_calls import (
    close_block,
    read_arguments,
    read_declared_name,
    read_marked_calls,
)
from node.parsing.json_text import read_json
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


class PairCalls(ToolFormat):
    """Such calls in tags whose names begin with a prefix."""

    def __init__(self, name: str, prefix: str = "") -> None:
        self.name = name
        self.openers = (f"<{prefix}tool_call>",)
        self._end = f"</{prefix}tool_call>"
        self.orphans = (self._end,)
        self.blanks = ((self.openers[0], self._end),)
        self._tags = PairTags(
            f"<{prefix}arg_key>",
            f"</{prefix}arg_key>",
            f"<{prefix}arg_value>",
            f"</{prefix}arg_value>",
            (self._end,),
        )

    def read(self, source: Source, opener: str) -> Step[None]:
        yield from source.space()
        if (yield from source.peek()) in ("{", "["):
            yield from read_marked_calls(source)
            yield from close_block(source, self._end)
            return
        name = yield from read_declared_name(source)
        yield from source.space()
        if (yield from source.peek()) == "{":
            source.call(name, (yield from read_arguments(source, name, self._end)))
            return
        arguments = yield from read_pairs(source, self._tags, source.schemas[name], _quoted)
        source.call(name, arguments)


def _quoted(text: str, schema: object, root: Mapping[str, Any]) -> Any:
    # These models quote some of their strings.
    if text.startswith('"') and "string" in types_of(schema, root):
        try:
            found = read_json(text)
        except ValueError:
            return text
        return found if isinstance(found, str) else text
    return typed(text, schema, root)
