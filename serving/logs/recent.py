"""The newest lines of this process's log, in memory, for those who read them over the network."""

from __future__ import annotations

import logging
import secrets
from collections import deque
from typing import NamedTuple

MOST_BYTES = 1024 * 1024
"""Most bytes of all lines together."""
MOST_LINE_CHARS = 16_384
"""Longest line, with its traceback; the rest is left out."""


class RecentLine(NamedTuple):
    number: int
    """Grows by one with each line of the process, from 1."""
    at_s: float
    """Seconds since the epoch."""
    text: str
    """The line as it was logged; only a traceback has line ends."""


class RecentLines(logging.Handler):
    """Owner of the newest lines, as they are formatted for the log itself."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        super().__init__()
        self.instance = secrets.token_hex(4)
        """New in each process, so that a reader notices when numbers begin anew."""
        self._most_bytes = most_bytes
        self._bytes = 0
        self._lines: deque[RecentLine] = deque()
        self._number = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps the record's line. The handler's lock is held."""
        try:
            text = self.format(record)
        except (TypeError, ValueError):  # arguments that do not fit their message
            self.handleError(record)
            return
        if len(text) > MOST_LINE_CHARS:
            text = text[: MOST_LINE_CHARS - 1] + "…"
        self._number += 1
        self._lines.append(RecentLine(self._number, record.created, text))
        self._bytes += _size_bytes(text)
        while self._bytes > self._most_bytes:
            self._bytes -= _size_bytes(self._lines.popleft().text)

    def newest(self, most: int, after: int = 0) -> tuple[list[RecentLine], bool]:
        """Returns at most so many of the newest lines after this number, the oldest first, and True
        if there were more of them."""
        found: list[RecentLine] = []
        assert self.lock is not None
        with self.lock:
            for line in reversed(self._lines):
                if line.number <= after or len(found) == most:
                    break
                found.append(line)
            last = self._number
        found.reverse()
        first = found[0].number if found else last + 1
        return found, first > after + 1

    @property
    def last_number(self) -> int:
        """The number of the newest line; 0 before the first."""
        return self._number


def _size_bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


RECENT = RecentLines()
"""The lines of this process, once its logs are set up."""
