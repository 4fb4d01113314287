"""LongCat: the calls of `glm` in tags of its own, or JSON in the outer one."""

from node.parsing.calls.arg_pairs import PairCalls
from node.parsing.format import ReasoningFormat

LONGCAT = PairCalls("longcat", "longcat_")
LONGCAT_REASONING = ReasoningFormat("longcat", ("<longcat_think>",), ("</longcat_think>",))
