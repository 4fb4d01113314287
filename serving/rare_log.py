"""Log lines about what may happen a thousand times a second."""

import logging
import time
from collections.abc import Callable

EACH_S = 60.0


class RareLog:
    """Writes one line of a kind a minute."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._said_s: dict[str, float] = {}

    def warn(self, kind: str, sentence: str) -> None:
        now_s = self._clock()
        if now_s - self._said_s.get(kind, -EACH_S) >= EACH_S:
            self._said_s[kind] = now_s
            self._log.warning("%s", sentence)
