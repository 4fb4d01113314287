"""Tickets that wait in the router: the order in which they are granted, and which is rejected if
they are too many.

Priority classes come one after the other. Within a class each key has its own line, ordered by
least work, where a second of waiting counts as much as a fraction of a second of work. The lines
are merged by the work that each key has been granted since others wait, so a key with many requests
waits behind one with few.

That order alone could starve tickets: a worse class behind better ones, a large prompt behind small
ones that keep coming. So a third of a model's work goes to the oldest tickets, once they have
waited long. They are promoted over class, key and size, one at a time, and then others get twice as
much work before the next promotion. From then on nobody waits longer than about three times as long
as in the order of arrival, and two thirds of the work stay with the better class, however many of a
worse one wait. If promoted tickets joined the better class instead, a backlog of them would delay
every newcomer of that class.
"""

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from math import inf

from router.scheduler.cost import TicketEstimate
from router.scheduler.placement import CachedCost
from router.scheduler.residency import OldestTicket
from router.types import Priority

AGE_SHARE = 0.2
"""Seconds of work that a second of waiting compensates for."""
OTHERS_SHARE = 2.0
"""Work granted to other tickets per work of a promoted one, while both wait."""
LEAST_WORK_S = 0.25
"""Least work that a grant counts as: even without prefill it takes a row."""
MAX_STALE_DEADLINES = 64
"""Deadlines of removed tickets are dropped once there are more deadlines than this plus twice the
waiting tickets."""
_NOTHING_S = 1e-6
"""Upper bound of what rounding leaves of a sum that is 0."""


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """Limits of the queue."""

    max_waiting: int = 256
    """Most tickets of one model that may wait."""
    promote_after_s: float = 30.0
    """Seconds of waiting after which a ticket may be promoted over others."""


@dataclass(slots=True, eq=False)
class WaitingTicket:
    """A ticket in the queue."""

    estimate: TicketEstimate
    arrived_s: float
    work_s: float
    """Prefill seconds on the node that has the least of it to do."""
    number: int = 0
    """Number in order of arrival at the queue."""
    rank_s: float = 0.0
    round: int = 0
    """The round in which a free node was last offered to it; 0 before the first. Only `QueueScan`
    changes it."""
    costs: list[CachedCost] = field(default_factory=list)
    """Costs on the fleet's nodes, in its order; empty before they are computed."""

    def __lt__(self, other: "WaitingTicket") -> bool:
        return (self.rank_s, self.number) < (other.rank_s, other.number)


_Line = list[WaitingTicket]


