"""Calls as a JSON list behind `functools`, or in `<|tool_call|>` … `<|/tool_call|>`: Phi-4 mini."""

from node.parsing.json_calls import JsonCalls

PHI4_FUNCTOOLS = JsonCalls("phi4_functools", ("functools[", "<|tool_call|>"), ("<|/tool_call|>",))
