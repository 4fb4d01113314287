"""Reasoning in `<think>` … `</think>`, as most models write it."""

from node.parsing.format import ReasoningFormat

_OPENERS = ("<think>",)
_CLOSERS = ("</think>",)
_CALLS = tuple(f"<tool_call>{space}{body}" for space in ("", "\n") for body in ("{", "<function="))
"""What a model writes that calls a tool without an end of its reasoning."""

THINK = ReasoningFormat("think", _OPENERS, _CLOSERS, interrupters=_CALLS)
ALWAYS_THINK = ReasoningFormat(
    "always_think", _OPENERS, _CLOSERS, implicit=True, interrupters=_CALLS
)
"""Of models that begin within reasoning although their template does not say so."""
MIXED_THINK = ReasoningFormat(
    "mixed_think",
    (*_OPENERS, "<thinking>"),
    (*_CLOSERS, "</thinking>"),
    repeats=True,
    interrupters=_CALLS,
)
"""Of models that reason again within the answer, in either spelling."""
