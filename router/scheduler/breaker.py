"""Circuit breakers of models that fail on a node, and back-off after its rejections. Pure: times
are passed in."""

from collections import deque
from dataclasses import dataclass, field
from math import inf

import msgspec

from router.states import BreakerState

FIRST_OPEN_S = 1.0
MAX_OPEN_S = 30.0
"""Longest time that a breaker stays open; the first opening lasts `FIRST_OPEN_S`, each further one
twice as long. Without a breaker a node that fails at once would look idle and attract all
requests."""
RECENT_S, MAX_RECENT = 120.0, 64
"""Age and number of the outcomes that count as recent. The longest opening and its trial fit
several times into this period, so the share of failures is known even while few requests get
through."""
MIN_BACKOFF_S, MAX_BACKOFF_S = 1.0, 60.0
"""Bounds of the back-off time, which is otherwise the `Retry-After` of the rejection."""
MIN_OUTCOMES, OFTEN_SHARE = 5, 0.5
"""A model fails often if at least this share of at least so many recent outcomes are failures."""


class Breaker(msgspec.Struct, frozen=True):
    """State of a breaker that is not closed."""

    node_id: str
    model: str
    state: BreakerState
    failures: int
    outcomes: int
    """Numbers of recent failures and outcomes, as in `Circuit.counts`."""
    until_s: float
    """Monotonic time until which the breaker is, or was, open."""


@dataclass(slots=True)
class Circuit:
    """The circuit breaker of one model on one node.

    A failure opens it, and a complete response closes it. If the model fails often, the breaker
    stays open for its full time whatever else is served, and the next opening takes twice as long
    even though it closed in between.
    """

    is_closed: bool = True
    fails_often: bool = False
    """True if the model failed often at its last failure."""
    openings: int = 0
    """Number of openings in a row. A response between two of them ends the row, unless the model
    fails often."""
    opened_s: float = -inf
    until_s: float = -inf
    trial: str = ""
    """The ticket whose end will show if the model still fails; empty if there is none."""
    rejected_s: float = -inf
    """When a request was last rejected, which is no failure."""
    backoff_until_s: float = -inf
    _recent: deque[tuple[float, bool]] = field(default_factory=lambda: deque(maxlen=MAX_RECENT))
    """Time of each recent outcome, and True if it was a failure."""

    def fail(self, granted_s: float, now_s: float) -> None:
        """Records the failure of a request that was granted at `granted_s`."""
        self._note(now_s, failed=True)
        failures, outcomes = self.counts()
        self.fails_often = outcomes >= MIN_OUTCOMES and failures >= OFTEN_SHARE * outcomes
        if not self.is_closed and granted_s < self.opened_s:
            # Granted before the opening: the same cause failed it, so it does not count again.
            return
        if self.is_closed and not self.fails_often:
            self.openings = 0
        doubled_s = FIRST_OPEN_S * 2.0 ** min(self.openings, 16)
        self.is_closed = False
        self.openings += 1
        self.opened_s = now_s
        self.until_s = now_s + min(MAX_OPEN_S, doubled_s)
        self.trial = ""

    def serve(self, now_s: float) -> bool:
        """Records a complete response. Returns True if that closes the breaker."""
        self._note(now_s, failed=False)
        stays = now_s < (self.until_s if self.fails_often else self.opened_s)
        if self.is_closed or stays:
            return False
        self.is_closed = True
        self.trial = ""
        return True

    def back_off(self, now_s: float, retry_after_s: float | None) -> None:
        """Records that the node rejected a request; `retry_after_s` is None without a
        `Retry-After`."""
        wait_s = min(MAX_BACKOFF_S, max(MIN_BACKOFF_S, retry_after_s or 0.0))
        self.rejected_s = now_s
        self.backoff_until_s = max(self.backoff_until_s, now_s + wait_s)

    def end_back_off(self, granted_s: float) -> bool:
        """Records a response to a request that was granted at `granted_s`. Returns True if that
        ends the back-off, which a request granted before the rejection does not."""
        if granted_s < self.rejected_s or self.backoff_until_s == -inf:
            return False
        self.rejected_s = self.backoff_until_s = -inf
        return True

    def state(self, now_s: float) -> BreakerState:
        if self.is_closed:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now_s < self.until_s else BreakerState.HALF_OPEN

    def blocks(self, now_s: float) -> bool:
        """True if requests should go to other nodes: the breaker is open, a trial is running, or
        the node backs off."""
        is_open = not self.is_closed and (now_s < self.until_s or bool(self.trial))
        return is_open or now_s < self.backoff_until_s

    def counts(self) -> tuple[int, int]:
        """Number of failures and of all outcomes that were recent at the last one."""
        return sum(failed for _, failed in self._recent), len(self._recent)

    def _note(self, now_s: float, *, failed: bool) -> None:
        recent = self._recent
        while recent and recent[0][0] <= now_s - RECENT_S:
            recent.popleft()
        recent.append((now_s, failed))
