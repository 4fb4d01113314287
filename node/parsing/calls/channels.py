"""Outputs made of channels: each piece of reasoning, answer or calls has a header of its own, and
usually a marker that closes it.

A header is not text, even if the output ends within it or another header follows at once. A channel
of calls that contains no call is text, with its header.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from node.ipc.generate import ToolSchema
from node.ipc.messages import PartKind
from node.parsing.constraints.lark import Lark
from node.parsing.format import OutputLayout, Setup
from node.parsing.scanning.markers import Markers
from node.parsing.scanning.source import Source
from node.parsing.scanning.step import Malformed, Step


@dataclass(slots=True)
class Channel:
    """The meaning of a header for the text behind it."""

    header: str = ""
    """The header as it stands in the output; "" if it is part of the prompt."""
    kind: PartKind = PartKind.CONTENT
    target: str | None = None
    """The tool that its calls are for, "" if each call names its tool; None if it is not a channel
    of calls."""


class Channels(OutputLayout):
    """Reads and spells such outputs. A subclass defines the headers and reads the calls in a
    channel."""

    header_begin: str = ""
    """The start of any header, which a prompt may end with."""
    reasoning_header: str = ""
    """The rest of the header of reasoning behind `header_begin`, as models write it."""
    answer_headers: tuple[str, ...] = ()
    """The same for the answer. If there are several, those that the vocabulary has as tokens are
    written."""
    answer_ends: tuple[str, ...] = ()
    """The marker that may close each kind of answer, in the same order; "" if only an end token
    does."""
    begins: tuple[str, ...] = ()
    """Markers that begin a header anywhere."""
    ends: tuple[str, ...] = ()
    """Markers that close a channel."""
    inner_markers: tuple[str, ...] = ()
    """Markers within a channel, which `read_inner_marker` reads."""

    drops_calls: bool = True
    """If True, a call that begins the answer of a request without tools is dropped, since it is
    addressed to a tool and not to the user."""

    def __init__(self) -> None:
        self.orphans = self.ends
        self._markers = Markers((*self.begins, *self.ends, *self.inner_markers))

    def channel_of(self, prompt_tail: str) -> Channel | None:
        """Returns the channel that the prompt has opened; None if none is open. It is that of the
        last marker in the prompt, if this is a header of reasoning or of the answer."""
        markers = (*self.begins, *self.ends)
        at, marker = max((prompt_tail.rfind(each), each) for each in markers)
        if at < 0 or marker not in (self.reasoning_header, *self.answer_headers):
            return None
        is_reasoning = marker == self.reasoning_header
        return Channel(kind=PartKind.REASONING if is_reasoning else PartKind.CONTENT)

    def in_header(self, prompt_tail: str) -> bool:
        """True if the output continues a header that the prompt has begun."""
        return False

    def read_header(self, source: Source, channel: Channel) -> Step[None]:
        """Reads the rest of a header and fills in the channel. The channel's header is the marker
        that was read, or "" if the prompt may have begun it. Raises `Malformed` if there is no
        header."""
        raise NotImplementedError

    def read_calls(self, source: Source, channel: Channel) -> Step[None]:
        """Reads a channel of calls and emits each call. Raises `Malformed` if there is none."""
        raise NotImplementedError

    def read_inner_marker(self, source: Source, marker: str, kind: PartKind) -> Step[None]:
        """Reads the text behind a marker within a channel."""
        raise NotImplementedError

    # --- spelling -----------------------------------------------------------------------------

    def reasoning_openings(self, prompt_tail: str) -> tuple[str, ...]:
        is_over = self.channel_of(prompt_tail) is not None or self.reasoning_header in prompt_tail
        if not self.reasoning_header or is_over:
            return ()
        return (self.header(self.reasoning_header, prompt_tail),)

    def answer_openings(self, *, reads_calls: bool, names: Sequence[str] = ()) -> tuple[str, ...]:
        if not self.closing:
            return ()
        calls = self.call_headers(names) if reads_calls else ()
        return tuple(self.header(each, None) for each in (*self.answer_headers, *calls))

    def call_headers(self, names: Sequence[str]) -> tuple[str, ...]:
        """Returns the starts of the headers of calls, behind `header_begin`. `names` are those of
        the tools."""
        return self.openers

    def spell_text(self, lark: Lark, content: str, prompt_tail: str | None) -> str:
        channel = None if prompt_tail is None else self.channel_of(prompt_tail)
        if prompt_tail is not None and channel is not None:
            if channel.kind is PartKind.REASONING:
                return f"{lark.text(self.closing)} {self.spell_text(lark, content, None)}"
            at = max(
                range(len(self.answer_headers)),
                key=lambda at: prompt_tail.rfind(self.answer_headers[at]),
            )
            return _closed(lark, content, self.answer_ends[at])
        known = [at for at, each in enumerate(self.answer_headers) if lark.is_token(each)] or [0]
        ways = [
            f"{lark.text(self.header(self.answer_headers[at], prompt_tail))} "
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
            return self.calls_grammar(lark, tools, prompt_tail, parallel=parallel)
        # The channel that the prompt has opened is ended first.
        is_reasoning = channel.kind is PartKind.REASONING
        end = self.closing if is_reasoning else next(filter(None, self.answer_ends), "")
        calls = self.calls_grammar(lark, tools, None, parallel=parallel)
        return f"{lark.text(end or self.closing)} {calls}"

    def calls_grammar(
        self,
        lark: Lark,
        tools: Sequence[ToolSchema],
        prompt_tail: str | None,
        *,
        parallel: bool,
    ) -> str:
        """Like `spell_answer_calls`, for a prompt that has no channel open. Raises
        `UnsupportedConstraint`."""
        raise NotImplementedError

    def header(self, header: str, prompt_tail: str | None) -> str:
        """Returns the part of a header that is still to be written: all of it, unless the prompt
        has begun it. `prompt_tail` is None behind an earlier channel."""
        if prompt_tail is not None and self.header_begin and self.in_header(prompt_tail):
            begun = prompt_tail.rpartition(self.header_begin)[2]
            if header.startswith(begun):
                return header.removeprefix(begun)
        return self.header_begin + header

    # --- reading ------------------------------------------------------------------------------

    def read(self, source: Source, setup: Setup) -> Step[None]:
        if self.drops_calls and not setup.reads_calls:
            source.calls.drop()
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
                source.output.mark_edge()
                channel = yield from self._read_header(source, marker)
                continue
            if is_kept:
                source.output.emit(kind, marker)
            source.output.mark_edge()

    def _open(self, source: Source, setup: Setup, channel: Channel) -> Step[tuple[PartKind, bool]]:
        """Returns (kind of the channel's text, True if its markers are text as well), after reading
        the calls that it contains."""
        kind = channel.kind if setup.splits_reasoning else PartKind.CONTENT
        if channel.target is not None:
            block = self._read_channel(source, channel, is_read=setup.reads_calls)
            found = yield from source.attempt(channel.header, block, kind)
            return kind, not found
        is_kept = channel.kind is not kind
        if is_kept:
            source.output.emit(kind, channel.header)
        return kind, is_kept

    def _read_channel(self, source: Source, channel: Channel, *, is_read: bool) -> Step[None]:
        """Reads a channel of calls. Raises `Malformed` if it is text."""
        blank = self._read_blank(source)
        if is_read or (self.drops_calls and not source.output.has_content):
            yield from source.either(self.read_calls(source, channel), blank)
        else:
            yield from blank

    def _read_blank(self, source: Source) -> Step[None]:
        """Reads an empty channel, or one with an empty list, up to its end. Raises `Malformed`."""
        yield from source.space()
        if (yield from source.accept("[")):
            yield from source.space()
            yield from source.expect("]")
            yield from source.space()
        ends = (*self.ends, *(each for each in self.begins if self.header_begin.startswith(each)))
        ahead = yield from source.peek(max(map(len, ends)))
        if ahead and not ahead.startswith(ends):
            raise Malformed

    def _read_body(self, source: Source, kind: PartKind) -> Step[str]:
        """Emits the text of a channel and returns the marker that ends it."""
        while True:
            marker = yield from source.until(kind, self._markers)
            if marker not in self.inner_markers:
                return marker
            yield from self.read_inner_marker(source, marker, kind)

    def _read_first(self, source: Source, prompt_tail: str) -> Step[Channel]:
        is_sure = self.in_header(prompt_tail)
        if prompt_tail and not is_sure:
            return Channel()
        # If no prompt is known, the output itself shows if it begins with a header.
        return (yield from self._read_header(source, "", is_sure=is_sure))

    def _read_header(self, source: Source, opener: str, *, is_sure: bool = True) -> Step[Channel]:
        channel = Channel(opener)
        block = self._header(source, channel, is_sure=is_sure)
        found = yield from source.attempt(opener, block, PartKind.CONTENT)
        return channel if found else Channel()

    def _header(self, source: Source, channel: Channel, *, is_sure: bool) -> Step[None]:
        if channel.header and self.header_begin:
            yield from self._read_again(source, channel)
        try:
            yield from self.read_header(source, channel)
        except Malformed:
            if not (is_sure and source.at_end):
                raise

    def _read_again(self, source: Source, channel: Channel) -> Step[None]:
        """Reads another header's start at once behind the first, which then does not count."""
        first = next(each for each in self.begins if self.header_begin.startswith(each))
        while again := (yield from source.accept(first)):
            channel.header = again


def _closed(lark: Lark, content: str, end: str) -> str:
    return f"{content} {lark.optional(lark.text(end))}" if end else content
