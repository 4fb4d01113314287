"""Open leases, wherever they are."""

from router.dispatch.traffic import Traffic
from router.scheduler.scheduler import Scheduler


def open_leases(scheduler: Scheduler | Traffic) -> int:
    """Number of leases on all nodes, those that were removed included."""
    if isinstance(scheduler, Traffic):
        scheduler = scheduler._scheduler
    return sum(len(book.leases) for book in scheduler._books)
