"""LongCat: the calls of `glm` in tags of its own, or JSON in the outer one."""

from node.parsing.format import ReasoningFormat
from node.parsing.glm import PairCalls

LONGCAT = PairCalls("longcat", "longcat_")
LONGCAT_REASONING = ReasoningFormat("longcat", ("<longcat_think>",), ("</longcat_think>",))
