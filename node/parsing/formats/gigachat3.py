"""GigaChat 3 and 3.1: calls as JSON behind `<|function_call|>`, or in a message of their own."""

from node.parsing.calls.json_calls import JsonCalls, JsonSpelling
from node.parsing.format import ModelFamily

GIGACHAT3 = JsonCalls(
    "gigachat3",
    (
        "<|function_call|>",
        "<|message_sep|>\n\nfunction call<|role_sep|>",
        "<|message_sep|>function call<|role_sep|>",
        "function call<|role_sep|>",
    ),
    ("<|message_sep|>", "</s>"),
    spelling=JsonSpelling(
        (
            ("<|function_call|>", ""),
            ("<|message_sep|>\n\nfunction call<|role_sep|>", "<|message_sep|>"),
        ),
        in_list=False,
    ),
)

FAMILY = ModelFamily(
    tool_calls=(GIGACHAT3,),
    tool_call_aliases={"gigachat3": ("gigachat",)},
)
