"""The swap policy: decides which models are in memory when not all that are requested fit. Pure.

Requests that alternate between two models, A B A B, are served A A B B: a loaded model continues to
serve while another one is waited for, until it is idle and its minimum residency is over, or until
the oldest waiting request has waited for `max_swap_wait_s`. A model with leases is never unloaded.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf

from node.protocol.swap_rule import ResidentModel, most_free_bytes, swap_plan

ABANDONED_S = 2.0
"""Seconds that a load runs on after the last request for it has disconnected, since a client may
retry."""


@dataclass(frozen=True, slots=True)
class LoadingModel:
    """A model that is being loaded."""

    name: str
    memory_bytes: int
    abandoned_s: float | None
    """Time since which no request waits for it; None while one does, or if it is pinned."""


@dataclass(frozen=True, slots=True)
class AwaitedModel:
    """A model that requests wait for, and that is neither loaded nor being loaded."""

    name: str
    memory_bytes: int
    since_s: float
    """Arrival of its oldest waiting request."""


@dataclass(frozen=True, slots=True)
class MemoryView:
    """Models that occupy memory and models that need it. `unloading_bytes` are occupied by models
    that are being unloaded."""

    total_bytes: int
    residents: Sequence[ResidentModel]
    loading: Sequence[LoadingModel]
    awaited: Sequence[AwaitedModel]
    unloading_bytes: int = 0

    @property
    def free_bytes(self) -> int:
        occupied_bytes = sum(each.memory_bytes for each in self.residents)
        occupied_bytes += sum(each.memory_bytes for each in self.loading)
        return self.total_bytes - self.unloading_bytes - occupied_bytes

    @property
    def most_bytes(self) -> int:
        """Bytes that a model may have once every unpinned model is unloaded."""
        pinned = (each.memory_bytes for each in self.residents if each.pinned)
        return most_free_bytes(self.total_bytes, pinned)


@dataclass(frozen=True, slots=True)
class SwapDecision:
    """Actions to take now, and the time of the next decision if nothing changes before."""

    load: str | None = None
    """Always the only action: the needs of the others depend on what this load takes."""
    unload: tuple[str, ...] = ()
    cancel: tuple[str, ...] = ()
    """Loads to cancel."""
    closed: frozenset[str] = frozenset()
    """Loaded models that accept no new requests, so that they become idle."""
    hopeless: tuple[str, ...] = ()
    """Awaited models that do not fit even once every unpinned model is unloaded."""
    blocked: frozenset[str] = frozenset()
    """Awaited models whose memory is in use by others; the rest fit as soon as engines have
    ended."""
    next_s: float = inf


def decide(memory: MemoryView, max_swap_wait_s: float, now_s: float) -> SwapDecision:
    """Serves the awaited models in the order of their oldest requests. Those behind one that has to
    wait are loaded only if they take no memory from it. After `max_swap_wait_s` the oldest request
    takes precedence over requests for loaded models."""
    queue = sorted(memory.awaited, key=lambda each: each.since_s)
    hopeless = tuple(each.name for each in queue if each.memory_bytes > memory.most_bytes)
    queue = [each for each in queue if each.name not in hopeless]
    if queue and queue[0].memory_bytes <= memory.free_bytes:
        return SwapDecision(load=queue[0].name)
    soon_bytes = memory.free_bytes + memory.unloading_bytes
    needed_bytes = queue[0].memory_bytes - soon_bytes if queue else 0
    # Where memory is short, abandoned loads give way to awaited ones.
    grace_s = 0.0 if needed_bytes > 0 else ABANDONED_S
    cancel, cancel_next_s = _abandoned(memory.loading, grace_s, now_s)
    cancelled_bytes = sum(each.memory_bytes for each in memory.loading if each.name in cancel)
    overdue_s = queue[0].since_s + max_swap_wait_s if queue else inf
    freed = swap_plan(memory.residents, needed_bytes - cancelled_bytes, overdue_s, now_s)
    soon_bytes += cancelled_bytes
    soon_bytes += sum(each.memory_bytes for each in memory.residents if each.name in freed.unload)
    blocked = _beyond(queue, soon_bytes)
    next_s = min(cancel_next_s, freed.next_s)
    return SwapDecision(None, freed.unload, cancel, freed.closed, hopeless, blocked, next_s)


def _beyond(queue: Sequence[AwaitedModel], room_bytes: int) -> frozenset[str]:
    """Returns the models for which no memory is left after the ones before them in the queue."""
    ends = accumulate(each.memory_bytes for each in queue)
    pairs = zip(queue, ends, strict=True)
    return frozenset(each.name for each, end_bytes in pairs if end_bytes > room_bytes)


def _abandoned(
    loading: Iterable[LoadingModel], after_s: float, now_s: float
) -> tuple[tuple[str, ...], float]:
    """Returns the loads that no request has waited for since `after_s`, and the time at which the
    next one becomes due."""
    due, next_s = [], inf
    for each in loading:
        if each.abandoned_s is not None:
            end_s = each.abandoned_s + after_s
            if end_s <= now_s:
                due.append(each.name)
            else:
                next_s = min(next_s, end_s)
    return tuple(due), next_s
