"""Sends keep-alives to the client while its node sends nothing."""

import asyncio
import time
from collections.abc import Callable

from serving.http.exchange import Exchange

POLL_S = 1.0
"""Seconds between checks for a changed keep-alive."""


class KeepAlive:
    """Sends keep-alives once a stream has been idle for `interval_s`: at every change of their
    text, and at least every `interval_s`."""

    def __init__(
        self,
        exchange: Exchange,
        interval_s: float,
        begin: Callable[[], None],
        text: Callable[[], bytes],
    ) -> None:
        """`begin` sends the head of the response; `text` returns the current keep-alive."""
        self._exchange = exchange
        self._interval_s = interval_s
        self._begin = begin
        self._text = text
        self._poll_s = min(POLL_S, interval_s)
        self._last_text = b""
        self._due_s = 0.0
        """Time at which the keep-alive is sent again even if it has not changed."""
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Starts the idle interval, unless it has started already."""
        if self._timer is None:
            wait_s = self._poll_s if self._exchange.began else self._interval_s
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._fill)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fill(self) -> None:
        self._timer = None
        if not self._exchange.began:
            self._begin()
        self.start()
        text, now_s = self._text(), time.monotonic()
        if (text != self._last_text or now_s >= self._due_s) and not self._exchange.paused:
            # Timers are not exact; half an interval of slack keeps a keep-alive from being late.
            self._last_text, self._due_s = text, now_s + self._interval_s - self._poll_s / 2
            self._exchange.write(text)
