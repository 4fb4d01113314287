"""Calls as a list in Python's syntax: Llama 3.2 and 4 write `[f(a="v"), g()]`, bare or between
`<|python_start|>` and `<|python_end|>`."""

from node.parsing.calls.python_blocks import OrBare, PythonCalls

PYTHONIC = OrBare(
    PythonCalls(
        "pythonic",
        {"<|python_start|>": "<|python_end|>", "<|tool_call_start|>": "<|tool_call_end|>"},
    )
)
