"""What a caller is told while nothing comes from its node."""

import asyncio
import time
from collections.abc import Callable

from serving.http.exchange import Exchange

LOOK_S = 1.0
"""How often it is looked whether there is something new to say."""


class Silence:
    """Fills it once it has lasted `hold_s`: when there is something new, and at least so often."""

    def __init__(
        self,
        exchange: Exchange,
        hold_s: float,
        begin: Callable[[], None],
        filler: Callable[[], bytes],
    ) -> None:
        """`begin` sends the head of the answer; `filler` is what there is to say."""
        self._exchange = exchange
        self._hold_s = hold_s
        self._begin = begin
        self._filler = filler
        self._look_s = min(LOOK_S, hold_s)
        self._said = b""
        self._due_s = 0.0
        """When something is said again, new or not."""
        self._timer: asyncio.TimerHandle | None = None

    def lasts(self) -> None:
        """From now on, unless it does already."""
        if self._timer is None:
            wait_s = self._look_s if self._exchange.began else self._hold_s
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._fill)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fill(self) -> None:
        self._timer = None
        if not self._exchange.began:
            self._begin()
        self.lasts()
        filler, now_s = self._filler(), time.monotonic()
        if (filler != self._said or now_s >= self._due_s) and not self._exchange.paused:
            # Timers are not exact: no look too late.
            self._said, self._due_s = filler, now_s + self._hold_s - self._look_s / 2
            self._exchange.write(filler)
