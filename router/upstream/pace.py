"""How fast a node may speak: whoever says more is heard later, and nothing is lost."""

import time
from collections.abc import Callable

from node.protocol.messages import Event, StatusEvent

EVENTS_PER_S = 5_000.0
BURST = 50_000.0
"""An agent that is followed again sends its last 10,000 accounts at once."""
STATUS_COST = 10.0
"""All who decide look at each status anew."""
TURN = 64
"""Events after which others have a turn of the loop: what waits in a buffer is read without one."""


class Pace:
    """Of one node's event stream. The stream is not read while it waits, so that the node's own
    buffers fill, and then the node's agent keeps the accounts until they are asked for again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left = BURST
        self._at_s = clock()
        self._turn = TURN

    def heard(self, event: Event) -> float | None:
        """How long to rest before the next event is read; 0 is a turn for others, None no rest."""
        self._turn -= 1
        self._left -= STATUS_COST if isinstance(event, StatusEvent) else 1.0
        if self._turn and self._left > 0.0:
            return None
        self._turn = TURN
        now_s = self._clock()
        self._left = min(BURST, self._left + (now_s - self._at_s) * EVENTS_PER_S)
        self._at_s = now_s
        return max(0.0, -self._left / EVENTS_PER_S)
