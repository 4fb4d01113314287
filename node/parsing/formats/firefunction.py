"""Calls as a JSON list behind `functools`: FireFunction 2."""

from collections.abc import Sequence

from node.ipc.generate import ToolSchema
from node.parsing.calls.json_calls import JsonCalls
from node.parsing.constraints.lark import Lark
from node.parsing.format import ModelFamily


class Firefunction(JsonCalls):
    def calls_grammar(self, lark: Lark, tools: Sequence[ToolSchema], *, parallel: bool) -> str:
        """The model's template writes a space before the calls."""
        calls = super().calls_grammar(lark, tools, parallel=parallel)
        return f"{lark.optional(lark.text(' '))} {calls}"


FIREFUNCTION = Firefunction("firefunction", ("functools[",))

FAMILY = ModelFamily(
    tool_calls=(FIREFUNCTION,),
)
