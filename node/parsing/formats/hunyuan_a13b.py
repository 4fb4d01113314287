"""Hunyuan A13B: calls as a JSON list in `<tool_calls>` … `</tool_calls>`; behind reasoning the
answer stands in `<answer>` … `</answer>`."""

from node.parsing.calls.json_calls import JsonCalls, close_block
from node.parsing.format import ModelFamily, ReasoningFormat
from node.parsing.scanning.source import Source
from node.parsing.scanning.step import Step

_ANSWER_END = "</answer>"
_ANSWER = ("<answer>", _ANSWER_END)

HUNYUAN_A13B_REASONING = ReasoningFormat(
    "hunyuan_a13b", ("<think>",), ("</think>",), dropped=_ANSWER, wrap=_ANSWER
)


class HunyuanA13B(JsonCalls):
    def read(self, source: Source, opener: str) -> Step[None]:
        yield from super().read(source, opener)
        yield from close_block(source, _ANSWER_END)


HUNYUAN_A13B = HunyuanA13B("hunyuan_a13b", ("<tool_calls>",), ("</tool_calls>",))

FAMILY = ModelFamily(
    tool_calls=(HUNYUAN_A13B,),
    reasoning=(HUNYUAN_A13B_REASONING,),
    tool_call_aliases={"hunyuan_a13b": ("hunyuan",)},
    reasoning_aliases={"hunyuan_a13b": ("hunyuan",)},
)
