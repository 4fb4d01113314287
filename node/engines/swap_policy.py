"""Which models may be in memory next, where not all that are asked for fit. Pure.

Requests for models in turn, A B A B, are served A A B B: a model that is loaded goes on serving
while another one is waited for, until it has nothing to do and its minimum residency is over, or
until the oldest of those who wait has waited too long. A model that serves is never unloaded.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf

ABANDONED_S = 2.0
"""A load that nobody waits for goes on for so long: a client may try again."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How patient models are with each other."""

    min_residency_s: float
    """A model that is loaded stays so long."""
    max_swap_wait_s: float
    """After so long the oldest waiter's model goes before requests for what is loaded."""


@dataclass(frozen=True, slots=True)
class Resident:
    """A model that takes memory."""

    name: str
    memory_bytes: int
    """For good; what it has besides is given back for a load."""
    leases: int
    ready_s: float
    """When it was ready."""
    value_s: float
    """What its leaving is likely to cost."""
    pinned: bool = False

    def may_leave_s(self, rules: Rules) -> float:
        """Not before."""
        return self.ready_s + rules.min_residency_s


@dataclass(frozen=True, slots=True)
class Coming:
    """A model that is being loaded."""

    name: str
    memory_bytes: int
    abandoned_s: float | None
    """Since when nobody waits for it; None where somebody does, or it is pinned."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A model that requests wait for, and that is neither loaded nor being loaded."""

    name: str
    memory_bytes: int
    since_s: float
    """When the oldest of them came."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Who has it, and who wants it. What is being unloaded counts as had, in `leaving_bytes`."""

    total_bytes: int
    residents: Sequence[Resident]
    coming: Sequence[Coming]
    wanted: Sequence[Wanted]
    leaving_bytes: int = 0

    @property
    def free_bytes(self) -> int:
        had_bytes = sum(each.memory_bytes for each in self.residents)
        had_bytes += sum(each.memory_bytes for each in self.coming)
        return self.total_bytes - self.leaving_bytes - had_bytes

    @property
    def most_bytes(self) -> int:
        """What a model may have once all have left that may ever leave."""
        return self.total_bytes - sum(each.memory_bytes for each in self.residents if each.pinned)


@dataclass(frozen=True, slots=True)
class Step:
    """What to do now; and when to look again, if nothing happens before."""

    load: str | None = None
    """Alone: what others then need depends on what it takes."""
    unload: tuple[str, ...] = ()
    cancel: tuple[str, ...] = ()
    """Loads."""
    closed: frozenset[str] = frozenset()
    """Loaded models that take no new requests, so that they come to their end."""
    hopeless: tuple[str, ...] = ()
    """Wanted models for which there will never be room."""
    held: frozenset[str] = frozenset()
    """Wanted models whose room others have; the rest get it as soon as engines have ended."""
    look_s: float = inf


def next_step(memory: Memory, rules: Rules, now_s: float) -> Step:
    """The wanted models in the order of their oldest waiters. Those behind one that has to wait
    are loaded only where they take nothing from it."""
    queue = sorted(memory.wanted, key=lambda each: each.since_s)
    hopeless = tuple(each.name for each in queue if each.memory_bytes > memory.most_bytes)
    queue = [each for each in queue if each.name not in hopeless]
    if queue and queue[0].memory_bytes <= memory.free_bytes:
        return Step(load=queue[0].name)
    soon_bytes = memory.free_bytes + memory.leaving_bytes
    needed_bytes = queue[0].memory_bytes - soon_bytes if queue else 0
    # Where room is needed, what nobody waits for is in the way of what somebody does.
    patience_s = 0.0 if needed_bytes > 0 else ABANDONED_S
    cancel, cancel_look_s = _abandoned(memory.coming, patience_s, now_s)
    cancelled_bytes = sum(each.memory_bytes for each in memory.coming if each.name in cancel)
    since_s = queue[0].since_s if queue else inf
    left = _make_room(memory.residents, needed_bytes - cancelled_bytes, since_s, rules, now_s)
    soon_bytes += cancelled_bytes
    soon_bytes += sum(each.memory_bytes for each in memory.residents if each.name in left.unload)
    held = _beyond(queue, soon_bytes)
    look_s = min(cancel_look_s, left.look_s)
    return Step(None, left.unload, cancel, left.closed, hopeless, held, look_s)


def _beyond(queue: Sequence[Wanted], room_bytes: int) -> frozenset[str]:
    """Those for which there is no room once the ones before them have theirs."""
    ends = accumulate(each.memory_bytes for each in queue)
    pairs = zip(queue, ends, strict=True)
    return frozenset(each.name for each, end_bytes in pairs if end_bytes > room_bytes)


def _abandoned(
    coming: Iterable[Coming], after_s: float, now_s: float
) -> tuple[tuple[str, ...], float]:
    """The loads that nobody has waited for so long, and when the next one will be one of them."""
    due, look_s = [], inf
    for each in coming:
        if each.abandoned_s is not None:
            end_s = each.abandoned_s + after_s
            if end_s <= now_s:
                due.append(each.name)
            else:
                look_s = min(look_s, end_s)
    return tuple(due), look_s


def _make_room(
    residents: Sequence[Resident], needed_bytes: int, since_s: float, rules: Rules, now_s: float
) -> Step:
    """For a model that has been waited for since then."""
    if needed_bytes <= 0:
        return Step()
    movable = [each for each in residents if not each.pinned]
    idle = [each for each in movable if not each.leases and each.may_leave_s(rules) <= now_s]
    if unload := cheapest(idle, needed_bytes):
        return Step(unload=tuple(each.name for each in unload))
    claimed = cheapest(movable, needed_bytes)
    overdue_s = since_s + rules.max_swap_wait_s
    closed = frozenset(
        each.name for each in claimed if max(overdue_s, each.may_leave_s(rules)) <= now_s
    )
    times = (overdue_s, *(each.may_leave_s(rules) for each in movable))
    return Step(closed=closed, look_s=min((each for each in times if each > now_s), default=inf))


def cheapest(candidates: Iterable[Resident], needed_bytes: int) -> tuple[Resident, ...]:
    """Those with the least value for their bytes that together have so many; none if all have
    less. One that is not needed once the others have gone stays."""
    ordered = sorted(candidates, key=lambda each: each.value_s / max(1, each.memory_bytes))
    sums = list(accumulate(each.memory_bytes for each in ordered))
    count = next((number for number, total in enumerate(sums, 1) if total >= needed_bytes), 0)
    chosen = ordered[:count]
    spare_bytes = (sums[count - 1] if count else 0) - needed_bytes
    for each in sorted(chosen, key=lambda each: -each.value_s):
        if each.memory_bytes <= spare_bytes:
            chosen.remove(each)
            spare_bytes -= each.memory_bytes
    return tuple(chosen)
