"""The text of one output as its grammar reads it, although it comes in pieces.

A grammar is a generator: it reads with the methods below by `yield from`, from left to right, and
is suspended where more text must come. What it reads depends on the text alone and never on how
that was cut.
"""

import re
from collections.abc import Callable
from typing import Any

from node.parsing.json_text import JsonScan, read_json
from node.parsing.scanning.markers import Markers, markers_of
from node.parsing.scanning.step import HELD_LENGTH, Malformed, Step, TooLong
from node.parsing.scanning.text_buffer import TextBuffer

_SPACE = re.compile(r"\s*")


class TextReader:
    """Positions are absolute: characters since the output's begin."""

    def __init__(self) -> None:
        self.is_cut = False
        """Whether the output was ended within what the model would have said."""
        self._buffer = TextBuffer()
        self._ended = False
        self._block: int | None = None
        """Where the block begins that is being read, or what its last call left of it."""
        self._passed = 0
        """Up to where it was told, roughly: arguments of a call that has not ended."""
        self._block_end: int | None = None
        """Where it ends at last, if that is sure; else where it would be too long."""
        self._most_length = HELD_LENGTH
        """Of the block."""
        self._reach = 0
        """Up to where the block was read, also where it was given back."""

    # --- what comes ---------------------------------------------------------------------------

    def append(self, text: str) -> None:
        self._buffer.append(text)

    def end(self, *, is_cut: bool = False) -> None:
        """No more text comes; `is_cut`: the model would have said more."""
        self._ended = True
        self.is_cut = is_cut

    def end_block(self) -> None:
        """What comes from here on is no part of the block that is being read, if there is one."""
        if self._block is not None:
            self._block_end = self._buffer.end

    @property
    def block_begin(self) -> int | None:
        """Where the block begins that is being read, or what its last call left of it; None where
        nothing has come of that."""
        return self._block if (self._block or 0) < self._buffer.end else None

    @property
    def block_text(self) -> str:
        """What has come of it and is not told; none where there is no block."""
        is_none = self.block_begin is None
        return "" if is_none else self._buffer.slice(self._passed, self._buffer.end)

    @property
    def at_end(self) -> bool:
        """Whether all text has been read, and no more comes."""
        return self._ended and not self._have()

    def ends_within(self, *literals: str) -> bool:
        """Whether the output ends where one of the literals may have come, or within it."""
        if not self._ended:
            return False
        ahead = self._buffer.slice(self._buffer.at, self._buffer.end)
        return any(each.startswith(ahead) for each in literals)

    @property
    def position(self) -> int:
        """Up to where the text was read."""
        return self._buffer.at

    def since(self, position: int) -> str:
        """What was read of a block from there on."""
        return self._buffer.slice(position, self._buffer.at)

    # --- reading ------------------------------------------------------------------------------

    def peek(self, count: int = 1) -> Step[str]:
        """The next characters, without reading them; fewer at the end."""
        while (have := self._have()) < count and not self._is_last():
            yield
        at = self._buffer.at
        return self._buffer.slice(at, at + min(count, have))

    def accept(self, *literals: str) -> Step[str]:
        """Reads the longest of the literals that comes next; "" if none does."""
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
        """As `accept`. Raises `Malformed` if none comes."""
        found = yield from self.accept(*literals)
        if not found:
            raise Malformed
        return found

    def space(self) -> Step[str]:
        """Reads white space; what it was."""
        return (yield from self.run(_SPACE))

    def run(self, pattern: "re.Pattern[str]") -> Step[str]:
        """Reads as many characters as the pattern matches, which is one of single characters that
        repeat; what they were, also none. Outside of blocks, not more than a block may have."""
        buffer = self._buffer
        begin = buffer.at
        most = begin + self._most_length
        while True:
            limit = min(self._limit(), most - buffer.begin)
            match = pattern.match(buffer.text, buffer.at - buffer.begin, limit)
            if match is not None:
                buffer.at = match.end() + buffer.begin
            if self._have() or buffer.at == most or self._is_last():
                return buffer.slice(begin, buffer.at)
            yield

    def pass_run(self, pattern: "re.Pattern[str]", tell: Callable[[str], None]) -> Step[None]:
        """Reads as many characters as the pattern matches and tells them as they come; as `run`,
        of the pattern."""
        buffer = self._buffer
        while True:
            text, at, limit = buffer.text, buffer.at - buffer.begin, self._limit()
            match = pattern.match(text, at, limit)
            end = at if match is None else match.end()
            if end > at:
                buffer.at += end - at
                tell(text[at:end])
            if end < limit or self._is_last():
                return
            yield

    def capture(self, *markers: str, at_end: bool = False) -> Step[tuple[str, str]]:
        """(the text up to the first of the markers, the marker), both read and not told. At the
        end of all text ("the rest", "") where `at_end` allows it; else raises `Malformed`."""
        return (yield from self.capture_any(markers_of(markers), at_end=at_end))

    def capture_any(self, markers: Markers, *, at_end: bool = False) -> Step[tuple[str, str]]:
        """As `capture`, of markers that were made before."""
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
        """Reads a JSON object, list or string; its text. Raises `Malformed` for anything else."""
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
                self._reach = max(self._reach, begin + scan.length)
                raise Malformed from None
            if scan.is_whole:
                return buffer.slice(begin, buffer.at)
            if self._is_last():
                raise Malformed
            yield

    def json_value(self) -> Step[Any]:
        """The value of what `json` reads. Raises `Malformed`."""
        text = yield from self.json()
        try:
            return read_json(text)
        except ValueError:
            raise Malformed from None

    def _pass_whole(self, markers: Markers, tell: Callable[[str], None]) -> Step[str]:
        """Reads the text up to the first of the markers and tells it, and reads the marker, which
        it returns. Raises `Malformed` where none comes."""
        text, marker = yield from self.capture_any(markers)
        tell(text)
        return marker

    def _pass_pieces(self, markers: Markers, tell: Callable[[str], None]) -> Step[str]:
        """As `_pass_whole`, telling the text as it comes."""
        buffer = self._buffer
        while True:
            begin, limit = buffer.at, self._limit()
            at, marker = markers.find(buffer.text, begin - buffer.begin, limit, ended=self._ended)
            if not marker and self._ended:
                # Where nothing more comes, the begin of a marker is none of the text all the same.
                at, _ = markers.find(buffer.text, begin - buffer.begin, limit, ended=False)
            buffer.at = at + buffer.begin
            if buffer.at > begin:
                tell(buffer.slice(begin, buffer.at))
            if marker:
                buffer.at += len(marker)
                return marker
            if self._is_last():
                raise Malformed
            yield

    # --- inside -------------------------------------------------------------------------------

    def _limit(self) -> int:
        """Up to where the text may be read, within it."""
        buffer = self._buffer
        if self._block is None:
            return len(buffer.text)
        return min(len(buffer.text), self._most() - buffer.begin)

    def _most(self) -> int:
        """Up to where the block may go."""
        most = self._passed + self._most_length
        return most if self._block_end is None else min(most, self._block_end)

    def _have(self) -> int:
        return self._limit() - (self._buffer.at - self._buffer.begin)

    def _is_last(self) -> bool:
        """Whether there will never be more. Raises `TooLong` where a block may hold no more."""
        if self._block is not None and self._limit() < len(self._buffer.text):
            raise TooLong
        return self._ended
