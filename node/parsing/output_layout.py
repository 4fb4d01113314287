"""Chooses the reader of the output that a request asks for."""

from node.ipc.generate import OutputFormat
from node.parsing.format import OutputLayout
from node.parsing.registry import layout_for
from node.parsing.selection import NONE


def layout_of(output: OutputFormat) -> OutputLayout:
    """Returns the reader of the output. Raises `KeyError` for an unknown format."""
    return layout_for(output.reasoning, output.tool_calls, reads_calls=reads_calls(output))


def reads_calls(output: OutputFormat) -> bool:
    """True if calls are to be read from the output."""
    return bool(output.tools) and output.tool_calls != NONE
