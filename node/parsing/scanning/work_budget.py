"""What an output may cost beyond being read once: it depends on the text alone."""

REREAD_LENGTH = 64 * 1024
"""Characters of an output that may be read again since they were no block; behind that, what was
read of such a block is text without being looked at again."""
MOST_REFUSED = 500
"""Blocks of an output that may be none; behind them, what would begin one is text."""


class Budget:
    """Of one output."""

    def __init__(self) -> None:
        self.reread = 0
        """Characters that were read again."""
        self._refused = 0

    @property
    def is_spent(self) -> bool:
        """Whether no more blocks are to be looked for."""
        return self._refused >= MOST_REFUSED

    def refuse(self) -> None:
        """A block was none."""
        self._refused += 1

    def read_again(self, length: int) -> bool:
        """Whether so many characters may be. They are counted if so."""
        if self.reread + length > REREAD_LENGTH:
            return False
        self.reread += length
        return True

    def give_back(self, length: int) -> None:
        """So many characters of a block are read again, in another way."""
        self.reread += length
