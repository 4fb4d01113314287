"""Limits log lines about frequent events to one a minute."""

import time
from collections.abc import Callable

EVERY_S = 60.0
MOST_SUBJECTS = 1000


class LogLimiter:
    """Decides for each subject if a line about it is due, so that a client's repeated errors cannot
    fill a log."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._logged_s: dict[str, float] = {}
        self._suppressed: dict[str, int] = {}

    def due(self, subject: str) -> bool:
        """True if the line is to be logged now; otherwise it is counted."""
        now_s = self._clock()
        if now_s - self._logged_s.get(subject, -EVERY_S) < EVERY_S:
            self._suppressed[subject] = self._suppressed.get(subject, 0) + 1
            return False
        if len(self._logged_s) >= MOST_SUBJECTS:
            self._logged_s.clear()
            self._suppressed.clear()
        self._logged_s[subject] = now_s
        return True

    def suppressed(self, subject: str) -> str:
        """Number of lines that were suppressed since the last one, as the end of a sentence."""
        count = self._suppressed.pop(subject, 0)
        return f" ({count:,} more of the kind since the last line)" if count else ""
