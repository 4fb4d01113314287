"""What a wire format is: how reasoning and tool calls are marked in an output.

Most models mark both apart: a `ReasoningFormat` is data, a `ToolFormat` reads one block of calls,
and `marked.Marked` reads an output of any two of them. Where an output as a whole has another
structure, such as channels with headers, a `Grammar` reads all of it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from node.parsing.scanning.added_tokens import Family
from node.parsing.scanning.source import Source
from node.parsing.scanning.step import Step
from node.parsing.spelling import AnswerSpelling, CallSpelling


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """Reasoning between markers, at the begin of an output."""

    name: str
    openers: tuple[str, ...]
    """The first one is what models write; the others are seen too."""
    closers: tuple[str, ...]
    implicit: bool = False
    """An output begins within reasoning although the prompt does not say so."""
    repeats: bool = False
    """Reasoning may come again after the answer began."""
    dropped: tuple[str, ...] = ()
    """Markers around the answer that are no part of it."""
    wrap: tuple[str, str] = ("", "")
    """Those of them that models write before the answer and behind it, or nothing."""
    closes_first: bool = False
    """An output without reasoning may begin with the closer."""
    unread_calls: tuple[str, ...] = ()
    """What calls begin with that end the reasoning of models without tools, if the output ends
    with them."""
    unread_end: str = ""
    """What such a call ends with."""

    @property
    def opener(self) -> str:
        """What a prompt ends with that begins the reasoning."""
        return self.openers[0] if self.openers else ""

    @property
    def markers(self) -> frozenset[str]:
        return frozenset((*self.openers, *self.closers, *self.dropped))

    def opens(self, prompt_tail: str) -> bool:
        """Whether a prompt that ends so has begun the reasoning."""
        return self._opened(prompt_tail) is not None

    def goes_on(self, prompt_tail: str) -> bool:
        """Whether it has also begun to say it."""
        said = self._opened(prompt_tail)
        return said is not None and bool(said.strip())

    def closes(self, prompt_tail: str) -> bool:
        """Whether the prompt ends with the reasoning's end."""
        return prompt_tail.rstrip().endswith(self.closers)

    def begins_within(self, prompt_tail: str) -> bool:
        """Whether an output after a prompt that ends so begins within reasoning."""
        return self.opens(prompt_tail) or (
            self.implicit and not _last_end(prompt_tail, self.closers)
        )

    def _opened(self, prompt_tail: str) -> str | None:
        """What stands behind the opener that counts; None where none does. Only one where an
        answer begins counts: behind its first words it is talk about reasoning."""
        begin = _last_end(prompt_tail, self.closers)
        for at, behind in _positions(prompt_tail, self.openers, begin):
            before, said = prompt_tail[max(0, at - _NEAR) : at], prompt_tail[behind:]
            is_first = not speaks(before)
            if begin or said.strip():
                is_first = not before.rstrip().endswith(self.closers) and _begins_answer(before)
            if is_first:
                return said
        return None


_NEAR = 256
"""Characters before a place in the prompt that tell whether an answer begins there."""
_ROLE = r"(?:assistant|model|bot|gpt|ai)?"
_HEADER = re.compile(rf"(?:\A|[>\])|])\s*{_ROLE}:?\s*\Z", re.IGNORECASE)
"""Ends of what stands before an answer: markup, and who speaks."""
_NO_WORDS = re.compile(r"(?:\A|\n|[^\w\s.,;])[ \t]*\Z")
"""Ends of what are not the first words of an answer. Who speaks may be told in any way."""


def _begins_answer(before: str) -> bool:
    """Whether it is sure that an answer begins behind the text."""
    return _HEADER.search(before) is not None


def speaks(prompt_tail: str) -> bool:
    """Whether a prompt that ends so has begun the answer's text, as far as can be told."""
    near = prompt_tail[-_NEAR:]
    return not (_begins_answer(near) or _NO_WORDS.search(near))


