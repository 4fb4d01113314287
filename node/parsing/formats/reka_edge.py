"""Reka Edge: calls as JSON in `<tool_call>` … `</tool_call>`."""

from node.parsing.calls.json_calls import JsonCalls, JsonSpelling
from node.parsing.format import ModelFamily

REKA_EDGE = JsonCalls(
    "reka_edge", ("<tool_call>",), ("</tool_call>",), spelling=JsonSpelling(in_list=False)
)

FAMILY = ModelFamily(
    tool_calls=(REKA_EDGE,),
    tool_call_aliases={"reka_edge": ("reka",)},
)
