"""Calls of Command R+: the word `Action:`, then a JSON fence with a list of
`{"tool_name": …, "parameters": {…}}`."""

from node.parsing.format import ToolFormat
from node.parsing.json_calls import close_block, read_marked_calls
from node.parsing.source import Source, Step


class CommandRPlus(ToolFormat):
    name = "command_r_plus"
    openers = ("Action:",)

    def read(self, source: Source, opener: str) -> Step[None]:
        yield from source.space()
        yield from source.expect("```json")
        yield from source.space()
        yield from read_marked_calls(source)
        yield from close_block(source, "```")


COMMAND_R_PLUS = CommandRPlus()
