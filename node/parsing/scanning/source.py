"""What a grammar reads of an output, and what it finds there.

Text that a grammar lets through is told at once; a block that is being read is held, and becomes
text again if it turns out to be none.
"""

from collections.abc import Callable, Mapping
from typing import Any

from node.ipc.messages import PartKind
from node.parsing.scanning.added_tokens import Tokens
from node.parsing.scanning.digests import Digests
from node.parsing.scanning.markers import Markers
from node.parsing.scanning.open_call import OpenCall
from node.parsing.scanning.sink import Call, Sink
from node.parsing.scanning.step import HELD_LENGTH, LONGEST_CALL, Malformed, Step, T, TooLong
from node.parsing.scanning.text_reader import TextReader
from node.parsing.scanning.work_budget import Budget
from node.protocol.errors import BROKEN_CALL

_BROKEN = BROKEN_CALL + "{}: it left the format of its calls."
_KEPT_LENGTH = 4096
"""Characters of arguments that were told and are not forgotten yet: to do that costs more than to
keep them."""
_ENDED = BROKEN_CALL + "{}: it ended its output there."


class Source(TextReader):
    """Positions are those of `TextReader`."""

    def __init__(
        self,
        sink: Sink,
        schemas: Mapping[str, Mapping[str, Any]],
        token_markers: frozenset[str] = frozenset(),
    ) -> None:
        """Of `token_markers` only what came as an added token counts."""
        super().__init__()
        self.schemas = schemas
        """The tools that may be called, by name: JSON schema of the arguments."""
        self.in_reasoning = False
        """Whether what comes now is reasoning."""
        self.has_spoken = False
        """Whether there was content, other than white space, since the last edge."""
        self.has_answered = False
        """Whether there was any content, other than white space."""
        self.tokens = Tokens(token_markers)
        """The added tokens in the text."""
        self.budget = Budget()
        self._sink = sink
        self._settled = 0
        """Up to where the block is text if it is none."""
        self._kept: list[Call] | None = None
        """The calls of the block, while it is not sure that they are any."""
        self._hides_calls = False
        self._streams = False
        self._open: OpenCall | None = None
        """The call that was begun, while its arguments come."""

    # --- what comes ---------------------------------------------------------------------------

    def append_token(self, text: str, *, special: bool) -> None:
        """An added token of the vocabulary."""
        if text:
            self.tokens.add(self._buffer.end, text, special=special)
        self.append(text)

    # --- reading ------------------------------------------------------------------------------

    def until(self, kind: PartKind, markers: Markers) -> Step[str]:
        """Tells the text up to a marker, and reads the marker, which it returns; "" at the end."""
        self.in_reasoning = kind is PartKind.REASONING
        buffer = self._buffer
        while True:
            ended = self._ended
            at, marker = markers.find(
                buffer.text,
                buffer.at - buffer.begin,
                len(buffer.text),
                ended=ended,
                counts=lambda at, marker: self.tokens.counts(at + buffer.begin, marker),
            )
            self._tell(kind, at + buffer.begin)
            if marker:
                buffer.at += len(marker)
                return marker
            if ended:
                return ""
            yield

    def rest(self, kind: PartKind) -> Step[None]:
        """Tells all text that comes."""
        yield from self.until(kind, _NOTHING)

    def either(self, *readings: Step[None]) -> Step[None]:
        """Reads the first that can be read, each from here on. Raises `Malformed` where none can,
        or one could not after it told a call."""
        start, block = self._buffer.at, self._block
        kept = None if self._kept is None else list(self._kept)
        for each in readings:
            try:
                yield from each
                return
            except TooLong:
                raise
            except Malformed:
                if self._block != block or self._open is not None:
                    raise
                self._give_back(start)
                self._kept = kept
        raise Malformed

    def maybe(self, reading: Step[T]) -> Step[T | None]:
        """What can be read within a block; None, and nothing is read, where it cannot be. Raises
        `Malformed` where it could not after it told a call."""
        start, block = self._buffer.at, self._block
        try:
            return (yield from reading)
        except TooLong:
            raise
        except Malformed:
            if self._block != block or self._open is not None:
                raise
            self._give_back(start)
            return None

    def skip(self, markers: Markers) -> Step[str]:
        """Reads the text up to a marker, which it returns, or to the end, and drops it. Only for
        text behind a call of the same block: while calls are kept, reads nothing."""
        buffer = self._buffer
        while self._kept is None:
            ended = self._ended
            at, marker = markers.find(
                buffer.text, buffer.at - buffer.begin, len(buffer.text), ended=ended
            )
            buffer.at = at + buffer.begin
            self._forget()
            buffer.at += len(marker)
            if self._block is not None:
                self._begin_block(buffer.at)
            if marker or ended:
                return marker
            yield
        return ""

    def pass_to(self, markers: Markers, tell: Callable[[str], None]) -> Step[str]:
        """Reads the text of an argument up to the first of the markers and tells it, as it comes
        where calls are streamed, and reads the marker, which it returns. Raises `Malformed` where
        none comes."""
        if self.is_streaming:
            return self._pass_pieces(markers, tell)
        return self._pass_whole(markers, tell)

    # --- what was found -----------------------------------------------------------------------

    def edge(self) -> None:
        """The markup that was just read parts what was said from what will be."""
        self._sink.edge()
        self.tokens.part()
        self.has_spoken = False
        self.in_reasoning = False

    def call(self, name: str, arguments: str | Mapping[str, Any], call_id: str = "") -> None:
        """A whole call; what was read so far is settled. Raises `Malformed`, `Finished`."""
        if self._hides_calls:
            self._pass_call()
            return
        if self._kept is not None:
            self._sink.check(name, arguments)
            self._kept.append(Call(name, arguments, call_id))
            return
        self._sink.call(name, arguments, call_id)
        self.has_spoken = False
        self._pass_call()

    def stream_calls(self) -> None:
        """The arguments of calls are told as they come."""
        self._streams = True

    @property
    def is_streaming(self) -> bool:
        """Whether they are those of calls of the block that is being read."""
        return self._streams and self._kept is None and not self._hides_calls

    def open_call(
        self, name: str, call_id: str = "", *, before: str = "", is_marked: bool = True
    ) -> OpenCall:
        """A call whose arguments are being read, and that is told with its `end`. `before`: content
        that stands before it; not `is_marked`: all of it shows only at its end whether it is a
        call. Raises `Malformed` where the tool may not be called."""
        schema = self.tool(name)
        is_streamed = is_marked and self.is_streaming
        return OpenCall(self, name, schema, call_id, before=before, is_streamed=is_streamed)

    def earlier(self, name: str) -> list[Digests] | None:
        return self._sink.earlier_calls(name)

    def begin(self, call: OpenCall) -> None:
        self.say_beside(call.before)
        self._sink.begin_call(call.name, call.call_id)
        self._open = call
        self.has_spoken = False
        self._pass_arguments()

    def argue(self, text: str) -> None:
        self._sink.argue(text)
        if self._buffer.at - self._passed >= _KEPT_LENGTH:
            self._pass_arguments()

    def end_call(self, call: OpenCall, digests: Digests) -> None:
        self._open = None
        self._pass_call()
        self._sink.end_call(call.name, digests)

    def give(self, call: OpenCall, arguments: str | Mapping[str, Any]) -> None:
        self.say_beside(call.before)
        self.call(call.name, arguments, call.call_id)

    def hide_calls(self) -> None:
        """Calls may be of any tool, and are not told."""
        self._hides_calls = True
        self.schemas = _Every()

    def tool(self, name: str) -> Mapping[str, Any]:
        """The schema of a tool that the block names, which may be as long as a call then. Raises
        `Malformed` where it may not be called."""
        if name not in self.schemas:
            raise Malformed
        self.allow_call_length()
        return self.schemas[name]

    def was_token(self, marker: str) -> bool:
        """Whether the marker that was just read came as an added token."""
        return self._buffer.at - len(marker) in self.tokens

    def allow_call_length(self) -> None:
        """The block is a call as far as can be seen, and may be as long as one."""
        self._most_length = LONGEST_CALL

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
            if not text.isspace():
                self.has_spoken = True
                self.has_answered = self.has_answered or kind is PartKind.CONTENT

    def say_beside(self, text: str) -> None:
        """Content that stands in a block besides its calls. Raises `Malformed` in reasoning, where
        all of the block may turn out to be text."""
        if text and self.in_reasoning:
            raise Malformed
        self.say(PartKind.CONTENT, text)

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
        start = self._buffer.at - len(opener)
        if self.budget.is_spent:
            block.close()
            self.say_marker(kind, opener)
            return False
        self._begin_block(start)
        if self._block_end is not None and self._block_end <= start:
            self._block_end = None
        self._reach = self._settled = self._buffer.at
        try:
            yield from block
        except Malformed as exc:
            return self._refuse(opener, start, kind, is_too_long=isinstance(exc, TooLong))
        self._end_block()
        return True

    def settle_text(self) -> None:
        """What was read so far is text, and not read again, if the block turns out to be none."""
        self._settled = self._buffer.at

    # --- inside -------------------------------------------------------------------------------

    def _begin_block(self, at: int) -> None:
        self._block = self._passed = at
        self._most_length = HELD_LENGTH

    def _pass_arguments(self) -> None:
        """Arguments were told: what was read so far cannot become text any more."""
        if self._block is not None:
            self._passed = self._buffer.at
            self._most_length = LONGEST_CALL
            self._forget()

    def _pass_call(self) -> None:
        """A call was told: what was read so far is none of the block any more."""
        if self._block is not None:
            self._begin_block(self._buffer.at)
            self._forget()

    def _end_block(self) -> None:
        self._block = None
        self._most_length = HELD_LENGTH

    def _refuse(self, opener: str, start: int, kind: PartKind, *, is_too_long: bool) -> bool:
        """Ends a block that is none; whether a call of it was told. Raises `Finished`."""
        if self._open is not None:
            return self._break_off(self._open)
        begin, self._kept = self._block, None
        assert begin is not None
        limit = self._most()
        self._end_block()
        # What follows the last call may be anything.
        is_told = begin != start
        end = limit if is_too_long else self._settled
        end = begin if is_told else end
        reach = min(max(self._reach, self._buffer.at, end), limit)
        if not self.budget.read_again(reach - end):
            end = reach
        self._buffer.back(begin)
        if not is_told:
            self.budget.refuse()
            if start not in self.tokens:
                self.tokens.begin_text(opener)
        self._tell(kind, end, verbatim=True)
        return is_told

    def _break_off(self, call: OpenCall) -> bool:
        """Ends a block within a call of which arguments were told."""
        self._open = None
        if not (self._ended and self.is_cut):
            reason = _ENDED if self._ended else _BROKEN
            self._sink.fail(reason.format(call.name))
        self._end_block()
        self._buffer.at = self._buffer.end
        return True

    def _give_back(self, at: int) -> None:
        """What was read from there on is to be read again."""
        self._reach = max(self._reach, self._buffer.at)
        self.budget.give_back(self._reach - at)
        self._buffer.back(at)

    def _tell(self, kind: PartKind, end: int, *, verbatim: bool = False) -> None:
        """Tells the text from here up to `end`, without tokens that are none, and forgets it."""
        buffer = self._buffer
        begin, buffer.at = buffer.at, end
        if begin < end:
            spans = self.tokens.text_between(begin, end)
            pieces = [buffer.slice(at, to) for at, to in ([(begin, end)] if verbatim else spans)]
            self.say(kind, "".join(pieces))
        if self._block is None:
            self._forget()

    def _forget(self) -> None:
        """Drops the text that was read."""
        self._buffer.forget()
        self.tokens.forget(self._buffer.at)


class _Every(dict[str, Mapping[str, Any]]):
    """All names of tools, whose arguments may be any."""

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str)

    def __missing__(self, name: str) -> Mapping[str, Any]:
        return {}


_NOTHING = Markers(())
