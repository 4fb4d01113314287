"""The text of one output as a format reads it, together with what the format finds there.

Text outside of blocks is emitted at once. A block is buffered while it is read, and becomes text
again if it turns out not to be one.
"""

from collections.abc import Callable, Mapping
from typing import Any

from node.ipc.messages import PartKind
from node.parsing.scanning.call_emitter import CallEmitter
from node.parsing.scanning.markers import Markers
from node.parsing.scanning.sink import Sink
from node.parsing.scanning.step import BlockTooLong, Malformed, Step, T
from node.parsing.scanning.text_emitter import TextEmitter
from node.parsing.scanning.text_reader import TextReader
from node.parsing.scanning.work_budget import WorkBudget

_NOTHING = Markers(())


class Source(TextReader):
    """One output. Positions are those of `TextReader`."""

    def __init__(
        self,
        sink: Sink,
        schemas: Mapping[str, Mapping[str, Any]],
        token_markers: frozenset[str] = frozenset(),
    ) -> None:
        """`schemas` are those of the tools that may be called, by name. Each of `token_markers`
        counts as markup only if it came as an added token."""
        super().__init__(token_markers)
        self.output = TextEmitter(sink, self.tokens)
        """Emits the text that is found."""
        self.calls = CallEmitter(sink, schemas, self.block, self.output)
        """Emits the calls that are found."""
        self.budget = WorkBudget()

    # --- reading ------------------------------------------------------------------------------

    def until(self, kind: PartKind, markers: Markers) -> Step[str]:
        """Emits the text up to a marker, reads the marker and returns it; "" at the end of the
        output."""
        self.output.in_reasoning = kind is PartKind.REASONING
        buffer, tokens = self._buffer, self.tokens
        while True:
            ended = self._ended
            at, marker = markers.find(
                buffer.text,
                buffer.at - buffer.begin,
                len(buffer.text),
                ended=ended,
                counts=lambda at, marker: tokens.counts(at + buffer.begin, marker),
            )
            self._emit(kind, at + buffer.begin)
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
        start, begin = self._buffer.at, self.block.begin
        kept = self.calls.copy_kept()
        for each in readings:
            try:
                yield from each
                return
            except BlockTooLong:
                raise
            except Malformed:
                if self.block.begin != begin or self.calls.is_open:
                    raise
                self._rewind(start)
                self.calls.restore_kept(kept)
        raise Malformed

    def maybe(self, reading: Step[T]) -> Step[T | None]:
        """Tries to read a part of a block and returns its result; returns None, and reads nothing,
        if that fails. Raises `Malformed` if it fails after it emitted a call."""
        start, begin = self._buffer.at, self.block.begin
        try:
            return (yield from reading)
        except BlockTooLong:
            raise
        except Malformed:
            if self.block.begin != begin or self.calls.is_open:
                raise
            self._rewind(start)
            return None

    def skip(self, markers: Markers) -> Step[str]:
        """Drops the text up to a marker, or up to the end, and returns the marker. Only for text
        behind a call of the same block: while calls are kept back it reads nothing."""
        buffer = self._buffer
        while not self.calls.are_kept:
            ended = self._ended
            at, marker = markers.find(
                buffer.text, buffer.at - buffer.begin, len(buffer.text), ended=ended
            )
            buffer.at = at + buffer.begin
            buffer.drop_read()
            buffer.at += len(marker)
            self.block.pass_call()
            if marker or ended:
                return marker
            yield
        return ""

    def pass_to(self, markers: Markers, emit: Callable[[str], None]) -> Step[str]:
        """Reads the text of an argument up to the first of the markers, passes it to `emit`, piece
        by piece if calls are streamed, and returns the marker. Raises `Malformed` if no marker
        comes."""
        if self.calls.are_streamed:
            return self._pass_pieces(markers, emit)
        return self._pass_whole(markers, emit)

    def was_token(self, marker: str) -> bool:
        """True if the marker that was just read came as an added token."""
        return self._buffer.at - len(marker) in self.tokens

    def attempt(self, opener: str, reading: Step[None], kind: PartKind) -> Step[bool]:
        """Reads a block whose opener was just read, and returns True if it was one. If not, the
        opener becomes text of `kind`, and all behind it that belongs to no emitted call is read
        anew."""
        start = self._buffer.at - len(opener)
        if self.budget.is_spent:
            reading.close()
            self.output.emit_marker(kind, opener)
            return False
        self.block.start(start)
        try:
            yield from reading
        except Malformed as exc:
            return self._reject(opener, start, kind, is_too_long=isinstance(exc, BlockTooLong))
        self.block.stop()
        return True

    # --- inside -------------------------------------------------------------------------------

    def _reject(self, opener: str, start: int, kind: PartKind, *, is_too_long: bool) -> bool:
        """Ends a block that is not one; returns True if it had emitted a call. Raises
        `OutputEnded`."""
        block = self.block
        if self.calls.is_open:
            return self._break_off()
        self.calls.take_kept()
        begin, limit = block.begin, block.limit
        assert begin is not None
        block.stop()
        # Behind the last call anything may follow.
        has_call = begin != start
        end = limit if is_too_long else block.settled
        end = begin if has_call else end
        reach = min(max(block.reach, self._buffer.at, end), limit)
        if not self.budget.try_reread(reach - end):
            end = reach
        self._buffer.rewind(begin)
        if not has_call:
            self.budget.count_rejected()
            if start not in self.tokens:
                self.tokens.begin_text(opener)
        self._emit(kind, end, verbatim=True)
        return has_call

    def _break_off(self) -> bool:
        """Ends a block within a call whose arguments were emitted in part."""
        self.calls.break_off(is_ended=self._ended, is_cut=self.is_cut)
        self.block.stop()
        self._buffer.at = self._buffer.end
        return True

    def _rewind(self, at: int) -> None:
        """Returns to a position, from which the text is read again."""
        block = self.block
        block.reach = max(block.reach, self._buffer.at)
        self.budget.count_reread(block.reach - at)
        self._buffer.rewind(at)

    def _emit(self, kind: PartKind, end: int, *, verbatim: bool = False) -> None:
        """Emits the text up to `end` without the tokens that are not text, and drops it."""
        buffer = self._buffer
        begin, buffer.at = buffer.at, end
        if begin < end:
            spans = self.tokens.text_between(begin, end)
            pieces = [buffer.slice(at, to) for at, to in ([(begin, end)] if verbatim else spans)]
            self.output.emit(kind, "".join(pieces))
        if self.block.begin is None:
            buffer.drop_read()
