"""Tickets that wait in the router: who is next, and who is too many.

Classes come one after the other, but who has waited long moves up a class. Within a class each key
has its own line, least work first, where a second of waiting counts as much as a part of a second
of work; the lines are merged by the work of each key that went before since others wait, so that a
key that asks for much waits behind one that asks for little.
"""

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from math import inf

from router.scheduler.cost import Ask
from router.scheduler.placement import Price
from router.types import Priority

AGE_SHARE = 0.1
"""Seconds of work that a second of waiting makes up for."""


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """What may wait, and how."""

    max_waiting: int = 256
    """Tickets of one model."""
    promote_after_s: float = 30.0
    """A ticket that has waited so long in its class goes on in the next better one."""


@dataclass(slots=True, eq=False)
class Waiting:
    ask: Ask
    arrived_s: float
    work_s: float
    """Prefill on the node that has the least of it to do."""
    priority: Priority
    """Its own, or the better one that it was moved up to."""
    number: int = 0
    """In order of arrival at the queue."""
    promoted_s: float = inf
    """When it moves up."""
    rank_s: float = 0.0
    prices: list[Price] = field(default_factory=list)
    """Of the fleet's nodes, in its order; empty before they were asked for."""

    def __lt__(self, other: "Waiting") -> bool:
        return (self.rank_s, self.number) < (other.rank_s, other.number)


_Line = list[Waiting]


