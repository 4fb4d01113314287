"""How an output is laid out that a request asks for."""

from node.ipc.generate import OutputFormat
from node.parsing.format import Grammar
from node.parsing.registry import grammar_for
from node.parsing.selection import NONE


def layout_of(output: OutputFormat) -> Grammar:
    """Raises `KeyError` for a format that is not known."""
    return grammar_for(output.reasoning, output.tool_calls, reads_calls=reads_calls(output))


def reads_calls(output: OutputFormat) -> bool:
    """Whether calls are read out of it."""
    return bool(output.tools) and output.tool_calls != NONE
