"""Defines a wire format: how reasoning and tool calls are marked in an output.

Most models mark the two apart: a `ReasoningFormat` is data, a `ToolFormat` reads one block of
calls, and `marked.MarkedLayout` reads an output with any two of them. Outputs with another
structure as a whole, such as channels with headers, are read by an `OutputLayout`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from node.parsing.scanning.added_tokens import TokenFamily
from node.parsing.scanning.source import Source
from node.parsing.scanning.step import Step
from node.parsing.spelling import AnswerSpelling, CallSpelling


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """Reasoning between markers, at the start of an output."""

    name: str
    openers: tuple[str, ...]
    """Markers that begin reasoning. Models write the first; the others are read too."""
    closers: tuple[str, ...]
    implicit: bool = False
    """True if an output begins within reasoning although the prompt does not show it."""
    repeats: bool = False
    """True if reasoning may come again after the answer has begun."""
    dropped: tuple[str, ...] = ()
    """Markers around the answer that are not part of it."""
    wrap: tuple[str, str] = ("", "")
    """The dropped markers that models write before and behind the answer; empty for none."""
    closes_first: bool = False
    """True if an output without reasoning may begin with the closer."""
    unread_calls: tuple[str, ...] = ()
    """Starts of calls that end the reasoning of a request without tools, if the output ends with
    them."""
    unread_end: str = ""
    """The end of such a call."""

    @property
    def opener(self) -> str:
        """The marker at the end of a prompt that has begun the reasoning."""
        return self.openers[0] if self.openers else ""

    @property
    def markers(self) -> frozenset[str]:
        return frozenset((*self.openers, *self.closers, *self.dropped))

    def opens(self, prompt_tail: str) -> bool:
        """True if a prompt with this end has begun the reasoning."""
        return self._opened(prompt_tail) is not None

    def has_begun_text(self, prompt_tail: str) -> bool:
        """True if a prompt with this end has begun the reasoning and some of its text."""
        text_behind = self._opened(prompt_tail)
        return text_behind is not None and bool(text_behind.strip())

    def closes(self, prompt_tail: str) -> bool:
        """True if the prompt ends with the end of reasoning."""
        return prompt_tail.rstrip().endswith(self.closers)

    def begins_within(self, prompt_tail: str) -> bool:
        """True if an output after a prompt with this end begins within reasoning."""
        return self.opens(prompt_tail) or (
            self.implicit and not _last_end(prompt_tail, self.closers)
        )

    def _opened(self, prompt_tail: str) -> str | None:
        """Returns the text behind the opener; None if the prompt has opened no reasoning. An opener
        counts only where an answer begins: behind the answer's first words it is text about
        reasoning."""
        begin = _last_end(prompt_tail, self.closers)
        for at, behind in _positions(prompt_tail, self.openers, begin):
            before, text_behind = prompt_tail[max(0, at - _NEAR) : at], prompt_tail[behind:]
            is_first = not has_begun_answer(before)
            if begin or text_behind.strip():
                is_first = not before.rstrip().endswith(self.closers) and _begins_answer(before)
            if is_first:
                return text_behind
        return None


_NEAR = 256
"""Number of characters before a position in the prompt that show if an answer begins there."""
_ROLE = r"(?:assistant|model|bot|gpt|ai)?"
_HEADER = re.compile(rf"(?:\A|[>\])|])\s*{_ROLE}:?\s*\Z", re.IGNORECASE)
"""Ends of the text before an answer: markup and a role."""
_NO_WORDS = re.compile(r"(?:\A|\n|[^\w\s.,;])[ \t]*\Z")
"""Ends of text that are not the first words of an answer. Templates may spell a role in any way."""


def _begins_answer(before: str) -> bool:
    """True if it is certain that an answer begins behind the text."""
    return _HEADER.search(before) is not None


def has_begun_answer(prompt_tail: str) -> bool:
    """True if a prompt with this end has, as far as can be seen, begun the answer's text."""
    near = prompt_tail[-_NEAR:]
    return not (_begins_answer(near) or _NO_WORDS.search(near))


