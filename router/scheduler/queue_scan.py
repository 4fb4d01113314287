"""Who of those that wait is asked at a look whether to begin on a node that is free.

To ask hundreds at each event would take too long. So the first ones are asked whenever something
has become free; where they leave it, since they wait for other nodes, those behind them have their
turn at the next looks, some at each. What all have left is offered to who comes, and to all again
after a while.
"""

from router.scheduler.cost import Ask
from router.scheduler.queue import FairQueue, Waiting

LOOK_TICKETS = 16
"""So many tickets of a model are asked at once."""

Free = dict[str, set[str]]
"""The nodes that would begin with a request now, by each model that is waited for."""
_NONE: frozenset[str] = frozenset()


class Turns:
    """Owner of who has been asked already."""

    def __init__(self, queue: FairQueue) -> None:
        self._queue = queue
        self._left: Free = {}
        """What was free when the last look had ended."""
        self._round = 0
        self._behind: set[str] = set()
        """Models of which some may not have been asked in this round."""
        self._is_outdated = False
        """Whether something has become free within the round, so that another one is to follow."""

    def is_new(self, free: Free) -> bool:
        """Whether something is free that was not when the last look had ended."""
        return not all(nodes <= self._left.get(model, _NONE) for model, nodes in free.items())

    def promoted(self, free: Free, now_s: float) -> list[Waiting]:
        """Who of each model goes before all others."""
        found = (
            next((w for w in self._queue.promoted(model, now_s) if has_free(w.ask, free)), None)
            for model, nodes in free.items()
            if nodes
        )
        return [waiting for waiting in found if waiting is not None]

    def first(self, free: Free) -> list[Waiting]:
        """The first of each model. Those for whom nothing is free hold up nobody."""
        if not self._behind:
            self._round += 1
        return self._some(free, -1)[0]

    def leave(self, free: Free) -> None:
        """The first have left what has become free to those behind them."""
        if self._behind:
            self._is_outdated = True
        elif len(self._queue) > LOOK_TICKETS:
            self._behind = {model for model, nodes in free.items() if nodes}

    def rest(self, free: Free) -> list[Waiting]:
        """The first of each model that have not been asked in this round."""
        if not self._behind:
            return []
        found, self._behind = self._some(free, self._round)
        return found

    def ask(self, waiting: Waiting) -> None:
        """It is asked now."""
        waiting.round = self._round

    def may_ask(self, waiting: Waiting, free: Free) -> bool:
        """Whether one that is new may be asked, since nobody before it is still to be."""
        is_behind = waiting.ask.ticket.model in self._behind
        return not waiting.round and not is_behind and has_free(waiting.ask, free)

    def end(self, free: Free) -> bool:
        """The look is over. Whether another one is to follow soon."""
        self._left = free
        if not self._behind and self._is_outdated:
            self.renew()
            return True
        return bool(self._behind)

    def renew(self) -> None:
        """All that is free counts as if it had just become so."""
        self._left = {}
        self._is_outdated = False

    def _some(self, free: Free, besides: int) -> tuple[list[Waiting], set[str]]:
        """The first of each model that were not asked in that round; and the models of which there
        may be more."""
        left = dict.fromkeys((model for model, nodes in free.items() if nodes), LOOK_TICKETS)
        found: list[Waiting] = []
        more: set[str] = set()
        for waiting in self._queue.in_order() if left else ():
            model = waiting.ask.ticket.model
            if model in left and waiting.round != besides and has_free(waiting.ask, free):
                found.append(waiting)
                left[model] -= 1
                if not left[model]:
                    del left[model]
                    more.add(model)
                    if not left:
                        break
        return found, more


def has_free(ask: Ask, free: Free) -> bool:
    """Whether a node that may take the ticket is free."""
    nodes, pinned = free[ask.ticket.model], ask.ticket.pinned_node_id
    return pinned in nodes if pinned else bool(nodes)
