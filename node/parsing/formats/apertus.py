"""Calls as `<|tools_prefix|>[{"f": {…}}]<|tools_suffix|>`, and reasoning in `<|inner_prefix|>` …
`<|inner_suffix|>`: Apertus."""

import json
from collections.abc import Mapping, Sequence

from node.ipc.generate import ToolSchema
from node.parsing.calls.json_calls import close_block, read_marked_calls
from node.parsing.calls.json_members import CallShape
from node.parsing.calls.spelled_json import arguments_of, between, list_of
from node.parsing.constraints.lark import Lark
from node.parsing.format import ModelFamily, ReasoningFormat, ToolFormat
from node.parsing.parsed_calls import call_of
from node.parsing.scanning.sink import ParsedCall
from node.parsing.scanning.source import Source
from node.parsing.scanning.step import Malformed, Step


def _call(source: Source, value: object) -> ParsedCall:
    """Returns the call in an object whose only key is the tool's name."""
    if not isinstance(value, Mapping) or len(value) != 1:
        raise Malformed
    ((name, arguments),) = value.items()
    return call_of(source, name, arguments)


_SHAPE = CallShape(_call, lambda members, key: None if members else key)


class Apertus(ToolFormat):
    name = "apertus"
    openers = ("<|tools_prefix|>",)
    orphans = ("<|tools_suffix|>",)

    def calls_grammar(self, lark: Lark, tools: Sequence[ToolSchema], *, parallel: bool) -> str:
        space, calls = lark.space(), []
        for tool in tools:
            name = lark.text(json.dumps(tool.name, ensure_ascii=False))
            member = f"{name} {space} {lark.text(':')} {space} {arguments_of(lark, tool)}"
            calls.append(f"{lark.text('{')} {space} {member} {space} {lark.text('}')}")
        body = list_of(lark, lark.one_of(calls), parallel=parallel)
        return between(lark, self.openers[0], body, self.orphans[0])

    def read(self, source: Source, opener: str) -> Step[None]:
        yield from source.space()
        yield from read_marked_calls(source, shape=_SHAPE)
        yield from close_block(source, *self.orphans)


APERTUS = Apertus()
APERTUS_REASONING = ReasoningFormat("apertus", ("<|inner_prefix|>",), ("<|inner_suffix|>",))

FAMILY = ModelFamily(
    tool_calls=(APERTUS,),
    reasoning=(APERTUS_REASONING,),
)
