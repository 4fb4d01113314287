"""ERNIE 4.5: the output begins within reasoning; the answer may stand in `<response>` …
`</response>`. Calls like `hermes`."""

from node.parsing.calls.json_calls import JsonCalls, JsonSpelling
from node.parsing.format import ModelFamily, ReasoningFormat

ERNIE45 = JsonCalls(
    "ernie45", ("<tool_call>",), ("</tool_call>",), spelling=JsonSpelling(in_list=False)
)
ERNIE45_REASONING = ReasoningFormat(
    "ernie45",
    ("<think>",),
    ("</think>",),
    implicit=True,
    dropped=("<response>", "</response>"),
    wrap=("<response>", "</response>"),
)

FAMILY = ModelFamily(
    tool_calls=(ERNIE45,),
    reasoning=(ERNIE45_REASONING,),
    tool_call_aliases={"ernie45": ("ernie", "ernie_4_5")},
    reasoning_aliases={"ernie45": ("ernie", "ernie_4_5")},
    yields_to=("glm", "hy_v3", "ling3"),
)
