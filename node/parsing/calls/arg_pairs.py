"""Arguments as `<arg_key>a</arg_key><arg_value>v</arg_value>`, which several formats write with
tags of their own. Values are bare text that may contain anything, like those of `invoke`."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from node.ipc.generate import ToolSchema
from node.parsing.calls.invoke import read_value
from node.parsing.calls.json_calls import (
    NAME,
    close_block,
    read_call,
    read_declared_name,
    read_marked_calls,
)
from node.parsing.calls.key_values import read_key_values
from node.parsing.calls.spelled_json import bare_name, blocks
from node.parsing.constraints.arguments import arguments_of
from node.parsing.constraints.lark import Lark
from node.parsing.format import ToolFormat
from node.parsing.scanning.source import Source
from node.parsing.scanning.step import Step
from node.parsing.values.bare_arguments import BareArguments
from node.parsing.values.raw_values import RawText, in_order, spell_raw, written_name

_BARE = re.compile(r"[^\s<]*")
"""Characters of a value without quotes."""


class PairTags(NamedTuple):
    key: str
    key_end: str
    value: str
    value_end: str
    ends: tuple[str, ...]
    """Texts that end the call."""
    note: str = ""
    """Start of a tag that may stand between key and value: the value's type, which the schema
    states too."""
    note_end: str = ""


def read_pairs(source: Source, tags: PairTags, name: str) -> Step[None]:
    """Reads the arguments of a call up to its end, or arguments such as `a=1 b=2`, and emits the
    call. Raises `Malformed`."""
    call = source.calls.open(name)
    arguments = BareArguments(call)
    yield from source.space()
    tag = yield from source.accept(tags.key, *tags.ends)
    if not tag:
        call.put((yield from read_key_values(source, call.schema, _BARE, *tags.ends)))
        call.end()
        return
    while tag == tags.key:
        key, _ = yield from source.capture(tags.key_end)
        yield from source.space()
        if tags.note and (yield from source.accept(tags.note)):
            yield from source.capture(tags.note_end)
            yield from source.space()
        yield from source.expect(tags.value)
        arguments.begin(key.strip())
        followers = (tags.key, *tags.ends)
        tag = yield from read_value(source, (tags.value_end,), followers, arguments.write)
        arguments.end()
    arguments.close()
    call.end()


def spell_call(
    lark: Lark,
    tool: ToolSchema,
    tags: PairTags,
    opener: str,
    separator: str = "",
) -> str:
    """Returns the expression of a call of the tool from its opener to its end, with its arguments
    as pairs. `separator` follows the name. Raises `UnsupportedConstraint`."""
    # Some models put each tag on a line of its own.
    line_end = lark.optional(lark.text("\n"))
    value = RawText(tags.value_end)
    pairs = []
    for argument in arguments_of(tool):
        name = written_name(
            argument.name, rf"(?!\s)(?:(?!{tags.key_end})[^\n])+(?<!\s)", argument.place
        )
        key = lark.text(f"{tags.key}{name}{tags.key_end}")
        pair = f"{key} {line_end} {lark.text(tags.value)} {spell_raw(lark, argument, value)}"
        pairs.append((f"{pair} {line_end}", argument.is_required))
    begin = lark.text(f"{opener}{bare_name(tool, NAME)}{separator}")
    return f"{begin} {line_end} {in_order(lark, pairs)} {lark.text(tags.ends[0])}"


class PairCalls(ToolFormat):
    """Calls with pairs of keys and values, in tags whose names begin with a prefix."""

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

    def calls_grammar(self, lark: Lark, tools: Sequence[ToolSchema], *, parallel: bool) -> str:
        calls = [spell_call(lark, tool, self._tags, self.openers[0]) for tool in tools]
        return blocks(lark, lark.one_of(calls), parallel=parallel)

    def read(self, source: Source, opener: str) -> Step[None]:
        yield from source.space()
        if (yield from source.peek()) in ("{", "["):
            yield from read_marked_calls(source)
            yield from close_block(source, self._end)
            return
        name = yield from read_declared_name(source)
        yield from source.space()
        if (yield from source.peek()) == "{":
            (yield from read_call(source, name, self._end)).end()
            return
        yield from read_pairs(source, self._tags, name)
