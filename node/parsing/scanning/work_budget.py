"""Limits how much text of an output is read more than once. The limits depend on the text alone."""

REREAD_LENGTH = 64 * 1024
"""Most characters of an output that are read again because they were not a block; behind that, such
a block becomes text without being searched again."""
MOST_REFUSED = 500
"""Most blocks of an output that may turn out not to be one; behind them, no more blocks are looked
for."""


class Budget:
    """Counts the work of one output."""

    def __init__(self) -> None:
        self.reread = 0
        """Number of characters that were read again."""
        self._refused = 0

    @property
    def is_spent(self) -> bool:
        """True if no more blocks are to be looked for."""
        return self._refused >= MOST_REFUSED

    def refuse(self) -> None:
        """Counts a block that turned out not to be one."""
        self._refused += 1

    def read_again(self, length: int) -> bool:
        """Returns True and counts the characters if so many may be read again."""
        if self.reread + length > REREAD_LENGTH:
            return False
        self.reread += length
        return True

    def give_back(self, length: int) -> None:
        """Counts characters of a block that are read again in another way."""
        self.reread += length
