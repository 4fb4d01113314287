"""What a node does that this router has not asked of it."""

from dataclasses import dataclass


@dataclass(slots=True)
class OtherRows:
    """Rows of one model that a node tells of and this router's leases do not explain: those of
    other routers, and of callers that ask the node itself.

    Statuses lag. So every lease counts as own that was held at any time since the status before,
    and what one status alone cannot explain may be one that has just been cancelled.
    """

    count: int = 0
    """In both of the last two statuses."""
    in_last: int = 0
    most_own: int = 0
    """Most leases at once since the last status."""

    def hear(self, active: int, own: int) -> None:
        """A status, and the leases that are held."""
        unexplained = max(0, active - max(own, self.most_own))
        self.count = min(unexplained, self.in_last)
        self.in_last, self.most_own = unexplained, own
