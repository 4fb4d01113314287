"""Reasoning in `<think>` … `</think>`, as most models write it."""

from node.parsing.format import ModelFamily, ReasoningFormat

_OPENERS = ("<think>",)
_CLOSERS = ("</think>",)
_CALLS = tuple(f"<tool_call>{space}{body}" for space in ("", "\n") for body in ("{", "<function="))
"""Starts of calls that such models write without ending their reasoning."""
_CALL_END = "</tool_call>"

THINK = ReasoningFormat("think", _OPENERS, _CLOSERS, unread_calls=_CALLS, unread_end=_CALL_END)
ALWAYS_THINK = ReasoningFormat(
    "always_think", _OPENERS, _CLOSERS, implicit=True, unread_calls=_CALLS, unread_end=_CALL_END
)
"""The format of models whose output begins within reasoning although their template does not show
it."""
MIXED_THINK = ReasoningFormat(
    "mixed_think",
    (*_OPENERS, "<thinking>"),
    (*_CLOSERS, "</thinking>"),
    repeats=True,
    unread_calls=_CALLS,
    unread_end=_CALL_END,
)
"""The format of models that reason again within the answer, in either spelling."""

FAMILY = ModelFamily(
    reasoning=(THINK, ALWAYS_THINK, MIXED_THINK),
    reasoning_aliases={
        "think": (
            "deepseek_r1",
            "deepseek_v3",
            "deepseek_v31",
            "deepseek_v4",
            "dsml",
            "kimi",
            "kimi_k2",
            "spark2.5",
            "step3",
            "step5",
            "hermes",
            "holo2",
            "laguna",
            "mimo",
            "minicpm",
            "minicpm5",
            "minimax",
            "minimax_m2",
            "nano_v3",
            "nemotron",
            "nemotron3",
            "nemotron3_nano",
            "nemotron_v3",
            "poolside_v1",
            "qwen3",
            "qwen3.5",
            "qwen3_5",
            "qwen3_thinking",
            "qwq",
            "step",
            "step3p5",
            "step_35",
        ),
        "always_think": ("deepseek_r1_distill", "vibethinker"),
        "mixed_think": ("mixed_think_tool_handoff",),
    },
)
