"""Calls as a JSON list in `<tool_calls>` … `</tool_calls>`: Jamba."""

from node.parsing.calls.json_calls import JsonCalls
from node.parsing.format import ModelFamily

JAMBA = JsonCalls("jamba", ("<tool_calls>",), ("</tool_calls>",))

FAMILY = ModelFamily(
    tool_calls=(JAMBA,),
)
