"""What an output is held to, in a format's own spelling: the counterpart of reading it.

All that is spelled here, `read` reads as what was meant: a property that tests hold every format
to, with outputs drawn at random from the grammars.
"""

from collections.abc import Sequence
from typing import Protocol

from node.ipc.generate import ToolSchema
from node.parsing.constraints.lark import Lark
from node.parsing.constraints.schema import NotHeld


class CallSpelling(Protocol):
    """How a format of tool calls writes them."""

    name: str

    def spell_calls(self, lark: Lark, tools: Sequence[ToolSchema], *, parallel: bool) -> str:
        """The expression of a block that calls one of the tools, with arguments that fit its
        schema, or several of them one after another where `parallel`. Raises `NotHeld`."""
        raise NotHeld(f"Calls of the format {self.name} cannot be forced.", "tool_choice")


class AnswerSpelling(Protocol):
    """How a whole output is laid out.

    `prompt_tail` is the prompt's end where the output begins with the answer, None where the answer
    comes behind reasoning that `closing` or the model has ended.
    """

    name: str
    closing: str = ""
    """What ends the reasoning; it is forced where a budget is used up."""
    reasoning_ends: tuple[str, ...] = ()
    """Texts that a model may end it with, of which some are no tokens in some vocabularies."""

    def reasoning_openings(self, prompt_tail: str) -> tuple[str, ...]:
        """What the reasoning may begin with that a model still may say behind such a prompt; none
        where the prompt has begun it or ended it, or there is no reasoning."""
        return ()

    def answer_openings(self, *, reads_calls: bool, names: Sequence[str] = ()) -> tuple[str, ...]:
        """What of the output's layout may come next behind `closing`, if only some of that is the
        answer: the begins of headers that begin no reasoning. None: whatever comes is answer.
        `names` are those of the tools that may be called, if calls are read."""
        return ()

    def spell_text(self, lark: Lark, content: str, prompt_tail: str | None) -> str:
        """The expression of an answer whose text matches the expression `content`."""
        return content

    def spell_answer_calls(
        self,
        lark: Lark,
        tools: Sequence[ToolSchema],
        prompt_tail: str | None,
        *,
        parallel: bool,
    ) -> str:
        """The expression of an answer that is calls; as `CallSpelling.spell_calls`. Raises
        `NotHeld`."""
        raise NotHeld(f"Calls of the format {self.name} cannot be forced.", "tool_choice")
