"""Calls as JSON in `<tool_call>` … `</tool_call>`, as the Hermes models write them: Reka Edge."""

from node.parsing.json_calls import JsonCalls

REKA_EDGE = JsonCalls("reka_edge", ("<tool_call>",), ("</tool_call>",))
