"""Calls in Python's syntax, one a line, in `<function_calls>` … `</function_calls>`: Olmo 3. Its
reasoning models begin within reasoning."""

from node.parsing.format import ReasoningFormat
from node.parsing.python_blocks import PythonCalls

OLMO3 = PythonCalls("olmo3", {"<function_calls>": "</function_calls>"}, in_lines=True)
OLMO3_REASONING = ReasoningFormat("olmo3", ("<think>",), ("</think>",), implicit=True)
