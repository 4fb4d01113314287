"""Granite 3 and 4: calls as a JSON list behind `<|tool_call|>` or `<tool_call>`.

The calls end with the list. Reasoning stands in tags, or between fixed phrases.
"""

from node.parsing.calls.json_calls import JsonCalls, JsonSpelling
from node.parsing.format import ModelFamily, ReasoningFormat

GRANITE = JsonCalls(
    "granite",
    ("<|tool_call|>", "<tool_call>"),
    ("</tool_call>",),
    starts=("[",),
    spelling=JsonSpelling((("<|tool_call|>", ""), ("<tool_call>", "</tool_call>"))),
)
GRANITE_REASONING = ReasoningFormat(
    "granite",
    openers=("<think>", "Here is my thought process:", "Here's my thought process:"),
    closers=("</think>", "Here is my response:", "Here's my response:"),
    dropped=("<response>", "</response>"),
    wrap=("<response>", "</response>"),
)

FAMILY = ModelFamily(
    tool_calls=(GRANITE,),
    reasoning=(GRANITE_REASONING,),
    tool_call_aliases={"granite": ("granite3",)},
    reasoning_aliases={"granite": ("granite3",)},
    yields_to=("ernie45", "glm", "hy_v3", "ling3"),
)
