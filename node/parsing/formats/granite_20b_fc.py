"""Calls as JSON objects, each behind `<function_call>`: Granite 20B for function calling."""

from node.parsing.calls.json_calls import JsonCalls, Written

GRANITE_20B_FC = JsonCalls(
    "granite_20b_fc",
    ("<function_call>",),
    ("</function_call>",),
    written=Written((("<function_call>", ""),), in_list=False),
)
