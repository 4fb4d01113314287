"""The text of one output as its grammar reads it, although it comes in pieces.

A grammar is a generator: it reads with the methods below by `yield from`, from left to right, and
is suspended where more text must come. What it reads depends on the text alone and never on how
that was cut. Text that a grammar lets through is told at once; a block that is being read is
held, and becomes text again if it turns out to be none.
"""

import re
from collections.abc import Mapping
from typing import Any

from node.parsing.budget import Budget
from node.parsing.json_text import JsonScan, read_json
from node.parsing.markers import Markers, markers_of
from node.parsing.sink import Call, Sink
from node.parsing.step import HELD_LENGTH, Malformed, Step, T, TooLong
from node.parsing.tokens import Tokens
from node.types import PartKind

_SPACE = re.compile(r"\s*")


class Source:
    """Positions are absolute: characters since the output's begin."""

    def __init__(
        self,
        sink: Sink,
        schemas: Mapping[str, Mapping[str, Any]],
        token_markers: frozenset[str] = frozenset(),
    ) -> None:
        """Of `token_markers` only what came as an added token counts."""
        self.schemas = schemas
        """The tools that may be called, by name: JSON schema of the arguments."""
        self.in_reasoning = False
        """Whether what comes now is reasoning."""
        self.has_spoken = False
        """Whether there was content, other than white space, since the last edge."""
        self.is_cut = False
        """Whether the output was ended within what the model would have said."""
        self.tokens = Tokens(token_markers)
        """The added tokens in the text."""
        self.budget = Budget()
        self._sink = sink
        self._text = ""
        self._base = 0
        self._at = 0
        self._ended = False
        self._block: int | None = None
        """Where the block begins that is being read, or what its last call left of it."""
        self._block_end: int | None = None
        """Where it ends at last, if that is sure; else where it would be too long."""
        self._reach = 0
        """Up to where the block was read, also where it was given back."""
        self._settled = 0
        """Up to where the block is text if it is none."""
        self._kept: list[Call] | None = None
        """The calls of the block, while it is not sure that they are any."""

    # --- what comes ---------------------------------------------------------------------------

    def append(self, text: str) -> None:
        self._text += text

    def append_token(self, text: str, *, special: bool) -> None:
        """An added token of the vocabulary."""
        if text:
            self.tokens.add(self._base + len(self._text), text, special=special)
        self._text += text

    def end_block(self) -> None:
        """What comes from here on is no part of the block that is being read, if there is one."""
        if self._block is not None:
            self._block_end = self._base + len(self._text)

    @property
    def block_text(self) -> str:
        """What has come of the block that is being read; none where there is no block."""
        return "" if self._block is None else self._text[self._block - self._base :]

    def end(self, *, is_cut: bool = False) -> None:
        """No more text comes; `is_cut`: the model would have said more."""
        self._ended = True
        self.is_cut = is_cut

    # --- reading ------------------------------------------------------------------------------

    def until(self, kind: PartKind, markers: Markers) -> Step[str]:
        """Tells the text up to a marker, and reads the marker, which it returns; "" at the end."""
        self.in_reasoning = kind is PartKind.REASONING
        while True:
            ended = self._ended
            at, marker = markers.find(
                self._text,
                self._at - self._base,
                len(self._text),
                ended=ended,
                counts=lambda at, marker: self.tokens.counts(at + self._base, marker),
            )
            self._tell(kind, at + self._base)
            if marker:
                self._at += len(marker)
                return marker
            if ended:
                return ""
            yield

    def rest(self, kind: PartKind) -> Step[None]:
        """Tells all text that comes."""
        yield from self.until(kind, _NOTHING)

    def peek(self, count: int = 1) -> Step[str]:
        """The next characters, without reading them; fewer at the end."""
        while (have := self._have()) < count and not self._is_last():
            yield
        return self._slice(self._at, self._at + min(count, have))

    def accept(self, *literals: str) -> Step[str]:
        """Reads the longest of the literals that comes next; "" if none does."""
        longest = max(map(len, literals))
        while True:
            ahead = self._slice(self._at, self._at + longest)
            open_ends = any(len(each) > len(ahead) and each.startswith(ahead) for each in literals)
            if not open_ends or self._is_last():
                break
            yield
        found = max((each for each in literals if ahead.startswith(each)), key=len, default="")
        self._at += len(found)
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
        begin = self._at
        most = begin + HELD_LENGTH
        while True:
            limit = min(self._limit(), most - self._base)
            match = pattern.match(self._text, self._at - self._base, limit)
            if match is not None:
                self._at = match.end() + self._base
            if self._have() or self._at == most or self._is_last():
                return self._slice(begin, self._at)
            yield

    def capture(self, *markers: str, at_end: bool = False) -> Step[tuple[str, str]]:
        """(the text up to the first of the markers, the marker), both read and not told. At the
        end of all text ("the rest", "") where `at_end` allows it; else raises `Malformed`."""
        return (yield from self.capture_any(markers_of(markers), at_end=at_end))

    def capture_any(self, markers: Markers, *, at_end: bool = False) -> Step[tuple[str, str]]:
        """As `capture`, of markers that were made before."""
        begin = search = self._at
        while True:
            ended = self._ended and self._limit() == len(self._text)
            at, marker = markers.find(self._text, search - self._base, self._limit(), ended=ended)
            search = at + self._base
            if marker:
                self._at = search + len(marker)
                return self._slice(begin, search), marker
            if self._is_last():
                self._reach = max(self._reach, search)
                if not at_end:
                    raise Malformed
                self._at = search
                return self._slice(begin, search), ""
            yield

    def json(self) -> Step[str]:
        """Reads a JSON object, list or string; its text. Raises `Malformed` for anything else."""
        if (yield from self.peek()) not in ("{", "[", '"'):
            raise Malformed
        begin = at = self._at
        scan = JsonScan()
        while not scan.is_whole:
            try:
                at = scan.read(self._text, at - self._base, self._limit()) + self._base
            except ValueError:
                self._reach = max(self._reach, begin + scan.length)
                raise Malformed from None
            if not scan.is_whole:
                self._reach = max(self._reach, at)
                if self._is_last():
                    raise Malformed
                yield
        self._at = at
        return self._slice(begin, at)

    def json_value(self) -> Step[Any]:
        """The value of what `json` reads. Raises `Malformed`."""
        text = yield from self.json()
        try:
            return read_json(text)
        except ValueError:
            raise Malformed from None

    def either(self, *readings: Step[None]) -> Step[None]:
        """Reads the first that can be read, each from here on. Raises `Malformed` where none can,
        or one could not after it told a call."""
        start, block = self._at, self._block
        kept = None if self._kept is None else list(self._kept)
        for each in readings:
            try:
                yield from each
                return
            except TooLong:
                raise
            except Malformed:
                if self._block != block:
                    raise
                self._give_back(start)
                self._kept = kept
        raise Malformed

    def maybe(self, reading: Step[T]) -> Step[T | None]:
        """What can be read within a block; None, and nothing is read, where it cannot be."""
        start = self._at
        try:
            return (yield from reading)
        except TooLong:
            raise
        except Malformed:
            self._give_back(start)
            return None

    def skip(self, markers: Markers) -> Step[str]:
        """Reads the text up to a marker, which it returns, or to the end, and drops it. Only for
        text behind a call of the same block: while calls are kept, reads nothing."""
        while self._kept is None:
            ended = self._ended
            at, marker = markers.find(
                self._text, self._at - self._base, len(self._text), ended=ended
            )
            self._at = at + self._base
            self._forget()
            self._at += len(marker)
            if self._block is not None:
                self._block = self._at
            if marker or ended:
                return marker
            yield
        return ""

    @property
    def at_end(self) -> bool:
        """Whether all text has been read, and no more comes."""
        return self._ended and not self._have()

    # --- what was found -----------------------------------------------------------------------

    def edge(self) -> None:
        """The markup that was just read parts what was said from what will be."""
        self._sink.edge()
        self.tokens.part()
        self.has_spoken = False
        self.in_reasoning = False

    def call(self, name: str, arguments: str | Mapping[str, Any], call_id: str = "") -> None:
        """A whole call; what was read so far is settled. Raises `Malformed`, `Finished`."""
        if self._kept is not None:
            self._sink.check(name, arguments)
            self._kept.append(Call(name, arguments, call_id))
            return
        self._sink.call(name, arguments, call_id)
        self.has_spoken = False
        if self._block is not None:
            self._block = self._at

    def keep_calls(self) -> None:
        """From here on calls of the block are not told until `take_kept`."""
        self._kept = []

    def take_kept(self) -> list[Call]:
        """The calls that were kept; those that follow are told again."""
        kept, self._kept = self._kept or [], None
        return kept

    def say(self, kind: PartKind, text: str) -> None:
        """Text that is not as it stands in the output."""
        if text:
            self._sink.say(kind, text)
            self.has_spoken = self.has_spoken or not text.isspace()

    def say_marker(self, kind: PartKind, marker: str) -> None:
        """The marker that was just read is text."""
        self.tokens.begin_text(marker)
        self.say(kind, marker)

    def resume(self, kind: PartKind) -> None:
        """What is said goes on from text of the prompt."""
        self._sink.resume(kind)
        self.has_spoken = kind is PartKind.CONTENT

    def attempt(self, opener: str, block: Step[None], kind: PartKind) -> Step[bool]:
        """Reads a block whose opener was just read; whether it was one. If not, what no call was
        told of becomes text of `kind`: the opener, and all that follows is read anew."""
        start = self._at - len(opener)
        if self.budget.is_spent:
            block.close()
            self.say_marker(kind, opener)
            return False
        self._block = start
        if self._block_end is not None and self._block_end <= start:
            self._block_end = None
        self._reach = self._settled = self._at
        try:
            yield from block
        except Malformed as exc:
            return self._refuse(opener, start, kind, is_too_long=isinstance(exc, TooLong))
        self._block = None
        return True

    def settle_text(self) -> None:
        """What was read so far is text, and not read again, if the block turns out to be none."""
        self._settled = self._at

    # --- inside -------------------------------------------------------------------------------

    def _refuse(self, opener: str, start: int, kind: PartKind, *, is_too_long: bool) -> bool:
        """Ends a block that is none; whether a call of it was told."""
        begin, self._kept = self._block, None
        assert begin is not None
        limit = self._most(begin)
        self._block = None
        # What follows the last call may be anything.
        is_told = begin != start
        end = limit if is_too_long else self._settled
        end = begin if is_told else end
        reach = min(max(self._reach, self._at, end), limit)
        if not self.budget.read_again(reach - end):
            end = reach
        self._at = begin
        if not is_told:
            self.budget.refuse()
            if start not in self.tokens:
                self.tokens.begin_text(opener)
        self._tell(kind, end, verbatim=True)
        return is_told

    def _give_back(self, at: int) -> None:
        """What was read from there on is to be read again."""
        self._reach = max(self._reach, self._at)
        self.budget.give_back(self._reach - at)
        self._at = at

    def _limit(self) -> int:
        """Up to where the text may be read, within it."""
        if self._block is None:
            return len(self._text)
        return min(len(self._text), self._most(self._block) - self._base)

    def _most(self, begin: int) -> int:
        """Up to where a block that begins there may go."""
        most = begin + HELD_LENGTH
        return most if self._block_end is None else min(most, self._block_end)

    def _have(self) -> int:
        return self._limit() - (self._at - self._base)

    def _is_last(self) -> bool:
        """Whether there will never be more. Raises `TooLong` where a block may hold no more."""
        if self._block is not None and self._limit() < len(self._text):
            raise TooLong
        return self._ended

    def _slice(self, begin: int, end: int) -> str:
        return self._text[begin - self._base : end - self._base]

    def _tell(self, kind: PartKind, end: int, *, verbatim: bool = False) -> None:
        """Tells the text from here up to `end`, without tokens that are none, and forgets it."""
        begin, self._at = self._at, end
        if begin < end:
            pieces = [self._slice(at, to) for at, to in self.tokens.text_between(begin, end)]
            self.say(kind, self._slice(begin, end) if verbatim else "".join(pieces))
        if self._block is None:
            self._forget()

    def _forget(self) -> None:
        """Drops the text that was read, once it is as long as the rest: that is copied."""
        if 2 * (self._at - self._base) >= len(self._text):
            self._text = self._text[self._at - self._base :]
            self._base = self._at
            self.tokens.forget(self._at)


_NOTHING = Markers(())
