"""LongCat: calls like `glm` in tags of its own, or JSON in the outer tag."""

from node.parsing.calls.arg_pairs import PairCalls
from node.parsing.format import ModelFamily, ReasoningFormat

LONGCAT = PairCalls("longcat", "longcat_")
LONGCAT_REASONING = ReasoningFormat("longcat", ("<longcat_think>",), ("</longcat_think>",))

FAMILY = ModelFamily(
    tool_calls=(LONGCAT,),
    reasoning=(LONGCAT_REASONING,),
    tool_call_aliases={"longcat": ("longcat_flash_lite",)},
    reasoning_aliases={"longcat": ("longcat_flash_lite",)},
)
