"""GLM-4.5 to GLM-5, Laguna: calls as a name with pairs of keys and values in `<tool_call>`.

Strings are bare text, all other values JSON. Some outputs have JSON for the whole call, or for all
its arguments.
"""

from node.parsing.calls.arg_pairs import PairCalls
from node.parsing.format import ModelFamily, ReasoningFormat

GLM = PairCalls("glm")
GLM_REASONING = ReasoningFormat(
    "glm",
    ("<think>",),
    ("</think>",),
    dropped=("<|begin_of_box|>", "<|end_of_box|>"),
)
"""Like `think`; vision models put their answer in a box."""

FAMILY = ModelFamily(
    tool_calls=(GLM,),
    reasoning=(GLM_REASONING,),
    tool_call_aliases={
        "glm": ("spark2.5", "glm4", "glm45", "glm47", "glm4_moe", "glm5", "laguna", "poolside_v1")
    },
    reasoning_aliases={"glm": ("glm4", "glm45", "glm47", "glm47_flash", "glm4_moe", "glm5")},
)
