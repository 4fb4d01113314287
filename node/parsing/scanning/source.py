"""The text of one output as a format reads it, together with what the format finds there.

Text outside of blocks is emitted at once. A block is buffered while it is read, and becomes text
again if it turns out not to be one.
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
"""Number of emitted characters of arguments that are kept before they are dropped; dropping them at
once costs more than keeping them."""
_ENDED = BROKEN_CALL + "{}: it ended its output there."


class Source(TextReader):
    """One output. Positions are those of `TextReader`."""

    def __init__(
        self,
        sink: Sink,
        schemas: Mapping[str, Mapping[str, Any]],
        token_markers: frozenset[str] = frozenset(),
    ) -> None:
        """Each of `token_markers` counts as markup only if it came as an added token."""
        super().__init__()
        self.schemas = schemas
        """JSON schemas of the arguments of the tools that may be called, by the tool's name."""
        self.in_reasoning = False
        """True if the text that comes next is reasoning."""
        self.has_spoken = False
        """True if there was content other than white space since the last edge."""
        self.has_answered = False
        """True if there was any content other than white space."""
        self.tokens = Tokens(token_markers)
        """The added tokens in the text."""
        self.budget = Budget()
        self._sink = sink
        self._settled = 0
        """Position up to which the block is text, and not read again, if it turns out not to be
        one."""
        self._kept: list[Call] | None = None
        """The calls of the block while it is not certain that they count; None if calls are
        emitted."""
        self._hides_calls = False
        self._streams = False
        self._open: OpenCall | None = None
        """The call that is being emitted while its arguments arrive."""

    # --- input --------------------------------------------------------------------------------

    def append_token(self, text: str, *, special: bool) -> None:
        """Appends an added token of the vocabulary."""
        if text:
            self.tokens.add(self._buffer.end, text, special=special)
        self.append(text)

    # --- reading ------------------------------------------------------------------------------

    def until(self, kind: PartKind, markers: Markers) -> Step[str]:
        """Emits the text up to a marker, reads the marker and returns it; "" at the end of the
        output."""
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
        """Emits all text that comes."""
        yield from self.until(kind, _NOTHING)

    def either(self, *readings: Step[None]) -> Step[None]:
        """Tries each reading from the current position and keeps the first that succeeds. Raises
        `Malformed` if none succeeds, or if one fails after it emitted a call."""
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
        """Tries to read a part of a block and returns its result; returns None, and reads nothing,
        if that fails. Raises `Malformed` if it fails after it emitted a call."""
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
        """Drops the text up to a marker, or up to the end, and returns the marker. Only for text
        behind a call of the same block: while calls are kept back it reads nothing."""
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
        """Reads the text of an argument up to the first of the markers, passes it to `tell`, piece
        by piece if calls are streamed, and returns the marker. Raises `Malformed` if no marker
        comes."""
        if self.is_streaming:
            return self._pass_pieces(markers, tell)
        return self._pass_whole(markers, tell)

    # --- findings -----------------------------------------------------------------------------

    def edge(self) -> None:
        """Marks that the markup just read separates the text before from the text behind."""
        self._sink.edge()
        self.tokens.part()
        self.has_spoken = False
        self.in_reasoning = False

    def call(self, name: str, arguments: str | Mapping[str, Any], call_id: str = "") -> None:
        """Emits a whole call; the text read so far belongs to it. Raises `Malformed`,
        `Finished`."""
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
        """From now on the arguments of calls are emitted as they arrive."""
        self._streams = True

    @property
    def is_streaming(self) -> bool:
        """True if the calls of the block that is being read are emitted as they arrive."""
        return self._streams and self._kept is None and not self._hides_calls

    def open_call(
        self, name: str, call_id: str = "", *, before: str = "", is_marked: bool = True
    ) -> OpenCall:
        """Returns a call whose arguments are to be read next; it counts once its `end` is called.
        `before` is content that stands before it. With `is_marked` False it is certain only at the
        end that this is a call, so it is emitted as a whole. Raises `Malformed` if the tool may not
        be called."""
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
        """From now on calls may be of any tool, and are dropped."""
        self._hides_calls = True
        self.schemas = _Every()

    def tool(self, name: str) -> Mapping[str, Any]:
        """Returns the schema of a tool that the block names, and allows the block a call's length.
        Raises `Malformed` if the tool may not be called."""
        if name not in self.schemas:
            raise Malformed
        self.allow_call_length()
        return self.schemas[name]

    def was_token(self, marker: str) -> bool:
        """True if the marker that was just read came as an added token."""
        return self._buffer.at - len(marker) in self.tokens

    def allow_call_length(self) -> None:
        """Allows the block a call's length, since it looks like one."""
        self._most_length = LONGEST_CALL

    def keep_calls(self) -> None:
        """From now on the calls of the block are kept back until `take_kept`."""
        self._kept = []

    def take_kept(self) -> list[Call]:
        """Returns the calls that were kept back; later ones are emitted again."""
        kept, self._kept = self._kept or [], None
        return kept

    def say(self, kind: PartKind, text: str) -> None:
        """Emits text that differs from the output's own characters at this place."""
        if text:
            self._sink.say(kind, text)
            if not text.isspace():
                self.has_spoken = True
                self.has_answered = self.has_answered or kind is PartKind.CONTENT

    def say_beside(self, text: str) -> None:
        """Emits content that stands in a block beside its calls. Raises `Malformed` in reasoning,
        where the whole block may turn out to be text."""
        if text and self.in_reasoning:
            raise Malformed
        self.say(PartKind.CONTENT, text)

    def say_marker(self, kind: PartKind, marker: str) -> None:
        """Emits the marker that was just read as text."""
        self.tokens.begin_text(marker)
        self.say(kind, marker)

    def resume(self, kind: PartKind) -> None:
        """Continues text of this kind that the prompt has begun."""
        self._sink.resume(kind)
        self.has_spoken = kind is PartKind.CONTENT

    def attempt(self, opener: str, block: Step[None], kind: PartKind) -> Step[bool]:
        """Reads a block whose opener was just read, and returns True if it was one. If not, the
        opener becomes text of `kind`, and all behind it that belongs to no emitted call is read
        anew."""
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
        """Settles that the text read so far is text, and is not read again, if the block turns out
        not to be one."""
        self._settled = self._buffer.at

    # --- inside -------------------------------------------------------------------------------

    def _begin_block(self, at: int) -> None:
        self._block = self._passed = at
        self._most_length = HELD_LENGTH

    def _pass_arguments(self) -> None:
        """Notes that arguments were emitted: the text read so far cannot become text again."""
        if self._block is not None:
            self._passed = self._buffer.at
            self._most_length = LONGEST_CALL
            self._forget()

    def _pass_call(self) -> None:
        """Notes that a call was emitted: the block goes on behind it."""
        if self._block is not None:
            self._begin_block(self._buffer.at)
            self._forget()

    def _end_block(self) -> None:
        self._block = None
        self._most_length = HELD_LENGTH

    def _refuse(self, opener: str, start: int, kind: PartKind, *, is_too_long: bool) -> bool:
        """Ends a block that is not one; returns True if it had emitted a call. Raises
        `Finished`."""
        if self._open is not None:
            return self._break_off(self._open)
        begin, self._kept = self._block, None
        assert begin is not None
        limit = self._most()
        self._end_block()
        # Behind the last call anything may follow.
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
        """Ends a block within a call whose arguments were emitted in part."""
        self._open = None
        if not (self._ended and self.is_cut):
            reason = _ENDED if self._ended else _BROKEN
            self._sink.fail(reason.format(call.name))
        self._end_block()
        self._buffer.at = self._buffer.end
        return True

    def _give_back(self, at: int) -> None:
        """Returns to a position, from which the text is read again."""
        self._reach = max(self._reach, self._buffer.at)
        self.budget.give_back(self._reach - at)
        self._buffer.back(at)

    def _tell(self, kind: PartKind, end: int, *, verbatim: bool = False) -> None:
        """Emits the text up to `end` without the tokens that are not text, and drops it."""
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
    """A mapping that has every tool name, each with a schema that any arguments fit."""

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str)

    def __missing__(self, name: str) -> Mapping[str, Any]:
        return {}


_NOTHING = Markers(())
