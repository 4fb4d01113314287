"""Calls as a JSON list in `<tool_calls>` … `</tool_calls>`: Jamba."""

from node.parsing.calls.json_calls import JsonCalls

JAMBA = JsonCalls("jamba", ("<tool_calls>",), ("</tool_calls>",))
