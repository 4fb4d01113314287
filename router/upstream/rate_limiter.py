"""Limits the rate at which a node's events are read; nothing is dropped."""

import time
from collections.abc import Callable

from node.protocol.messages import Event, StatusEvent

EVENTS_PER_S = 5_000.0
BURST = 50_000.0
"""An agent that reconnects sends its last 10,000 usage records at once."""
STATUS_COST = 10.0
"""Events that one status counts as, since the scheduler and the lifecycle re-evaluate it each
time."""
TURN = 64
"""Events after which the event loop runs other tasks; reading from a filled buffer does not
yield."""


class RateLimiter:
    """The rate limit of one node's event stream. While it waits, the stream is not read, so that
    the node's buffers fill and its agent keeps the usage records."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left = BURST
        self._at_s = clock()
        self._turn = TURN

    def on_event(self, event: Event) -> float | None:
        """Returns the seconds to wait before the next event is read; 0 only yields to other tasks,
        None means no wait."""
        self._turn -= 1
        self._left -= STATUS_COST if isinstance(event, StatusEvent) else 1.0
        if self._turn and self._left > 0.0:
            return None
        self._turn = TURN
        now_s = self._clock()
        self._left = min(BURST, self._left + (now_s - self._at_s) * EVENTS_PER_S)
        self._at_s = now_s
        return max(0.0, -self._left / EVENTS_PER_S)