def _last_end(text: str, markers: tuple[str, ...]) -> int:
    """Returns the end of the last of the markers; 0 if there is none."""
    found = ((at, at + len(each)) for each in markers if (at := text.rfind(each)) >= 0)
    return max(found, default=(0, 0))[1]


def _positions(text: str, markers: tuple[str, ...], begin: int) -> list[tuple[int, int]]:
    """Returns (begin, end) of all markers from `begin` on; of those that begin together, the
    longest."""
    pattern = "|".join(map(re.escape, sorted(markers, key=len, reverse=True))) or "(?!)"
    return [match.span() for match in re.compile(pattern).finditer(text, begin)]


class ToolFormat(CallSpelling, Protocol):
    """Reads blocks of tool calls. It has no state: one object serves all requests."""

    name: str
    openers: tuple[str, ...] = ()
    """Texts that begin a block anywhere."""
    starts: tuple[str, ...] = ()
    """Texts that begin a block only where the answer or another call begins, or has just ended,
    since they are common within text."""
    orphans: tuple[str, ...] = ()
    """Ends of blocks. As a token of its own without a block, such an end is dropped."""
    blank_ends: tuple[str, ...] = ()
    """Texts besides `orphans` that end a block without calls."""
    never_blank: tuple[str, ...] = ()
    """Openers behind which an empty list is part of the answer."""
    stop_tokens: tuple[str, ...] = ()
    """Tokens that end the output but are read before it ends."""
    spells_bare: bool = False
    """True if a call as `calls_grammar` writes it begins with one of `starts`."""

    def read(self, source: Source, opener: str) -> Step[None]:
        """Reads a block from behind its opener, and emits each call as soon as it is complete.
        Raises `Malformed` if there is no call."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The request's settings for reading one output. `prompt_tail` is the end of the rendered
    prompt."""

    prompt_tail: str = ""
    splits_reasoning: bool = True
    """If False, reasoning is content, with its markers."""
    reads_calls: bool = True
    """If False, calls are content, with their markup."""


class OutputLayout(AnswerSpelling, Protocol):
    """Reads outputs that are laid out as a whole. It has no state: one object serves all
    requests."""

    name: str
    opener: str = ""
    """The marker at the end of a prompt that has begun the reasoning."""
    openers: tuple[str, ...] = ()
    """Markup that calls begin with."""
    orphans: tuple[str, ...] = ()
    """Ends of blocks; see `ToolFormat.orphans`."""
    stop_tokens: tuple[str, ...] = ()
    """Tokens that end the output but are read before it ends."""
    strict: frozenset[str] = frozenset()
    """Markers that count only as added tokens, if the vocabulary has them; the same characters in
    other tokens are text."""

    def families(self, *, reads_calls: bool) -> tuple[TokenFamily, ...]:
        """Returns the families of tokens. Ends of calls that are not read are content."""
        ends = frozenset(self.orphans)
        dropped = ends if reads_calls else ends & self.strict
        return (TokenFamily(frozenset(self.openers), dropped, drops_ends=True),)

    def read(self, source: Source, setup: Setup) -> Step[None]:
        """Reads until the text ends."""


class NoToolFormat(ToolFormat):
    """The tool format of outputs without calls."""

    name = "none"

    def read(self, source: Source, opener: str) -> Step[None]:
        raise AssertionError("it has no opener")
        yield


NO_REASONING = ReasoningFormat("none", (), ())


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """The formats of one model family; each file of `formats` has one as `FAMILY`."""

    tool_calls: tuple[ToolFormat, ...] = ()
    reasoning: tuple[ReasoningFormat, ...] = ()
    layouts: tuple[OutputLayout, ...] = ()
    """Formats of outputs as a whole. Each name stands for a reasoning format and a tool format
    alike."""
    tool_call_aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names that other servers give a format, by the format's name."""
    reasoning_aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    yields_to: tuple[str, ...] = ()
    """Families that share an opener with this one and read it first if nothing is known of the
    model."""
    is_marked: bool = True
    """True if its calls have markup of their own. Calls without markup look like any text, so such
    a format is used only for models that are known to have it."""
