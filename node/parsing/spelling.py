"""Protocols by which a format writes calls and answers in a grammar, the counterpart of reading.

A format reads everything that it spells as what was meant. Tests check this for every format, with
outputs drawn at random from the grammars.
"""

from collections.abc import Sequence
from typing import Protocol

from node.ipc.generate import ToolSchema
from node.parsing.constraints.lark import Lark
from node.parsing.constraints.schema import UnsupportedConstraint


class CallSpelling(Protocol):
    """Writes tool calls in a format's spelling."""

    name: str

    def calls_grammar(self, lark: Lark, tools: Sequence[ToolSchema], *, parallel: bool) -> str:
        """Returns the expression of a block that calls one of the tools with arguments that fit its
        schema, or several of them in a row if `parallel`. Raises `UnsupportedConstraint`."""
        raise UnsupportedConstraint(
            f"Calls of the format {self.name} cannot be forced.", "tool_choice"
        )


class AnswerSpelling(Protocol):
    """Writes a whole output in a format's layout.

    `prompt_tail` is the end of the prompt if the output begins with the answer, and None if the
    answer follows reasoning that the model or `closing` has ended.
    """

    name: str
    closing: str = ""
    """The text that ends the reasoning; it is forced when the thinking budget is used up."""
    reasoning_ends: tuple[str, ...] = ()
    """Texts by which a model may end its reasoning. Not every vocabulary has them as tokens."""

    def reasoning_openings(self, prompt_tail: str) -> tuple[str, ...]:
        """Returns the texts by which the model may begin reasoning behind such a prompt. Empty if
        the prompt has begun or ended it, or if the format has no reasoning."""
        return ()

    def answer_openings(self, *, reads_calls: bool, names: Sequence[str] = ()) -> tuple[str, ...]:
        """Returns the starts of headers, other than those of reasoning, that may follow `closing`
        if the layout requires a header there. Empty if any text may follow. `names` are those of
        the tools that may be called, if calls are read."""
        return ()

    def spell_text(self, lark: Lark, content: str, prompt_tail: str | None) -> str:
        """Returns the expression of an answer whose text matches the expression `content`."""
        return content

    def spell_answer_calls(
        self,
        lark: Lark,
        tools: Sequence[ToolSchema],
        prompt_tail: str | None,
        *,
        parallel: bool,
    ) -> str:
        """Returns the expression of an answer that consists of calls; see
        `CallSpelling.calls_grammar`. Raises `UnsupportedConstraint`."""
        raise UnsupportedConstraint(
            f"Calls of the format {self.name} cannot be forced.", "tool_choice"
        )
