"""Calls and reasoning of Gemma 4: `<|tool_call>call:f{a:<|"|>v<|"|>,n:1}<tool_call|>` and
`<|channel>thought⏎…<channel|>`."""

from node.parsing.calls.braced_calls import BracedCalls
from node.parsing.calls.bracket import with_recovery
from node.parsing.format import ModelFamily, ReasoningFormat

GEMMA4 = BracedCalls(
    "gemma4",
    ("<|tool_call>", "<tool_call|>"),
    '<|"|>',
    stop_tokens=("<|tool_response>",),
    sorts=True,
)
GEMMA4_REASONING = ReasoningFormat(
    "gemma4",
    openers=("<|channel>thought\n", "<|channel>", "<|channel><|channel>thought\n"),
    closers=("<channel|>", "<|channel>response\n", "<|channel>content\n", "<|channel>final\n"),
    repeats=True,
    dropped=(
        "<|channel>response\n",
        "<|channel>content\n",
        "<|channel>final\n",
        "<channel|>",
        "<|channel>thought<channel|>",
        "<|tool_call><tool_call|>",
    ),
)

FAMILY = ModelFamily(
    tool_calls=(with_recovery(GEMMA4),),
    reasoning=(GEMMA4_REASONING,),
    tool_call_aliases={"gemma4": ("gemma_4",)},
    reasoning_aliases={"gemma4": ("gemma_4",)},
)
