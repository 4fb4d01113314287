"""Calls as a name and pairs of keys and values in `<tool_call>`: GLM-4.5 to GLM-5, Laguna, Ling 3.

The values are bare text where they are strings, else JSON. Some outputs have JSON for the whole
call, or for all its arguments.
"""

from collections.abc import Mapping
from typing import Any

from node.parsing.arg_pairs import PairTags, read_pairs
from node.parsing.coercion import typed, types_of
from node.parsing.format import ReasoningFormat, ToolFormat
from node.parsing.json_calls import (
    close_block,
    read_arguments,
    read_declared_name,
    read_marked_calls,
)
from node.parsing.json_text import read_json
from node.parsing.source import Source, Step


class PairCalls(ToolFormat):
    """Such calls in tags whose names begin with a prefix."""

    def __init__(self, name: str, prefix: str = "") -> None:
        self.name = name
        self.openers = (f"<{prefix}tool_call>",)
        self._end = f"</{prefix}tool_call>"
        self.orphans = (self._end,)
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
        if not source.has_spoken and (yield from source.accept(self._end)):
            source.edge()
            return
        name = yield from read_declared_name(source)
        yield from source.space()
        if (yield from source.peek()) == "{":
            source.call(name, (yield from read_arguments(source, self._end)))
            return
        arguments = yield from read_pairs(source, self._tags, source.schemas[name], _value)
        source.call(name, arguments)


def _value(text: str, schema: object, root: Mapping[str, Any]) -> Any:
    # These models quote some of their strings.
    if text.startswith('"') and "string" in types_of(schema, root):
        try:
            found = read_json(text)
        except ValueError:
            return text
        return found if isinstance(found, str) else text
    return typed(text, schema, root)


GLM = PairCalls("glm")
GLM_REASONING = ReasoningFormat(
    "glm",
    ("<think>",),
    ("</think>",),
    dropped=("<|begin_of_box|>", "<|end_of_box|>"),
)
"""As `think`; the models that see images put their answer in a box."""
