"""Llama 3.2 and 4: calls as a Python list, `[f(a="v"), g()]`, bare or between `<|python_start|>`
and `<|python_end|>`."""

from node.parsing.calls.python_blocks import MarkedOrBareCalls, PythonCalls
from node.parsing.format import ModelFamily

PYTHONIC = MarkedOrBareCalls(
    PythonCalls(
        "pythonic",
        {"<|python_start|>": "<|python_end|>", "<|tool_call_start|>": "<|tool_call_end|>"},
    )
)

FAMILY = ModelFamily(
    tool_calls=(PYTHONIC,),
    tool_call_aliases={"pythonic": ("llama4_pythonic",)},
)
