"""LFM2 and LFM2.5: calls as a Python list in `<|tool_call_start|>` … `<|tool_call_end|>`."""

from node.parsing.calls.bracket import with_recovery
from node.parsing.calls.python_blocks import PythonCalls, with_bare_lists
from node.parsing.format import ModelFamily

LFM2 = with_bare_lists(PythonCalls("lfm2", {"<|tool_call_start|>": "<|tool_call_end|>"}))

FAMILY = ModelFamily(
    tool_calls=(with_recovery(LFM2),),
    tool_call_aliases={"lfm2": ("lfm", "lfm2.5", "liquid", "liquidai")},
    yields_to=("granite",),
)
