"""The swap rule: which models are unloaded from a node for one that is waited for. Pure.

The agent applies it. The router predicts it from the node's status: it estimates how long a load
has to wait, and gives no more requests to the models that will be unloaded.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import inf
from typing import NamedTuple


class ResidentModel(NamedTuple):
    """A model that occupies memory."""

    name: str
    memory_bytes: int
    """Bytes that it occupies until it is unloaded; the rest of its lease is reclaimed for a
    load."""
    leases: int
    evictable_s: float
    """Time at which its minimum residency is over; infinite if it can never be unloaded."""
    unload_cost_s: float
    """Expected cost of unloading it, in seconds."""
    pinned: bool = False

    def can_unload(self, now_s: float) -> bool:
        return not (self.pinned or self.leases) and self.evictable_s <= now_s


class SwapPlan(NamedTuple):
    """The models to unload, and when to plan again if nothing changes before."""

    unload: tuple[str, ...] = ()
    closed: frozenset[str] = frozenset()
    """Models that accept no new requests, so that they become idle."""
    next_s: float = inf


class Displacement(NamedTuple):
    """Models that must be unloaded for one that is waited for."""

    models: tuple[ResidentModel, ...]
    leases: int
    """Number of leases of all these models."""
    evictable_s: float
    """Time before which they stay even without leases; infinite if all that can be unloaded have
    less memory than is needed."""

    def can_unload(self, now_s: float) -> bool:
        """True if all of them can be unloaded now."""
        return self.evictable_s <= now_s and all(each.can_unload(now_s) for each in self.models)

    def overdue(self, overdue_s: float, now_s: float) -> tuple[frozenset[str], float]:
        """Returns the models that must accept no more requests, and when the next one must not."""
        due_s = {each.name: max(overdue_s, each.evictable_s) for each in self.models}
        closed = frozenset(name for name, each_s in due_s.items() if each_s <= now_s)
        return closed, min((each_s for each_s in due_s.values() if each_s > now_s), default=inf)


NO_DISPLACEMENT = Displacement((), 0, -inf)


def swap_plan(
    residents: Sequence[ResidentModel], needed_bytes: int, overdue_s: float, now_s: float
) -> SwapPlan:
    """Frees memory for a model whose oldest request takes precedence over requests for loaded
    models from `overdue_s` on."""
    displacement = displaced(residents, needed_bytes, now_s)
    if displacement.can_unload(now_s):
        return SwapPlan(unload=tuple(each.name for each in displacement.models))
    closed, _ = displacement.overdue(overdue_s, now_s)
    times = (overdue_s, *(each.evictable_s for each in residents if not each.pinned))
    next_s = min((each for each in times if each > now_s), default=inf)
    return SwapPlan(closed=closed, next_s=next_s)


def displaced(residents: Iterable[ResidentModel], needed_bytes: int, now_s: float) -> Displacement:
    """Returns the models to unload for `needed_bytes`: of those that can be unloaded now
    if they suffice, else of all that are not pinned. `NO_DISPLACEMENT` if no bytes are needed."""
    if needed_bytes <= 0:
        return NO_DISPLACEMENT
    movable = [each for each in residents if not each.pinned]
    idle = [each for each in movable if each.can_unload(now_s)]
    models = cheapest(idle, needed_bytes) or cheapest(movable, needed_bytes)
    leases = sum(each.leases for each in models)
    return Displacement(models, leases, max((each.evictable_s for each in models), default=inf))


def most_free_bytes(total_bytes: int, pinned_bytes: Iterable[int]) -> int:
    """Returns the bytes that a model may have once every unpinned model is unloaded.
    `pinned_bytes`: memory of each pinned model."""
    return total_bytes - sum(pinned_bytes)


def cheapest(candidates: Iterable[ResidentModel], needed_bytes: int) -> tuple[ResidentModel, ...]:
    """Returns the models with the least unload cost per byte that together have `needed_bytes`;
    none if all together have less. Models that are not needed after all are left out, the dearest
    first."""
    ordered = sorted(candidates, key=_cost_per_byte)
    sums = list(accumulate(each.memory_bytes for each in ordered))
    count = next((number for number, total in enumerate(sums, 1) if total >= needed_bytes), 0)
    chosen = ordered[:count]
    spare_bytes = (sums[count - 1] if count else 0) - needed_bytes
    for each in sorted(chosen, key=lambda each: -each.unload_cost_s):
        if each.memory_bytes <= spare_bytes:
            chosen.remove(each)
            spare_bytes -= each.memory_bytes
    return tuple(chosen)


def _cost_per_byte(model: ResidentModel) -> tuple[float, int, float]:
    # Of equally cheap models the one that becomes idle first.
    return model.unload_cost_s / max(1, model.memory_bytes), model.leases, model.evictable_s
