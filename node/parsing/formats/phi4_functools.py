"""Phi-4 mini: calls as a JSON list behind `functools`, or in `<|tool_call|>` … `<|/tool_call|>`."""

from collections.abc import Sequence

from node.ipc.generate import ToolSchema
from node.parsing.calls.json_calls import JsonCalls
from node.parsing.calls.spelled_json import between, call_objects, list_of
from node.parsing.constraints.lark import Lark
from node.parsing.format import ModelFamily


class Phi4Functools(JsonCalls):
    def calls_grammar(self, lark: Lark, tools: Sequence[ToolSchema], *, parallel: bool) -> str:
        """Allows both spellings, since the vocabulary does not show which one the model has
        learned."""
        call = call_objects(lark, tools)
        bare = list_of(lark, call, parallel=parallel, begin="functools[")
        calls = list_of(lark, call, parallel=parallel)
        return lark.one_of([bare, between(lark, "<|tool_call|>", calls, "<|/tool_call|>")])


PHI4_FUNCTOOLS = Phi4Functools(
    "phi4_functools", ("functools[", "<|tool_call|>"), ("<|/tool_call|>",)
)

FAMILY = ModelFamily(
    tool_calls=(PHI4_FUNCTOOLS,),
    tool_call_aliases={"phi4_functools": ("phi4_mini_json", "phi4_mini")},
    yields_to=("granite",),
)