def _last_end(text: str, markers: tuple[str, ...]) -> int:
    """Where the last of the markers ends; 0 where there is none."""
    found = ((at, at + len(each)) for each in markers if (at := text.rfind(each)) >= 0)
    return max(found, default=(0, 0))[1]


def _positions(text: str, markers: tuple[str, ...], begin: int) -> list[tuple[int, int]]:
    """(begin, end) of all the markers from `begin` on; of those that begin together, the
    longest."""
    pattern = "|".join(map(re.escape, sorted(markers, key=len, reverse=True))) or "(?!)"
    return [match.span() for match in re.compile(pattern).finditer(text, begin)]


class ToolFormat(CallSpelling, Protocol):
    """Reads blocks of tool calls. One object serves all requests: it has no state."""

    name: str
    openers: tuple[str, ...] = ()
    """What a block begins with, wherever it stands."""
    starts: tuple[str, ...] = ()
    """What a block begins with only where the answer or another call begins or has just ended: too
    common within a text."""
    orphans: tuple[str, ...] = ()
    """What ends blocks, and is dropped where it comes as a token of its own without one."""
    blank_ends: tuple[str, ...] = ()
    """What ends a block without calls, besides `orphans`."""
    never_blank: tuple[str, ...] = ()
    """Openers behind which an empty list is an answer."""
    stop_tokens: tuple[str, ...] = ()
    """Tokens that end the output, and are read before it does."""
    spells_bare: bool = False
    """Calls as they are spelled begin with one of `starts`."""

    def read(self, source: Source, opener: str) -> Step[None]:
        """Reads on behind the opener, and tells each call as soon as it is complete. Raises
        `Malformed` where there is none."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What is wanted of an output."""

    prompt_tail: str = ""
    splits_reasoning: bool = True
    """Else it is content, with its markers."""
    reads_calls: bool = True
    """Else their markup is content."""


class Grammar(AnswerSpelling, Protocol):
    """Reads a whole output. One object serves all requests: it has no state."""

    name: str
    opener: str = ""
    """What a prompt ends with that begins the reasoning."""
    openers: tuple[str, ...] = ()
    """Markup that calls begin with."""
    orphans: tuple[str, ...] = ()
    """As of a `ToolFormat`."""
    stop_tokens: tuple[str, ...] = ()
    """As of a `ToolFormat`."""
    strict: frozenset[str] = frozenset()
    """Markers that count only as tokens where the vocabulary has them as such: the same characters
    in other tokens are talk about them."""

    def families(self, *, reads_calls: bool) -> tuple[Family, ...]:
        """The tokens that belong together. Ends of calls that are not read are content."""
        ends = frozenset(self.orphans)
        dropped = ends if reads_calls else ends & self.strict
        return (Family(frozenset(self.openers), dropped, drops_ends=True),)

    def read(self, source: Source, setup: Setup) -> Step[None]:
        """Reads until the text ends."""


class NoCalls(ToolFormat):
    """The tool format of outputs without calls."""

    name = "none"

    def read(self, source: Source, opener: str) -> Step[None]:
        raise AssertionError("it has no opener")
        yield


NO_REASONING = ReasoningFormat("none", (), ())


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """What a file of `formats` has to offer: its `FAMILY`."""

    tool_calls: tuple[ToolFormat, ...] = ()
    reasoning: tuple[ReasoningFormat, ...] = ()
    whole: tuple[Grammar, ...] = ()
    """Formats of outputs as a whole: each name is one of reasoning and of tool calls alike."""
    tool_call_aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By the name of a format, what other servers call it."""
    reasoning_aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    yields_to: tuple[str, ...] = ()
    """Families with an opener of this one that are to read it first, where nothing is known of a
    model."""
    is_marked: bool = True
    """Whether its calls have markup of their own; else they look like any text, and only what is
    known of the model can choose it."""
