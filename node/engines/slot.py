"""State that the supervisor keeps for each model of a node and its engine."""

import asyncio
import math
import time
from collections import Counter
from dataclasses import dataclass, field

from node.engines.cache_events import cache_status
from node.engines.link import EngineLink
from node.engines.memory_budget import Budget
from node.hardware import Machine
from node.ipc.messages import Loaded
from node.models.store import ModelEntry
from node.protocol.messages import ModelSpeed, ModelState, ModelStatus
from node.settings import Settings

LOAD_BYTES_PER_S = 1e9
"""Assumed read speed of a load until one has been measured."""
WANTED_AGAIN_S = 600.0
"""Half-life, in seconds since its last request, of a model's chance to be requested again soon."""


@dataclass(frozen=True, slots=True)
class EngineKind:
    """Settings that all engines of this agent share."""

    settings: Settings
    machine: Machine
    script_json: str = ""


@dataclass(frozen=True, slots=True)
class EngineHandle:
    """An engine that serves requests."""

    entry: ModelEntry
    link: EngineLink
    info: Loaded


@dataclass(frozen=True, slots=True)
class EngineState:
    """An engine and the events of its life so far."""

    handle: EngineHandle
    state: ModelState
    cache_events: dict[str, int]
    """Number of prefix cache events since the load, by kind."""


@dataclass(slots=True, eq=False)
class Slot:
    """One model folder and its engine, if it has one."""

    entry: ModelEntry
    state: ModelState = ModelState.ON_DISK
    since_unix_s: float = field(default_factory=time.time)
    reason: str | None = None
    retry_at_s: float = 0.0
    cool_down_s: float = 0.0
    """Wait after its last load; 0 unless that load failed."""
    failures: int = 0
    """Number of failed loads."""
    overloads: int = 0
    """Number of times its engine ended because one GPU command was too large."""
    link: EngineLink | None = None
    """Connection to its engine, loaded or not."""
    handle: EngineHandle | None = None
    work: asyncio.Task[None] | None = None
    """The load or stop in progress."""
    cache_events: Counter[str] = field(default_factory=Counter)
    """Number of prefix cache events since the load, by kind."""
    leases: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: dict[object, float] = field(default_factory=dict)
    """Start of the wait, in monotonic seconds, for each request that waits for the model."""
    is_hurried: bool = False
    """True if a request has waited for this load, not only a load ahead of requests."""
    abandoned_s: float | None = None
    """Time at which the last request that waited for the load disconnected."""
    generation: int = 0
    """Number of its load, unique on this node."""
    progress: float = 0.0
    """Fraction of the load that is done, from 0 to 1."""
    load_s: float | None = None
    """Duration of its last load."""
    speed: ModelSpeed | None = None
    """Speed that its engines reported last."""
    ready_s: float = 0.0
    used_s: float = 0.0
    """End of its last request, or of its load."""

    @property
    def is_used(self) -> bool:
        """True if it has an engine, or a load or stop is running or awaited."""
        return bool(self.handle or self.work or self.waiting)

    @property
    def is_leaving(self) -> bool:
        """True if its engine is ending: it is being unloaded, or its load is cancelled."""
        is_cancelled = self.work is not None and self.work.cancelling() > 0
        return self.state is ModelState.DRAINING or (
            self.state is ModelState.LOADING and is_cancelled
        )

    def idle_s(self, now_s: float) -> float | None:
        """Seconds without a request; None while it is not loaded, is leased or is waited for."""
        if self.state is not ModelState.READY or self.leases or self.waiting:
            return None
        return max(0.0, now_s - self.used_s)

    def value_s(self, now_s: float) -> float:
        """Expected cost of unloading the model, in seconds: its load, and the prefill of KV that is
        cached in memory alone, weighted by the chance that the model is requested again."""
        reload_s = self.load_s or self.entry.weight_bytes / LOAD_BYTES_PER_S
        if self.handle is not None:
            reload_s += _again_s(self.handle)
        return reload_s * math.pow(0.5, (self.idle_s(now_s) or 0.0) / WANTED_AGAIN_S)


def _again_s(handle: EngineHandle) -> float:
    stats, each_bytes = handle.link.stats, handle.info.stored_bytes_per_token
    if stats is None or not each_bytes or not stats.prefill_rates:
        return 0.0
    alone_bytes = max(0, stats.stored_kv_bytes - stats.disk_kv_bytes)
    return alone_bytes / each_bytes / stats.prefill_rates[0].tokens_per_s


ANOTHER_IN_USE = "another model is in use"
BEING_UNLOADED = "it is being unloaded"


@dataclass(frozen=True, slots=True)
class ModelAwaited:
    """A request waits for its model."""

    name: str
    progress: float
    """Fraction of the load that is done, from 0 to 1."""
    held_by: str | None = None
    """Reason, in words, why its load has not begun."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """Residency that people and routers want for one model."""

    pinned: bool = False
    keep_alive_s: float | None = None
    """None keeps it without limit."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Memory that a model needs and requests that it serves at once, unless its engine reports
    others."""

    memory_bytes: int
    max_rows: int


def model_status(
    entry: ModelEntry, slot: Slot, budget: Budget, wishes: Wishes, sizes: Sizes, now_s: float
) -> ModelStatus:
    """Returns the model's status as routers receive it."""
    handle = slot.handle
    is_loading = slot.state is ModelState.LOADING
    is_failed = slot.state is ModelState.FAILED
    return ModelStatus(
        name=entry.name,
        state=slot.state,
        weight_bytes=entry.weight_bytes if handle is None else handle.info.weight_bytes,
        context_tokens=entry.context_tokens if handle is None else handle.info.context_tokens,
        active_requests=0 if handle is None else handle.link.open_rows,
        max_rows=handle.info.max_rows if handle else sizes.max_rows,
        since_unix_s=slot.since_unix_s,
        reason=slot.reason,
        retry_after_s=max(0.0, slot.retry_at_s - now_s) if is_failed else 0.0,
        progress=slot.progress if is_loading else None,
        generation=slot.generation,
        leases=slot.leases + len(slot.waiting),
        idle_s=slot.idle_s(now_s),
        work_tokens=0 if handle is None else handle.link.work_tokens,
        pinned=wishes.pinned,
        keep_alive_s=wishes.keep_alive_s,
        disk_bytes=entry.disk_bytes,
        memory_bytes=sizes.memory_bytes,
        load_s=slot.load_s,
        speed=slot.speed,
        capabilities=entry.capabilities,
        tool_parser=entry.formats.tool_calls,
        reasoning_parser=entry.formats.reasoning,
        cache=None
        if handle is None
        else cache_status(budget.lease(handle.entry.name), handle.info, handle.link.stats),
    )
