"""Olmo 3: calls in Python, one a line, in `<function_calls>` … `</function_calls>`. The output of
its reasoning models begins within reasoning."""

from node.parsing.calls.python_blocks import PythonCalls
from node.parsing.format import ModelFamily, ReasoningFormat

OLMO3 = PythonCalls("olmo3", {"<function_calls>": "</function_calls>"}, in_lines=True)
OLMO3_REASONING = ReasoningFormat("olmo3", ("<think>",), ("</think>",), implicit=True)

FAMILY = ModelFamily(
    tool_calls=(OLMO3,),
    reasoning=(OLMO3_REASONING,),
    tool_call_aliases={"olmo3": ("olmo",)},
    reasoning_aliases={"olmo3": ("olmo",)},
)
