"""What a wire format is: how reasoning and tool calls are marked in an output.

Most models mark both apart: a `ReasoningFormat` is data, a `ToolFormat` reads one block of calls,
and `read_marked` reads an output of any two of them. Where an output as a whole has another
structure, such as channels with headers, a `Grammar` reads all of it.
"""

import re
from dataclasses import dataclass
from typing import Protocol

from node.parsing.markers import Markers
from node.parsing.source import Malformed, Source, Step
from node.parsing.spelling import AnswerSpelling, CallSpelling
from node.parsing.tokens import Family
from node.types import PartKind


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
    blanks: tuple[tuple[str, str], ...] = ()
    """What a block without calls begins and ends with: no text where an answer begins."""
    stop_tokens: tuple[str, ...] = ()
    """Tokens that end the output, and are read before it does."""

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


class Marked(Grammar):
    """Reads outputs of a reasoning format and a tool format."""

    def __init__(
        self, reasoning: ReasoningFormat, tools: ToolFormat, *, reads_calls: bool = True
    ) -> None:
        """Without `reads_calls`, calls are text."""
        self.name = f"{reasoning.name}+{tools.name}"
        self.opener = reasoning.opener
        self.openers = tools.openers
        self.orphans = (*tools.orphans, *reasoning.closers)
        self.stop_tokens = tools.stop_tokens if reads_calls else ()
        self.strict = reasoning.markers
        self._reasoning = reasoning
        self._tools = tools
        self._reads_calls = reads_calls
        self._starts = tools.starts if reads_calls else ()
        self._blanks: dict[str, tuple[str, ...]] = {}
        for opener, closer in tools.blanks:
            self._blanks[opener] = (*self._blanks.get(opener, ()), closer)
        calls = Markers(tools.openers if reads_calls else ())
        unread = Markers(() if calls.texts else reasoning.unread_calls)
        self._in_reasoning = Markers(reasoning.closers) | calls | unread
        dropped = Markers(reasoning.dropped)
        self._after = calls | dropped | Markers(self._blanks)
        self._before = self._after | Markers(reasoning.openers)
        """Before any reasoning."""
        if reasoning.repeats:
            self._after = self._before
        self._interrupted = self._after | Markers(reasoning.closers)
        """Behind reasoning that something else than its closer has ended."""
        self._ends = (*reasoning.closers, *reasoning.dropped)

    def families(self, *, reads_calls: bool) -> tuple[Family, ...]:
        tools, reasoning = self._tools, self._reasoning
        return (
            Family(frozenset(tools.openers), frozenset(tools.orphans), drops_ends=reads_calls),
            Family(frozenset(reasoning.openers), frozenset(reasoning.closers), drops_ends=True),
        )

    def read(self, source: Source, setup: Setup) -> Step[None]:
        is_over = self._reasoning.closes(setup.prompt_tail)
        markers = self._after if is_over else self._before
        reasons = yield from self._begins_within(source, setup)
        while True:
            while reasons:
                markers = yield from self._read_reasoning(source)
                reasons = yield from self._read_seam(source)
            if self._starts and not source.has_spoken:
                yield from self._read_starts(source)
            marker = yield from source.until(PartKind.CONTENT, markers)
            if not marker:
                return
            if marker in self._reasoning.closers:
                source.edge()
                markers = self._after
            else:
                reasons = yield from self._read_marked(source, marker)

    def _read_marked(self, source: Source, marker: str) -> Step[bool]:
        """What a marker in the answer begins; whether that is reasoning."""
        reasoning = self._reasoning
        if marker in reasoning.openers:
            # Only where nothing was said: later it is talk about reasoning.
            if source.has_spoken and not reasoning.repeats:
                source.say_marker(PartKind.CONTENT, marker)
                return False
            source.edge()
            return True
        if marker in reasoning.dropped:
            if not source.has_spoken:
                source.edge()
            return False
        yield from source.attempt(marker, self._read_block(source, marker), PartKind.CONTENT)
        return False

    def _read_block(self, source: Source, opener: str) -> Step[None]:
        if not source.has_spoken and opener in self._blanks:
            blank = self._read_blank(source, self._blanks[opener])
            if (yield from source.maybe(blank)):
                source.edge()
                return
        if opener not in self._tools.openers or not self._reads_calls:
            raise Malformed
        yield from self._tools.read(source, opener)

    def _read_blank(self, source: Source, closers: tuple[str, ...]) -> Step[str]:
        yield from source.space()
        return (yield from source.expect(*closers))

    def _begins_within(self, source: Source, setup: Setup) -> Step[bool]:
        """Whether the output begins within reasoning. Reads what it may begin with besides."""
        reasoning = self._reasoning
        if reasoning.goes_on(setup.prompt_tail):
            source.resume(PartKind.REASONING)
            return True
        if speaks(setup.prompt_tail):
            source.resume(PartKind.CONTENT)
        opened = reasoning.opens(setup.prompt_tail)
        begins = reasoning.begins_within(setup.prompt_tail)
        # The opener that the prompt lacks.
        first = reasoning.openers if begins and not opened else ()
        if not begins and reasoning.closes_first:
            first = reasoning.closers
        if first:
            space = yield from source.space()
            found = yield from source.accept(*first)
            if found:
                source.edge()
            else:
                source.say(PartKind.REASONING if begins else PartKind.CONTENT, space)
        return begins

    def _read_reasoning(self, source: Source) -> Step[Markers]:
        """Until it is closed, or something else ends it; what is to be looked for behind it."""
        while True:
            marker = yield from source.until(PartKind.REASONING, self._in_reasoning)
            if not marker:
                return self._after
            if marker in self._reasoning.closers:
                source.edge()
                return self._after
            if marker in self._reasoning.unread_calls and not self._reads_calls:
                block = self._read_unread_calls(source, marker)
            else:
                block = self._read_last_calls(source, marker)
            if (yield from source.attempt(marker, block, PartKind.REASONING)):
                return self._interrupted

    def _read_seam(self, source: Source) -> Step[bool]:
        """Between reasoning and answer: closers that come again, or an opener: whether reasoning
        goes on."""
        reasoning = self._reasoning
        while not source.has_spoken:
            space = yield from source.space()
            marker = yield from source.accept(*reasoning.closers, *reasoning.openers)
            if not marker:
                source.say(PartKind.CONTENT, space)
                return False
            source.edge()
            if marker in reasoning.openers:
                return True
        return False

    def _read_last_calls(self, source: Source, opener: str) -> Step[None]:
        """Calls within reasoning: only where the output ends with them, or with the reasoning's
        end behind them. Else they are what the model thinks about."""
        source.keep_calls()
        marker = opener
        while marker in self._tools.openers:
            yield from self._tools.read(source, marker)
            # What follows the last of them makes all of them reasoning.
            source.settle_text()
            yield from source.space()
            marker = yield from source.accept(*self._tools.openers, *self._ends)
        yield from self._read_end(source, marker)
        source.tell_kept()

    def _read_unread_calls(self, source: Source, opener: str) -> Step[None]:
        """As `_read_last_calls`, of calls that are text."""
        said, marker = "", opener
        while marker in self._reasoning.unread_calls:
            body, end = yield from source.capture(self._reasoning.unread_end)
            source.settle_text()
            said += marker + body + end
            space = yield from source.space()
            marker = yield from source.accept(*self._reasoning.unread_calls, *self._ends)
            if marker in self._reasoning.unread_calls:
                said += space
        yield from self._read_end(source, marker)
        source.edge()
        source.say(PartKind.CONTENT, said)

    def _read_end(self, source: Source, marker: str) -> Step[None]:
        """Reads on behind one of the reasoning's ends, if it is one, up to the output's end.
        Raises `Malformed` where that does not come."""
        while marker:
            yield from source.space()
            marker = yield from source.accept(*self._ends)
        if not source.at_end:
            raise Malformed

    def _read_starts(self, source: Source) -> Step[None]:
        """Calls at the begin of the answer that nothing marks."""
        while (yield from source.attempt("", self._read_start(source), PartKind.CONTENT)):
            pass

    def _read_start(self, source: Source) -> Step[None]:
        yield from source.space()
        start = yield from source.expect(*self._starts)
        yield from self._tools.read(source, start)
