"""Calls as `<start_function_call>call:f{a:<escape>v<escape>,n:1}<end_function_call>`:
FunctionGemma."""

from node.parsing.calls.braced_calls import BracedCalls
from node.parsing.format import ModelFamily

FUNCTIONGEMMA = BracedCalls(
    "functiongemma",
    ("<start_function_call>", "<end_function_call>"),
    "<escape>",
    stop_tokens=("<start_function_response>",),
)

FAMILY = ModelFamily(
    tool_calls=(FUNCTIONGEMMA,),
    tool_call_aliases={"functiongemma": ("function_gemma",)},
)
