"""Chooses the waiting tickets to which a scan of the queue offers free nodes.

Comparing hundreds of tickets at each event would take too long. So the first ones get the offer
whenever a node has become free. If they decline, since other nodes are better for them, the next
scans offer it to those behind them, some at a time. What all have declined is offered to new
tickets, and to all again after a while.
"""

from router.scheduler.cost import TicketEstimate
from router.scheduler.queue import FairQueue, WaitingTicket

SCAN_TICKETS = 16
"""Number of tickets of a model that one scan compares."""

FreeNodes = dict[str, set[str]]
"""Nodes that would begin a request now, by each model that tickets wait for."""
_NONE: frozenset[str] = frozenset()


class QueueScan:
    """Owner of the record of which tickets have had an offer."""

    def __init__(self, queue: FairQueue) -> None:
        self._queue = queue
        self._last_free: FreeNodes = {}
        """The nodes that were free at the end of the last scan."""
        self._round = 0
        self._behind: set[str] = set()
        """Models of which some tickets may not have had an offer in this round."""
        self._is_outdated = False
        """True if a node has become free within the round, so another round must follow."""

    def has_new(self, free: FreeNodes) -> bool:
        """True if a node is free that was not at the end of the last scan."""
        return not all(nodes <= self._last_free.get(model, _NONE) for model, nodes in free.items())

    def promoted(self, free: FreeNodes, now_s: float) -> list[WaitingTicket]:
        """The ticket of each model that is promoted now."""
        found = (
            next(
                (w for w in self._queue.promoted(model, now_s) if has_free(w.estimate, free)), None
            )
            for model, nodes in free.items()
            if nodes
        )
        return [waiting for waiting in found if waiting is not None]

    def first(self, free: FreeNodes) -> list[WaitingTicket]:
        """The first tickets of each model. Those with no free node do not block others."""
        if not self._behind:
            self._round += 1
        return self._some(free, -1)[0]

    def decline(self, free: FreeNodes) -> None:
        """Records that the first tickets have declined what has become free."""
        if self._behind:
            self._is_outdated = True
        elif len(self._queue) > SCAN_TICKETS:
            self._behind = {model for model, nodes in free.items() if nodes}

    def rest(self, free: FreeNodes) -> list[WaitingTicket]:
        """The first tickets of each model that have had no offer in this round."""
        if not self._behind:
            return []
        found, self._behind = self._some(free, self._round)
        return found

    def mark_offered(self, waiting: WaitingTicket) -> None:
        """Records that the ticket gets an offer now."""
        waiting.round = self._round

    def may_offer(self, waiting: WaitingTicket, free: FreeNodes) -> bool:
        """True if a new ticket may get an offer, since none before it is still due one."""
        is_behind = waiting.estimate.ticket.model in self._behind
        return not waiting.round and not is_behind and has_free(waiting.estimate, free)

    def end(self, free: FreeNodes) -> bool:
        """Ends the scan. Returns True if another one must follow soon."""
        self._last_free = free
        if not self._behind and self._is_outdated:
            self.renew()
            return True
        return bool(self._behind)

    def renew(self) -> None:
        """Makes all free nodes count as if they had just become free."""
        self._last_free = {}
        self._is_outdated = False

    def _some(self, free: FreeNodes, excluding: int) -> tuple[list[WaitingTicket], set[str]]:
        """The first tickets of each model that have had no offer in the round `excluding`, and the
        models of which there may be more."""
        left = dict.fromkeys((model for model, nodes in free.items() if nodes), SCAN_TICKETS)
        found: list[WaitingTicket] = []
        more: set[str] = set()
        for waiting in self._queue.in_order() if left else ():
            model = waiting.estimate.ticket.model
            if model in left and waiting.round != excluding and has_free(waiting.estimate, free):
                found.append(waiting)
                left[model] -= 1
                if not left[model]:
                    del left[model]
                    more.add(model)
                    if not left:
                        break
        return found, more


def has_free(estimate: TicketEstimate, free: FreeNodes) -> bool:
    """True if a node that may serve the ticket is free."""
    nodes, pinned = free[estimate.ticket.model], estimate.ticket.pinned_node_id
    return pinned in nodes if pinned else bool(nodes)
