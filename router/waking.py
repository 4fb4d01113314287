"""Waking a node that sleeps, as decisions see it."""

import msgspec


class Waking(msgspec.Struct, frozen=True):
    """A node that requests may wake."""

    usual_s: float
    """Seconds that it usually takes to respond."""
    since_s: float | None = None
    """Monotonic time at which its waking began; None if it is not being woken."""

    def rest_s(self, now_s: float) -> float:
        """Seconds until it is likely to respond."""
        if self.since_s is None:
            return self.usual_s
        return max(LEAST_S, self.usual_s - (now_s - self.since_s))


LEAST_S = 1.0
"""Seconds that are left of a waking that takes longer than usual."""


class WakeNode(msgspec.Struct, frozen=True):
    """An action: the node is to be woken, since a request waits for it."""

    node_id: str