class FairQueue:
    """Owner of the waiting tickets."""

    def __init__(self, limits: AdmissionLimits) -> None:
        self.limits = limits
        self._tickets: dict[str, WaitingTicket] = {}
        self._lines: tuple[dict[str, _Line], ...] = tuple({} for _ in Priority)
        """Lines by class and key."""
        self._arrivals: dict[str, list[WaitingTicket]] = {}
        """Waiting tickets by model, in order of arrival."""
        self._others_s: dict[str, float] = {}
        """By model, the work that others still get before the next promotion."""
        self._deadlines: list[tuple[float, int, str]] = []
        """A heap. Deadlines of removed tickets stay until they come first, or are too many."""
        self._number = 0
        self._granted_s: dict[str, float] = {}
        """Work granted to each waiting key, on a virtual clock that all of them share."""
        self._clock_s = 0.0
        """The virtual clock: a new key begins with as much as the key that has been granted
        least."""

    def __len__(self) -> int:
        return len(self._tickets)

    def __bool__(self) -> bool:
        return bool(self._tickets)

    def __contains__(self, ticket_id: str) -> bool:
        return ticket_id in self._tickets

    def is_overfull(self, model: str) -> bool:
        """True if more of the model's tickets wait than may."""
        return len(self._arrivals.get(model, ())) > self.limits.max_waiting

    def models(self) -> list[str]:
        """The models that tickets wait for."""
        return list(self._arrivals)

    def oldest(self) -> list[OldestTicket]:
        """The arrival of each model's oldest ticket."""
        return [OldestTicket(model, line[0].arrived_s) for model, line in self._arrivals.items()]

    def add(self, waiting: WaitingTicket) -> None:
        ticket = waiting.estimate.ticket
        key = ticket.caller.key_id
        if not self._tickets:
            self._granted_s.clear()
            self._others_s.clear()
            self._deadlines.clear()
            self._clock_s = 0.0
        self._granted_s[key] = max(self._granted_s.get(key, 0.0), self._clock_s)
        self._number += 1
        waiting.number = self._number
        self._tickets[ticket.request_id] = waiting
        insort(self._arrivals.setdefault(ticket.model, []), waiting, key=_arrived_s)
        waiting.rank_s = _rank_s(waiting)
        insort(self._lines[ticket.priority].setdefault(key, []), waiting)
        if ticket.deadline_s < inf:
            heappush(self._deadlines, (ticket.deadline_s, waiting.number, ticket.request_id))
            self._forget_deadlines()

    def grant(self, ticket_id: str, *, is_promoted: bool) -> None:
        """Removes a ticket that is granted, in its turn or by promotion, and counts its work."""
        waiting = self.remove(ticket_id)
        if waiting is None:
            return
        model, work_s = waiting.estimate.ticket.model, max(LEAST_WORK_S, waiting.work_s)
        # Models share nodes, so work for one model delays the tickets of another, too.
        for each, left_s in self._others_s.items():
            self._others_s[each] = max(0.0, left_s - work_s)
        if is_promoted:
            self._others_s[model] = OTHERS_SHARE * work_s
        self._granted_s[waiting.estimate.ticket.caller.key_id] += waiting.work_s
        active = {key for lines in self._lines for key in lines}
        self._clock_s = min((self._granted_s[key] for key in active), default=self._clock_s)
        self._granted_s = {
            key: granted_s
            for key, granted_s in self._granted_s.items()
            if key in active or granted_s > self._clock_s
        }

    def remove(self, ticket_id: str) -> WaitingTicket | None:
        """Removes a ticket and returns it; None if it does not wait."""
        waiting = self._tickets.pop(ticket_id, None)
        if waiting is None:
            return None
        ticket = waiting.estimate.ticket
        _remove(self._arrivals, ticket.model, waiting)
        _remove(self._lines[ticket.priority], ticket.caller.key_id, waiting)
        return waiting

    def set_work(self, waiting: WaitingTicket, work_s: float) -> None:
        """Changes a ticket's work after caches have changed."""
        ticket = waiting.estimate.ticket
        line = self._lines[ticket.priority][ticket.caller.key_id]
        line.remove(waiting)
        waiting.work_s = work_s
        waiting.rank_s = _rank_s(waiting)
        insort(line, waiting)

    def promoted(self, model: str, now_s: float) -> Iterator[WaitingTicket]:
        """The tickets that may be promoted, oldest first; none until the others have had their
        share. The queue must not change while this is iterated."""
        if self._others_s.get(model, 0.0) > _NOTHING_S:
            return
        for waiting in self._arrivals.get(model, ()):
            if now_s - waiting.arrived_s < self.limits.promote_after_s:
                return
            yield waiting

    def in_order(self) -> Iterator[WaitingTicket]:
        """All tickets in the order of granting, without promotion. The queue must not change while
        this is iterated."""
        for lines in self._lines:
            if len(lines) == 1:
                yield from next(iter(lines.values()))
            else:
                yield from self._merged(lines)

    def ahead(self, waiting: WaitingTicket) -> tuple[int, float]:
        """Number and work of the tickets of the same model that come before this one."""
        ticket = waiting.estimate.ticket
        found: list[WaitingTicket] = []
        for lines in self._lines[: ticket.priority]:
            for line in lines.values():
                found += line
        own = self._lines[ticket.priority][ticket.caller.key_id]
        own = own[: own.index(waiting)]
        rank_s = self._granted_s[ticket.caller.key_id] + sum(each.work_s for each in own)
        rank_s += waiting.rank_s
        for key, line in self._lines[ticket.priority].items():
            before_s = self._granted_s[key]
            for other in line:
                other_s = before_s + other.rank_s
                if other_s > rank_s or (other_s == rank_s and other.number >= waiting.number):
                    break
                before_s += other.work_s
                found.append(other)
        if len(self._arrivals) > 1:
            found = [each for each in found if each.estimate.ticket.model == ticket.model]
        return len(found), sum(each.work_s for each in found)

    def tickets(self) -> list[WaitingTicket]:
        return list(self._tickets.values())

    def last_of_largest(self, model: str, arriving_key: str) -> WaitingTicket | None:
        """The last ticket of the key that has the most tickets of the model waiting, if these are
        at least two more than those of the key `arriving_key`. It is rejected when that key's next
        ticket comes to a full queue."""
        counts: dict[str, int] = {arriving_key: 0}
        for waiting in self._tickets.values():
            if waiting.estimate.ticket.model == model:
                key = waiting.estimate.ticket.caller.key_id
                counts[key] = counts.get(key, 0) + 1
        largest = max(counts, key=lambda key: counts[key])
        if counts[largest] < counts[arriving_key] + 2:
            return None
        for lines in reversed(self._lines):
            for waiting in reversed(lines.get(largest, [])):
                if waiting.estimate.ticket.model == model:
                    return waiting
        return None

    def last_below(self, model: str, priority: Priority) -> WaitingTicket | None:
        """The model's last ticket in its worst class, if that is worse than `priority`."""
        for own, lines in zip(reversed(Priority), reversed(self._lines), strict=True):
            if own <= priority:
                return None
            found = [
                waiting
                for line in lines.values()
                for waiting in line
                if waiting.estimate.ticket.model == model
            ]
            if found:
                return max(found)
        return None

    def overdue(self, now_s: float) -> list[WaitingTicket]:
        """The tickets whose deadline has passed."""
        late: list[WaitingTicket] = []
        while self._deadlines and self._deadlines[0][0] <= now_s:
            _, number, ticket_id = heappop(self._deadlines)
            waiting = self._tickets.get(ticket_id)
            if waiting is not None and waiting.number == number:
                late.append(waiting)
        return late

    def next_deadline_s(self) -> float:
        while self._deadlines:
            deadline_s, number, ticket_id = self._deadlines[0]
            waiting = self._tickets.get(ticket_id)
            if waiting is not None and waiting.number == number:
                return deadline_s
            heappop(self._deadlines)
        return inf

    def _forget_deadlines(self) -> None:
        if len(self._deadlines) <= 2 * len(self._tickets) + MAX_STALE_DEADLINES:
            return
        self._deadlines = [
            (waiting.estimate.ticket.deadline_s, waiting.number, ticket_id)
            for ticket_id, waiting in self._tickets.items()
            if waiting.estimate.ticket.deadline_s < inf
        ]
        heapify(self._deadlines)

    def _merged(self, lines: dict[str, _Line]) -> Iterator[WaitingTicket]:
        heads = []
        for key, line in lines.items():
            before_s = self._granted_s[key] - self._clock_s
            heads.append((before_s + line[0].rank_s, line[0].number, 0, before_s, line))
        heapify(heads)
        while heads:
            _, _, index, before_s, line = heads[0]
            yield line[index]
            before_s += line[index].work_s
            index += 1
            if index == len(line):
                heappop(heads)
            else:
                rank_s = before_s + line[index].rank_s
                heapreplace(heads, (rank_s, line[index].number, index, before_s, line))


def _arrived_s(waiting: WaitingTicket) -> tuple[float, int]:
    return waiting.arrived_s, waiting.number


def _rank_s(waiting: WaitingTicket) -> float:
    return waiting.work_s + AGE_SHARE * waiting.arrived_s


def _remove(lines: dict[str, _Line], name: str, waiting: WaitingTicket) -> None:
    lines[name].remove(waiting)
    if not lines[name]:
        del lines[name]
