"""Limits of the disk tier's size and writes, and its pause after failures."""

import logging
from dataclasses import dataclass

DAY_S = 86_400
FAILURES = 3
"""Number of failed writes in a row that pause writing."""
PAUSE_S = 60.0
"""Seconds of that pause."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one tier."""

    max_bytes: int
    max_files: int = 100_000
    max_bytes_per_day: int = 0
    """Limit of writes in a UTC day; 0 means no limit."""
    queue_bytes: int = 512 << 20
    """Limit of queued writes; a larger file is accepted if the queue is empty."""
    queue_files: int = 256


class DayBudget:
    """Bytes written in each UTC day, limited to spare the SSD."""

    def __init__(self, max_bytes: int, day: int, written_bytes: int) -> None:
        """`day` and `written_bytes` are the last known ones; days count from 1970."""
        self._max_bytes = max_bytes
        self.day = day
        self.written_bytes = written_bytes
        self._logged_day = -1

    def allows(self, nbytes: int, unix_s: float) -> bool:
        """Returns True if `nbytes` more may be written today. Otherwise logs that once a day."""
        self._roll_over(unix_s)
        if self._max_bytes == 0 or self.written_bytes + nbytes <= self._max_bytes:
            return True
        if self._logged_day != self.day:
            self._logged_day = self.day
            logger.warning("The disk cache has written its %d bytes for today.", self._max_bytes)
        return False

    def spend(self, nbytes: int, unix_s: float) -> None:
        self._roll_over(unix_s)
        self.written_bytes += nbytes

    def _roll_over(self, unix_s: float) -> None:
        day = int(unix_s // DAY_S)
        if day != self.day:
            self.day = day
            self.written_bytes = 0


class Outage:
    """Pauses writing for a while after repeated failures."""

    def __init__(self) -> None:
        self._failures = 0
        self._until_s = 0.0

    def paused(self, monotonic_s: float) -> bool:
        return self._failures >= FAILURES and monotonic_s < self._until_s

    def failed(self, error: Exception, monotonic_s: float) -> None:
        self._failures += 1
        self._until_s = monotonic_s + PAUSE_S
        if self._failures == 1:
            logger.warning("The disk cache cannot write: %s", error)
        elif self._failures == FAILURES:
            logger.warning("The disk cache pauses: %d writes in a row failed.", FAILURES)

    def succeeded(self) -> None:
        if self._failures:
            logger.info("The disk cache writes again.")
        self._failures = 0
