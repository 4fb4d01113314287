"""Outputs that are a row of channels: each piece of reasoning, answer or calls has a header of its
own, and mostly a marker that closes it.

A header is no text, even where the output ends within it, or begins another one. A channel of calls
that holds none is text, with its header.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from node.ipc.generate import ToolSchema
from node.ipc.messages import PartKind
from node.parsing.constraints.lark import Lark
from node.parsing.format import Grammar, Setup
from node.parsing.scanning.markers import Markers
from node.parsing.scanning.source import Source
from node.parsing.scanning.step import Malformed, Step


@dataclass(slots=True)
class Channel:
    """What a header says of the text behind it."""

    header: str = ""
    """As it stands in the output; "" where the prompt has it."""
    kind: PartKind = PartKind.CONTENT
    target: str | None = None
    """Whom its calls are for, "" where they say so themselves; None: it is no channel of calls."""


class Channels(Grammar):
    """Reads such outputs. A format says what its headers are, and how calls stand in a channel."""

    turn: str = ""
    """What a header begins with, whatever its channel, and a prompt may end with."""
    reasons: str = ""
    """What the header of reasoning has behind the turn, as models write it."""
    answers: tuple[str, ...] = ()
    """The same of the answer; of several, those are written that the vocabulary has as tokens."""
    answer_ends: tuple[str, ...] = ()
    """What may close each kind of answer, in the same order; "" where only an end token does."""
    begins: tuple[str, ...] = ()
    """Markers that a header begins with, wherever they stand."""
    ends: tuple[str, ...] = ()
    """Markers that close a channel."""
    marks: tuple[str, ...] = ()
    """Markers within a channel, which `read_mark` reads."""

    hides_calls: bool = True
    """In a request without tools a call with which the answer begins is not told: it is said to a
    tool, not to the user."""

    def __init__(self) -> None:
        self.orphans = self.ends
        self._markers = Markers((*self.begins, *self.ends, *self.marks))

    def channel_of(self, prompt_tail: str) -> Channel | None:
        """The channel that the prompt has opened; None if none is open."""
        return None

    def in_header(self, prompt_tail: str) -> bool:
        """Whether the output goes on with a header that the prompt has begun."""
        return False

    def read_header(self, source: Source, channel: Channel) -> Step[None]:
        """Reads the rest of a header and fills in the channel, whose header is the marker that was
        read, or "" where the prompt may have begun it. Raises `Malformed` where there is none."""
        raise NotImplementedError

    def read_calls(self, source: Source, channel: Channel) -> Step[None]:
        """Reads a channel of calls, and tells each. Raises `Malformed` where there is none."""
        raise NotImplementedError

    def read_mark(self, source: Source, marker: str, kind: PartKind) -> Step[None]:
        """Reads on behind a marker within a channel."""
        raise NotImplementedError

    # --- how an output is held ----------------------------------------------------------------

    def reasoning_openings(self, prompt_tail: str) -> tuple[str, ...]:
        is_over = self.channel_of(prompt_tail) is not None or self.reasons in prompt_tail
        if not self.reasons or is_over:
            return ()
        return (self.header(self.reasons, prompt_tail),)

    def answer_openings(self, *, reads_calls: bool, names: Sequence[str] = ()) -> tuple[str, ...]:
        if not self.closing:
            return ()
        calls = self.call_headers(names) if reads_calls else ()
        return tuple(self.header(each, None) for each in (*self.answers, *calls))

    def call_headers(self, names: Sequence[str]) -> tuple[str, ...]:
        """Begins of the headers of calls, behind the turn. `names` are those of the tools."""
        return self.openers

    def spell_text(self, lark: Lark, content: str, prompt_tail: str | None) -> str:
        channel = None if prompt_tail is None else self.channel_of(prompt_tail)
        if prompt_tail is not None and channel is not None:
            if channel.kind is PartKind.REASONING:
                return f"{lark.text(self.closing)} {self.spell_text(lark, content, None)}"
            at = max(range(len(self.answers)), key=lambda at: prompt_tail.rfind(self.answers[at]))
            return _closed(lark, content, self.answer_ends[at])
        known = [at for at, each in enumerate(self.answers) if lark.is_token(each)] or [0]
        ways = [
            f"{lark.text(self.header(self.answers[at], prompt_tail))} "
            f"{_closed(lark, content, self.answer_ends[at])}"
            for at in known
        ]
        return lark.one_of(ways)

    def spell_answer_calls(
        self,
        lark: Lark,
        tools: Sequence[ToolSchema],
        prompt_tail: str | None,
        *,
        parallel: bool,
    ) -> str:
        channel = None if prompt_tail is None else self.channel_of(prompt_tail)
        if channel is None:
            return self.spell_calls(lark, tools, prompt_tail, parallel=parallel)
        # The prompt has begun something else, which is to be ended.
        is_reasoning = channel.kind is PartKind.REASONING
        end = self.closing if is_reasoning else next(filter(None, self.answer_ends), "")
        calls = self.spell_calls(lark, tools, None, parallel=parallel)
        return f"{lark.text(end or self.closing)} {calls}"

    def spell_calls(
        self,
        lark: Lark,
        tools: Sequence[ToolSchema],
        prompt_tail: str | None,
        *,
        parallel: bool,
    ) -> str:
        """As `spell_answer_calls`, where the prompt has no channel open. Raises `NotHeld`."""
        raise NotImplementedError

    def header(self, header: str, prompt_tail: str | None) -> str:
        """What is to be written of a header: all of it where `prompt_tail`, None behind an earlier
        channel, has not begun it."""
        if prompt_tail is not None and self.turn and self.in_header(prompt_tail):
            begun = prompt_tail.rpartition(self.turn)[2]
            if header.startswith(begun):
                return header.removeprefix(begun)
        return self.turn + header

    # --- how it is read -----------------------------------------------------------------------

    def read(self, source: Source, setup: Setup) -> Step[None]:
        if self.hides_calls and not setup.reads_calls:
            source.hide_calls()
        channel = self.channel_of(setup.prompt_tail)
        if channel is None:
            channel = yield from self._read_first(source, setup.prompt_tail)
        while True:
            kind, is_kept = yield from self._open(source, setup, channel)
            marker = yield from self._read_body(source, kind)
            if not marker:
                return
            channel = Channel()
            if marker in self.begins:
                source.edge()
                channel = yield from self._read_header(source, marker)
                continue
            if is_kept:
                source.say(kind, marker)
            source.edge()

    def _open(self, source: Source, setup: Setup, channel: Channel) -> Step[tuple[PartKind, bool]]:
        """(the kind of the channel's text, whether its markers are text as well). Reads the calls
        that it holds."""
        kind = channel.kind if setup.splits_reasoning else PartKind.CONTENT
        if channel.target is not None:
            block = self._read_channel(source, channel, is_read=setup.reads_calls)
            found = yield from source.attempt(channel.header, block, kind)
            return kind, not found
        is_kept = channel.kind is not kind
        if is_kept:
            source.say(kind, channel.header)
        return kind, is_kept

    def _read_channel(self, source: Source, channel: Channel, *, is_read: bool) -> Step[None]:
        """A channel of calls. Raises `Malformed` where it is one of text."""
        blank = self._read_blank(source)
        if is_read or (self.hides_calls and not source.has_answered):
            yield from source.either(self.read_calls(source, channel), blank)
        else:
            yield from blank

    def _read_blank(self, source: Source) -> Step[None]:
        """A channel that says nothing, up to what ends it, or an empty list in it. Raises
        `Malformed`."""
        yield from source.space()
        if (yield from source.accept("[")):
            yield from source.space()
            yield from source.expect("]")
            yield from source.space()
        ends = (*self.ends, *(each for each in self.begins if self.turn.startswith(each)))
        ahead = yield from source.peek(max(map(len, ends)))
        if ahead and not ahead.startswith(ends):
            raise Malformed

    def _read_body(self, source: Source, kind: PartKind) -> Step[str]:
        """Tells the text of a channel; the marker that ends it."""
        while True:
            marker = yield from source.until(kind, self._markers)
            if marker not in self.marks:
                return marker
            yield from self.read_mark(source, marker, kind)

    def _read_first(self, source: Source, prompt_tail: str) -> Step[Channel]:
        is_sure = self.in_header(prompt_tail)
        if prompt_tail and not is_sure:
            return Channel()
        # Without a prompt to tell, the output itself shows whether it begins with a header.
        return (yield from self._read_header(source, "", is_sure=is_sure))

    def _read_header(self, source: Source, opener: str, *, is_sure: bool = True) -> Step[Channel]:
        channel = Channel(opener)
        block = self._header(source, channel, is_sure=is_sure)
        found = yield from source.attempt(opener, block, PartKind.CONTENT)
        return channel if found else Channel()

    def _header(self, source: Source, channel: Channel, *, is_sure: bool) -> Step[None]:
        if channel.header and self.turn:
            yield from self._read_again(source, channel)
        try:
            yield from self.read_header(source, channel)
        except Malformed:
            if not (is_sure and source.at_end):
                raise

    def _read_again(self, source: Source, channel: Channel) -> Step[None]:
        """Reads a header's begin that comes behind another one's, which then is none."""
        first = next(each for each in self.begins if self.turn.startswith(each))
        while again := (yield from source.accept(first)):
            channel.header = again


def _closed(lark: Lark, content: str, end: str) -> str:
    return f"{content} {lark.optional(lark.text(end))}" if end else content
