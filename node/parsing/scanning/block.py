"""The block of an output that is being read: its position, and how long it may be."""

from node.parsing.scanning.step import LONGEST_BLOCK, LONGEST_CALL
from node.parsing.scanning.text_buffer import TextBuffer


class Block:
    """The block that is being read, if there is one. Positions are those of the buffer."""

    def __init__(self, buffer: TextBuffer) -> None:
        self.buffer = buffer
        self.begin: int | None = None
        """Position where the block begins, or where its last emitted call ended; None outside of
        blocks."""
        self.passed = 0
        """Position up to which the block was emitted, roughly: arguments of a call that has not
        ended."""
        self.most_length = LONGEST_BLOCK
        """Most characters that the block may have."""
        self.limit = self.most_length
        """Position beyond which the block may not go."""
        self.reach = 0
        """Position up to which the block was read, including text that was given back."""
        self.settled = 0
        """Position up to which the block is text, and not read again, if it turns out not to be
        one."""
        self._end: int | None = None
        """Position where the block ends if that is certain; None if only its length limits it."""

    def start(self, begin: int) -> None:
        """Begins a block whose opener, which begins at the position, was just read."""
        if self._end is not None and self._end <= begin:
            self._end = None
        self._start(begin)
        self.reach = self.settled = self.buffer.at

    def stop(self) -> None:
        """Ends the block."""
        self.begin = None
        self._allow(LONGEST_BLOCK)

    def end_here(self) -> None:
        """Ends the block, if there is one, before the text that arrives next."""
        if self.begin is not None:
            self._end = self.buffer.end
            self._allow(self.most_length)

    @property
    def arrived_begin(self) -> int | None:
        """`begin`, or None if no text of the block has arrived."""
        return self.begin if (self.begin or 0) < self.buffer.end else None

    @property
    def text(self) -> str:
        """The text of the block that has arrived and was not emitted; empty if there is none."""
        is_none = self.arrived_begin is None
        return "" if is_none else self.buffer.slice(self.passed, self.buffer.end)

    def settle(self) -> None:
        """Settles that the text read so far is text, and is not read again, if the block turns out
        not to be one."""
        self.settled = self.buffer.at

    def allow_call_length(self) -> None:
        """Allows the block a call's length, since it looks like one."""
        self._allow(LONGEST_CALL)

    def pass_arguments(self) -> None:
        """Notes that arguments were emitted: the text read so far cannot become text again."""
        if self.begin is not None:
            self.passed = self.buffer.at
            self._allow(LONGEST_CALL)
            self.buffer.drop_read()

    def pass_call(self) -> None:
        """Notes that a call was emitted or dropped: the block goes on behind it."""
        if self.begin is not None:
            self._start(self.buffer.at)
            self.buffer.drop_read()

    def _start(self, begin: int) -> None:
        self.begin = self.passed = begin
        self._allow(LONGEST_BLOCK)

    def _allow(self, length: int) -> None:
        self.most_length = length
        limit = self.passed + length
        self.limit = limit if self._end is None else min(limit, self._end)
