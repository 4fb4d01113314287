"""Limits how much text of an output is read more than once. The limits depend on the text alone."""

REREAD_LENGTH = 64 * 1024
"""Most characters of an output that are read again because they were not a block; behind that, such
a block becomes text without being searched again."""
MOST_REJECTED = 500
"""Most blocks of an output that may turn out not to be one; behind them, no more blocks are looked
for."""


class WorkBudget:
    """Counts the work of one output."""

    def __init__(self) -> None:
        self.reread = 0
        """Number of characters that were read again."""
        self._rejected = 0

    @property
    def is_spent(self) -> bool:
        """True if no more blocks are to be looked for."""
        return self._rejected >= MOST_REJECTED

    def count_rejected(self) -> None:
        """Counts a block that turned out not to be one."""
        self._rejected += 1

    def try_reread(self, length: int) -> bool:
        """Returns True and counts the characters if so many may be read again."""
        if self.reread + length > REREAD_LENGTH:
            return False
        self.reread += length
        return True

    def count_reread(self, length: int) -> None:
        """Counts characters of a block that are read again in another way."""
        self.reread += length
