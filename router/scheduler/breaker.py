"""What is said of models that fail on nodes."""

from enum import StrEnum

import msgspec


class BreakerState(StrEnum):
    """Of one model on one node."""

    CLOSED = "closed"
    OPEN = "open"
    """It failed lately: requests go elsewhere where there is another node."""
    HALF_OPEN = "half_open"
    """One request may show whether it still fails."""


class Breaker(msgspec.Struct, frozen=True):
    node_id: str
    model: str
    state: BreakerState
    failures: int
    """In a row."""
    until_s: float
    """Monotonic time until which it is, or was, open."""
