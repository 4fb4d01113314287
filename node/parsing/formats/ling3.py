"""Ling 3: calls like `glm`, with a marker at the end of a turn that is written as text."""

from node.parsing.calls.arg_pairs import PairCalls
from node.parsing.calls.json_calls import close_block
from node.parsing.format import ModelFamily, ReasoningFormat
from node.parsing.scanning.source import Source
from node.parsing.scanning.step import Step

_TURN_END = "<|role_end|>"

LING3_REASONING = ReasoningFormat("ling3", ("<think>",), ("</think>",), dropped=(_TURN_END,))


class Ling3Calls(PairCalls):
    def read(self, source: Source, opener: str) -> Step[None]:
        yield from super().read(source, opener)
        yield from close_block(source, _TURN_END)


LING3 = Ling3Calls("ling3")

FAMILY = ModelFamily(
    tool_calls=(LING3,),
    reasoning=(LING3_REASONING,),
    tool_call_aliases={"ling3": ("ling",)},
    reasoning_aliases={"ling3": ("ling",)},
)
