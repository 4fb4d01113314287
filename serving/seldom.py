"""One line a minute of what may happen a million times."""

import time
from collections.abc import Callable

EVERY_S = 60.0
MOST_SUBJECTS = 1000


class Seldom:
    """Says of each subject whether a line about it is due, so that nobody fills a log by being
    wrong often."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told_s: dict[str, float] = {}
        self._held_back: dict[str, int] = {}

    def due(self, subject: str) -> bool:
        """Whether to say it now; where not, it is counted."""
        now_s = self._clock()
        if now_s - self._told_s.get(subject, -EVERY_S) < EVERY_S:
            self._held_back[subject] = self._held_back.get(subject, 0) + 1
            return False
        if len(self._told_s) >= MOST_SUBJECTS:
            self._told_s.clear()
            self._held_back.clear()
        self._told_s[subject] = now_s
        return True

    def more(self, subject: str) -> str:
        """How often it was held back since the last line, as the end of a sentence."""
        count = self._held_back.pop(subject, 0)
        return f" ({count:,} more of the kind since the last line)" if count else ""