class FairQueue:
    """Owner of the waiting tickets."""

    def __init__(self, limits: AdmissionLimits) -> None:
        self.limits = limits
        self._tickets: dict[str, Waiting] = {}
        self._lines: tuple[dict[str, _Line], ...] = tuple({} for _ in Priority)
        """By class and key."""
        self._models: dict[str, int] = {}
        self._times: list[tuple[float, int, str]] = []
        """Deadlines and promotions; those of tickets that left stay until they are the first."""
        self._number = 0
        self._taken_s: dict[str, float] = {}
        """Work of each waiting key that was granted, on a clock that all of them share."""
        self._clock_s = 0.0
        """Where keys begin that come now: with those that have had least."""

    def __len__(self) -> int:
        return len(self._tickets)

    def __contains__(self, ticket_id: str) -> bool:
        return ticket_id in self._tickets

    def is_over(self, model: str) -> bool:
        """Whether more of the model's tickets wait than may."""
        return self._models.get(model, 0) > self.limits.max_waiting

    def models(self) -> list[str]:
        """Those that are waited for."""
        return list(self._models)

    def add(self, waiting: Waiting, now_s: float) -> None:
        ticket = waiting.ask.ticket
        key = ticket.caller.key_id
        if not self._tickets:
            self._taken_s.clear()
            self._clock_s = 0.0
        self._taken_s[key] = max(self._taken_s.get(key, 0.0), self._clock_s)
        self._number += 1
        waiting.number = self._number
        self._tickets[ticket.request_id] = waiting
        self._models[ticket.model] = self._models.get(ticket.model, 0) + 1
        self._join(waiting, now_s)
        if ticket.deadline_s < inf:
            heappush(self._times, (ticket.deadline_s, waiting.number, ticket.request_id))

    def take(self, ticket_id: str) -> None:
        """The ticket is granted."""
        waiting = self.remove(ticket_id)
        if waiting is None:
            return
        self._taken_s[waiting.ask.ticket.caller.key_id] += waiting.work_s
        active = {key for lines in self._lines for key in lines}
        self._clock_s = min((self._taken_s[key] for key in active), default=self._clock_s)
        self._taken_s = {
            key: taken_s
            for key, taken_s in self._taken_s.items()
            if key in active or taken_s > self._clock_s
        }

    def remove(self, ticket_id: str) -> Waiting | None:
        """None for a ticket that does not wait."""
        waiting = self._tickets.pop(ticket_id, None)
        if waiting is None:
            return None
        model = waiting.ask.ticket.model
        self._models[model] -= 1
        if not self._models[model]:
            del self._models[model]
        self._leave(waiting)
        return waiting

    def set_work(self, waiting: Waiting, work_s: float) -> None:
        """Its work is another one, since caches have changed."""
        lines = self._lines[waiting.priority]
        key = waiting.ask.ticket.caller.key_id
        lines[key].remove(waiting)
        waiting.work_s = work_s
        waiting.rank_s = work_s + AGE_SHARE * waiting.arrived_s
        insort(lines[key], waiting)

    def in_order(self) -> Iterator[Waiting]:
        """Who is next first. Not to be changed meanwhile."""
        for lines in self._lines:
            if len(lines) == 1:
                yield from next(iter(lines.values()))
            else:
                yield from self._merged(lines)

    def tickets(self) -> list[Waiting]:
        return list(self._tickets.values())

    def last_of_largest(self, model: str, besides: str) -> Waiting | None:
        """The last one of the key that has the most tickets of a model waiting, by at least two
        more than the key `besides`: who leaves when one of that key's comes to a full queue."""
        counts: dict[str, int] = {besides: 0}
        for waiting in self._tickets.values():
            if waiting.ask.ticket.model == model:
                key = waiting.ask.ticket.caller.key_id
                counts[key] = counts.get(key, 0) + 1
        largest = max(counts, key=lambda key: counts[key])
        if counts[largest] < counts[besides] + 2:
            return None
        for lines in reversed(self._lines):
            for waiting in reversed(lines.get(largest, [])):
                if waiting.ask.ticket.model == model:
                    return waiting
        return None

    def last_below(self, model: str, priority: Priority) -> Waiting | None:
        """The last one of the model's in the worst class, if that is below this one."""
        for own, lines in zip(reversed(Priority), reversed(self._lines), strict=True):
            if own <= priority:
                return None
            found = [
                waiting
                for line in lines.values()
                for waiting in line
                if waiting.ask.ticket.model == model
            ]
            if found:
                return max(found)
        return None

    def late(self, now_s: float) -> list[Waiting]:
        """Moves up those whose time for it has come. Returns those whose deadline has passed."""
        late: dict[int, Waiting] = {}
        while self._times and self._times[0][0] <= now_s:
            _, number, ticket_id = heappop(self._times)
            waiting = self._tickets.get(ticket_id)
            if waiting is None or waiting.number != number:
                continue
            if waiting.ask.ticket.deadline_s <= now_s:
                late[number] = waiting  # its promotion may be due, too
            elif waiting.promoted_s <= now_s:
                self._leave(waiting)
                waiting.priority = Priority(waiting.priority - 1)
                self._join(waiting, now_s)
        return list(late.values())

    def next_time_s(self) -> float:
        """When a deadline passes or somebody moves up."""
        while self._times:
            time_s, number, ticket_id = self._times[0]
            waiting = self._tickets.get(ticket_id)
            if waiting is not None and waiting.number == number:
                return time_s
            heappop(self._times)
        return inf

    def _join(self, waiting: Waiting, now_s: float) -> None:
        waiting.rank_s = waiting.work_s + AGE_SHARE * waiting.arrived_s
        ticket = waiting.ask.ticket
        insort(self._lines[waiting.priority].setdefault(ticket.caller.key_id, []), waiting)
        waiting.promoted_s = inf
        if waiting.priority:
            waiting.promoted_s = now_s + self.limits.promote_after_s
            heappush(self._times, (waiting.promoted_s, waiting.number, ticket.request_id))

    def _leave(self, waiting: Waiting) -> None:
        lines = self._lines[waiting.priority]
        key = waiting.ask.ticket.caller.key_id
        lines[key].remove(waiting)
        if not lines[key]:
            del lines[key]

    def _merged(self, lines: dict[str, _Line]) -> Iterator[Waiting]:
        heads = []
        for key, line in lines.items():
            before_s = self._taken_s[key] - self._clock_s
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
