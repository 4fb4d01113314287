"""Calls as a Python list in `<|tool_call_start|>` … `<|tool_call_end|>`: LFM2 and LFM2.5."""

from node.parsing.pythonic import PythonCalls

LFM2 = PythonCalls("lfm2", {"<|tool_call_start|>": "<|tool_call_end|>"})
