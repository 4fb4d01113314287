"""What is said of models that fail on nodes, or turn requests away there. Pure: times are passed
in."""

from collections import deque
from dataclasses import dataclass, field
from math import inf

import msgspec

from router.states import BreakerState

FIRST_OPEN_S = 1.0
MAX_OPEN_S = 30.0
"""A model that failed is the last resort for this long, twice as long each time; without it a node
that fails at once would look idle and draw all requests."""
RECENT_S, MAX_RECENT = 120.0, 64
"""Outcomes that count as recent. In the time the longest opening and its trial fit some times, so
that the share of failures is known even while few are let through."""
MIN_HELD_S, MAX_HELD_S = 1.0, 60.0
"""A model that turned a request away is the last resort for what its node told to wait, within
these."""
MIN_OUTCOMES, OFTEN = 5, 0.5
"""From so many recent outcomes on, failures that are this share of them are often."""


class Breaker(msgspec.Struct, frozen=True):
    """One that is not closed."""

    node_id: str
    model: str
    state: BreakerState
    failures: int
    outcomes: int
    """As `Circuit.counts`."""
    until_s: float
    """Monotonic time until which it is, or was, open."""


@dataclass(slots=True)
class Circuit:
    """The breaker of one model on one node.

    It opens at a failure, and an answer closes it. One that fails often stays open for its time
    whatever else is answered, and its next opening takes twice as long, though it closed between.
    """

    is_closed: bool = True
    fails_often: bool = False
    """As its last failure found it."""
    openings: int = 0
    """In a row. An answer between two ends the row, but not of one that fails often."""
    opened_s: float = -inf
    until_s: float = -inf
    trial: str = ""
    """The ticket that shows, once that is over, whether it still fails; empty for none."""
    held_s: float = -inf
    """When a request was last turned away. That is no failure."""
    held_until_s: float = -inf
    _recent: deque[tuple[float, bool]] = field(default_factory=lambda: deque(maxlen=MAX_RECENT))
    """When each outcome came, and whether it was a failure."""

    def fail(self, granted_s: float, now_s: float) -> None:
        """A request failed that had been sent there at `granted_s`."""
        self._note(now_s, failed=True)
        failures, outcomes = self.counts()
        self.fails_often = outcomes >= MIN_OUTCOMES and failures >= OFTEN * outcomes
        if not self.is_closed and granted_s < self.opened_s:
            return  # What opened it has failed this one, too: it is no second time.
        if self.is_closed and not self.fails_often:
            self.openings = 0
        doubled_s = FIRST_OPEN_S * 2.0 ** min(self.openings, 16)
        self.is_closed = False
        self.openings += 1
        self.opened_s = now_s
        self.until_s = now_s + min(MAX_OPEN_S, doubled_s)
        self.trial = ""

    def serve(self, now_s: float) -> bool:
        """A request was answered to its end. Tells whether that closes it."""
        self._note(now_s, failed=False)
        stays = now_s < (self.until_s if self.fails_often else self.opened_s)
        if self.is_closed or stays:
            return False
        self.is_closed = True
        self.trial = ""
        return True

    def hold(self, now_s: float, retry_after_s: float | None) -> None:
        """A request was turned away; `retry_after_s`: the wait that was told, None for none."""
        wait_s = min(MAX_HELD_S, max(MIN_HELD_S, retry_after_s or 0.0))
        self.held_s = now_s
        self.held_until_s = max(self.held_until_s, now_s + wait_s)

    def end_hold(self, granted_s: float) -> bool:
        """A request was answered that had been sent there at `granted_s`. Tells whether that ends
        a hold: not if it was there before."""
        if granted_s < self.held_s or self.held_until_s == -inf:
            return False
        self.held_s = self.held_until_s = -inf
        return True

    def state(self, now_s: float) -> BreakerState:
        if self.is_closed:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now_s < self.until_s else BreakerState.HALF_OPEN

    def bars(self, now_s: float) -> bool:
        """Whether requests are better sent elsewhere: it is held or open, or one tries already."""
        is_open = not self.is_closed and (now_s < self.until_s or bool(self.trial))
        return is_open or now_s < self.held_until_s

    def counts(self) -> tuple[int, int]:
        """Failures, and all outcomes, that were recent when the last one came."""
        return sum(failed for _, failed in self._recent), len(self._recent)

    def _note(self, now_s: float, *, failed: bool) -> None:
        recent = self._recent
        while recent and recent[0][0] <= now_s - RECENT_S:
            recent.popleft()
        recent.append((now_s, failed))
