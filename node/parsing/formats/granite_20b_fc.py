"""Calls as JSON objects, each behind `<function_call>`: Granite 20B for function calling."""

from node.parsing.calls.json_calls import JsonCalls, JsonSpelling
from node.parsing.format import ModelFamily

GRANITE_20B_FC = JsonCalls(
    "granite_20b_fc",
    ("<function_call>",),
    ("</function_call>",),
    spelling=JsonSpelling((("<function_call>", ""),), in_list=False),
)

FAMILY = ModelFamily(
    tool_calls=(GRANITE_20B_FC,),
)
