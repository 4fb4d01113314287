"""Calls as a Python list in `<|tool_call_start|>` … `<|tool_call_end|>`: LFM2 and LFM2.5."""

from node.parsing.calls.python_blocks import PythonCalls, or_bare

LFM2 = or_bare(PythonCalls("lfm2", {"<|tool_call_start|>": "<|tool_call_end|>"}))
