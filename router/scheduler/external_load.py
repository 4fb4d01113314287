"""Requests on a node that this router did not send there."""

from dataclasses import dataclass


@dataclass(slots=True)
class ExternalRows:
    """Rows of one model that a node reports and this router's leases do not explain: those of other
    routers, and of clients that use the node directly.

    Statuses lag. So every lease that was open at any time since the previous status counts as own,
    and rows that only one status shows are ignored: they may belong to a lease that has just ended.
    """

    count: int = 0
    """Rows that both of the last two statuses show."""
    in_last: int = 0
    most_own: int = 0
    """Most own leases at once since the last status."""

    def update(self, active: int, own: int) -> None:
        """Compares a status's active rows with the own open leases."""
        unexplained = max(0, active - max(own, self.most_own))
        self.count = min(unexplained, self.in_last)
        self.in_last, self.most_own = unexplained, own
