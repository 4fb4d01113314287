"""Calls as JSON in `<|action_start|><|plugin|>` … `<|action_end|>`: InternLM 2 and 2.5."""

from node.parsing.calls.json_calls import JsonCalls, JsonSpelling
from node.parsing.format import ModelFamily

INTERNLM2 = JsonCalls(
    "internlm2",
    ("<|action_start|><|plugin|>", "<|action_start|> <|plugin|>"),
    ("<|action_end|>",),
    spelling=JsonSpelling(in_list=False, arguments=("parameters", "arguments")),
)

FAMILY = ModelFamily(
    tool_calls=(INTERNLM2,),
    tool_call_aliases={"internlm2": ("internlm",)},
)
