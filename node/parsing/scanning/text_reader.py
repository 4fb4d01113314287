"""Lets a format read the text of one output although the text arrives in pieces.

A format's `read` is a generator. It calls the methods below with `yield from`, from left to right,
and is suspended while more text must arrive. Its result depends on the text alone and never on how
the text was cut.
"""

import re
from collections.abc import Callable
from typing import Any

from node.parsing.json_text import JsonScan, read_json
from node.parsing.scanning.block import Block
from node.parsing.scanning.markers import Markers, markers_of
from node.parsing.scanning.step import BlockTooLong, Malformed, Step
from node.parsing.scanning.text_buffer import TextBuffer

_SPACE = re.compile(r"\s*")


class TextReader:
    """Reads one output. Positions are characters since the start of the output."""

    def __init__(self, token_markers: frozenset[str] = frozenset()) -> None:
        """Each of `token_markers` counts as markup only if it came as an added token."""
        self.is_cut = False
        """True if the output was ended before the model would have ended it."""
        self._buffer = TextBuffer(token_markers)
        self.tokens = self._buffer.tokens
        """The added tokens in the text."""
        self.block = Block(self._buffer)
        """The block that is being read."""
        self._ended = False

    # --- input --------------------------------------------------------------------------------

    def append(self, text: str) -> None:
        self._buffer.append(text)

    def append_token(self, text: str, *, special: bool) -> None:
        """Appends an added token of the vocabulary."""
        self._buffer.append_token(text, special=special)

    def end(self, *, is_cut: bool = False) -> None:
        """Ends the text; `is_cut` means that the model would have continued."""
        self._ended = True
        self.is_cut = is_cut

    @property
    def at_end(self) -> bool:
        """True if all text has been read and no more comes."""
        return self._ended and not self._have()

    def ends_within(self, *literals: str) -> bool:
        """True if the output has ended and its unread rest, if any, begins one of the literals."""
        if not self._ended:
            return False
        ahead = self._buffer.slice(self._buffer.at, self._buffer.end)
        return any(each.startswith(ahead) for each in literals)

    @property
    def position(self) -> int:
        """Position up to which the text was read."""
        return self._buffer.at

    def since(self, position: int) -> str:
        """Returns the text of a block that was read from a position on."""
        return self._buffer.slice(position, self._buffer.at)

    # --- reading ------------------------------------------------------------------------------

    def peek(self, count: int = 1) -> Step[str]:
        """Returns the next characters without reading them; fewer at the end."""
        while (have := self._have()) < count and not self._is_last():
            yield
        at = self._buffer.at
        return self._buffer.slice(at, at + min(count, have))

    def accept(self, *literals: str) -> Step[str]:
        """Reads and returns the longest of the literals that comes next; "" if none does."""
        longest = max(map(len, literals))
        while True:
            at = self._buffer.at
            ahead = self._buffer.slice(at, at + longest)
            open_ends = any(len(each) > len(ahead) and each.startswith(ahead) for each in literals)
            if not open_ends or self._is_last():
                break
            yield
        found = max((each for each in literals if ahead.startswith(each)), key=len, default="")
        self._buffer.at += len(found)
        return found

    def expect(self, *literals: str) -> Step[str]:
        """Like `accept`, but raises `Malformed` if no literal comes."""
        found = yield from self.accept(*literals)
        if not found:
            raise Malformed
        return found

    def space(self) -> Step[str]:
        """Reads and returns white space."""
        return (yield from self.run(_SPACE))

    def run(self, pattern: "re.Pattern[str]") -> Step[str]:
        """Reads and returns the characters that the pattern matches, possibly none. The pattern
        must be a repeated class of single characters. Outside of blocks it reads at most a block's
        length."""
        buffer = self._buffer
        begin = buffer.at
        most = begin + self.block.most_length
        while True:
            limit = min(self._limit(), most - buffer.begin)
            match = pattern.match(buffer.text, buffer.at - buffer.begin, limit)
            if match is not None:
                buffer.at = match.end() + buffer.begin
            if self._have() or buffer.at == most or self._is_last():
                return buffer.slice(begin, buffer.at)
            yield

    def pass_run(self, pattern: "re.Pattern[str]", emit: Callable[[str], None]) -> Step[None]:
        """Reads the characters that the pattern matches and passes them to `emit` as they arrive.
        The pattern is one for `run`."""
        buffer = self._buffer
        while True:
            text, at, limit = buffer.text, buffer.at - buffer.begin, self._limit()
            match = pattern.match(text, at, limit)
            end = at if match is None else match.end()
            if end > at:
                buffer.at += end - at
                emit(text[at:end])
            if end < limit or self._is_last():
                return
            yield

    def capture(self, *markers: str, at_end: bool = False) -> Step[tuple[str, str]]:
        """Reads up to the first of the markers and returns (text before it, the marker); nothing is
        emitted. At the end of the output it returns ("the rest", "") if `at_end` allows that, else
        it raises `Malformed`."""
        return (yield from self.capture_any(markers_of(markers), at_end=at_end))

    def capture_any(self, markers: Markers, *, at_end: bool = False) -> Step[tuple[str, str]]:
        """Like `capture`, for markers that are already compiled."""
        buffer = self._buffer
        begin = buffer.at
        while True:
            limit = self._limit()
            ended = self._ended and limit == len(buffer.text)
            at, marker = markers.find(buffer.text, buffer.at - buffer.begin, limit, ended=ended)
            buffer.at = end = at + buffer.begin
            if marker:
                buffer.at += len(marker)
                return buffer.slice(begin, end), marker
            if self._is_last():
                if not at_end:
                    raise Malformed
                return buffer.slice(begin, end), ""
            yield

    def json(self) -> Step[str]:
        """Reads a JSON object, list or string and returns its text. Raises `Malformed` for anything
        else."""
        if (yield from self.peek()) not in ("{", "[", '"'):
            raise Malformed
        buffer = self._buffer
        begin = buffer.at
        scan = JsonScan()
        while True:
            at = buffer.at - buffer.begin
            try:
                buffer.at = scan.read(buffer.text, at, self._limit()) + buffer.begin
            except ValueError:
                self.block.reach = max(self.block.reach, begin + scan.length)
                raise Malformed from None
            if scan.is_whole:
                return buffer.slice(begin, buffer.at)
            if self._is_last():
                raise Malformed
            yield

    def json_value(self) -> Step[Any]:
        """Reads like `json` and returns the value. Raises `Malformed`."""
        text = yield from self.json()
        try:
            return read_json(text)
        except ValueError:
            raise Malformed from None

    def _pass_whole(self, markers: Markers, emit: Callable[[str], None]) -> Step[str]:
        """Reads the text up to the first of the markers, passes it to `emit` and returns the
        marker. Raises `Malformed` if no marker comes."""
        text, marker = yield from self.capture_any(markers)
        emit(text)
        return marker

    def _pass_pieces(self, markers: Markers, emit: Callable[[str], None]) -> Step[str]:
        """Like `_pass_whole`, but passes the text on as it arrives."""
        buffer = self._buffer
        while True:
            begin, limit = buffer.at, self._limit()
            at, marker = markers.find(buffer.text, begin - buffer.begin, limit, ended=self._ended)
            if not marker and self._ended:
                # At the end of the output, the start of a marker is still no part of the text.
                at, _ = markers.find(buffer.text, begin - buffer.begin, limit, ended=False)
            buffer.at = at + buffer.begin
            if buffer.at > begin:
                emit(buffer.slice(begin, buffer.at))
            if marker:
                buffer.at += len(marker)
                return marker
            if self._is_last():
                raise Malformed
            yield

    # --- inside -------------------------------------------------------------------------------

    def _limit(self) -> int:
        """Index in the buffer's text up to which it may be read."""
        buffer, block = self._buffer, self.block
        length = len(buffer.text)
        if block.begin is None:
            return length
        limit = block.limit - buffer.begin
        return limit if limit < length else length

    def _have(self) -> int:
        return self._limit() - (self._buffer.at - self._buffer.begin)

    def _is_last(self) -> bool:
        """True if no more text will come. Raises `BlockTooLong` if the block has reached its
        limit."""
        block = self.block
        if block.begin is not None and block.limit < self._buffer.end:
            raise BlockTooLong
        return self._ended
