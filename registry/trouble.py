"""Tracks if the registry can be written, and logs when that changes instead of at each try."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from registry.errors import RegistryUnwritable

SETTLED_S = 10.0
"""Seconds without a failed write after which writes count as working: on a full disk the smallest
ones still succeed."""

_LOG = logging.getLogger(__name__)


class Trouble:
    """Owner of the registry's state as its last writes have shown it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since_s = 0.0
        self._failed_s = 0.0
        self._written_s: float | None = None
        """Time of the first successful write after the last failed one."""
        self._sentence = ""

    @property
    def sentence(self) -> str:
        """The reason why writes fail; empty while they succeed."""
        self._settle()
        return self._sentence

    @property
    def for_s(self) -> float:
        """Seconds for which they have failed."""
        return self._clock() - self._since_s if self.sentence else 0.0

    def on_write(self, error: BaseException | None) -> None:
        """A write has ended. An error in its own data does not count: other writes may succeed."""
        if isinstance(error, RegistryUnwritable):
            now_s = self._clock()
            if not self.sentence:
                self._since_s = now_s
                _LOG.error("Writes fail, and are tried again: %s", error)
            self._failed_s, self._written_s = now_s, None
            self._sentence = str(error)
        elif error is None and self._sentence:
            self._written_s = self._written_s or self._clock()
            self._settle()

    def _settle(self) -> None:
        """Called on reads of the state, too, since there may be no further write that would end the
        trouble."""
        if not self._sentence or self._written_s is None:
            return
        if self._clock() - self._failed_s >= SETTLED_S:
            _LOG.warning("Writes succeed again, after %.0f s.", self._written_s - self._since_s)
            self._sentence = ""
