"""Calls as `<start_function_call>call:f{a:<escape>v<escape>,n:1}<end_function_call>`:
FunctionGemma."""

from node.parsing.calls.braced_calls import BracedCalls

FUNCTIONGEMMA = BracedCalls(
    "functiongemma",
    ("<start_function_call>", "<end_function_call>"),
    "<escape>",
    stop_tokens=("<start_function_response>",),
)
