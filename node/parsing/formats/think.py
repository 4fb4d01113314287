"""Reasoning in `<think>` … `</think>`, as most models write it."""

from node.parsing.format import ReasoningFormat

_OPENERS = ("<think>",)
_CLOSERS = ("</think>",)
_CALLS = tuple(f"<tool_call>{space}{body}" for space in ("", "\n") for body in ("{", "<function="))
"""What a model writes that calls a tool without an end of its reasoning."""
_CALL_END = "</tool_call>"

THINK = ReasoningFormat("think", _OPENERS, _CLOSERS, unread_calls=_CALLS, unread_end=_CALL_END)
ALWAYS_THINK = ReasoningFormat(
    "always_think", _OPENERS, _CLOSERS, implicit=True, unread_calls=_CALLS, unread_end=_CALL_END
)
"""Of models that begin within reasoning although their template does not say so."""
MIXED_THINK = ReasoningFormat(
    "mixed_think",
    (*_OPENERS, "<thinking>"),
    (*_CLOSERS, "</thinking>"),
    repeats=True,
    unread_calls=_CALLS,
    unread_end=_CALL_END,
)
"""Of models that reason again within the answer, in either spelling."""
