"""Calls of Command R+: the word `Action:`, then a JSON fence with a list of
`{"tool_name": …, "parameters": {…}}`."""

from collections.abc import Sequence

from node.ipc.generate import ToolSchema
from node.parsing.calls.json_calls import close_block, read_marked_calls
from node.parsing.calls.spelled_json import between, call_objects, list_of
from node.parsing.constraints.lark import Lark
from node.parsing.format import ModelFamily, ToolFormat
from node.parsing.scanning.source import Source
from node.parsing.scanning.step import Step


class CommandRPlus(ToolFormat):
    name = "command_r_plus"
    openers = ("Action:",)

    def read(self, source: Source, opener: str) -> Step[None]:
        yield from source.space()
        yield from source.expect("```json")
        yield from source.space()
        yield from read_marked_calls(source)
        yield from close_block(source, "```")

    def calls_grammar(self, lark: Lark, tools: Sequence[ToolSchema], *, parallel: bool) -> str:
        call = call_objects(lark, tools, ("tool_name",), ("parameters",))
        calls = list_of(lark, call, parallel=parallel)
        return between(lark, "Action:", between(lark, "```json", calls, "```"), "")


COMMAND_R_PLUS = CommandRPlus()

FAMILY = ModelFamily(
    tool_calls=(COMMAND_R_PLUS,),
    is_marked=False,
)
