"""The models of a node and their engines: what the supervisor keeps of each."""

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
"""What a load is taken to read, before one was measured."""
WANTED_AGAIN_S = 600.0
"""So long after its last request a model is half as likely to be asked for soon."""


@dataclass(frozen=True, slots=True)
class EngineKind:
    """What all engines of this agent are started with."""

    settings: Settings
    machine: Machine
    script_json: str = ""


@dataclass(frozen=True, slots=True)
class EngineHandle:
    """An engine that serves."""

    entry: ModelEntry
    link: EngineLink
    info: Loaded


@dataclass(frozen=True, slots=True)
class EngineState:
    """An engine and what has happened to it."""

    handle: EngineHandle
    state: ModelState
    cache_events: dict[str, int]
    """Of its prefix cache since its load, by kind."""


@dataclass(slots=True, eq=False)
class Slot:
    """One model folder and its engine, if it has one."""

    entry: ModelEntry
    state: ModelState = ModelState.ON_DISK
    since_unix_s: float = field(default_factory=time.time)
    reason: str | None = None
    retry_at_s: float = 0.0
    cool_down_s: float = 0.0
    """After its last load; 0 where that has not failed."""
    failures: int = 0
    """Of its loads."""
    overloads: int = 0
    """How often its engine has ended since the GPU had too much to do at a time."""
    link: EngineLink | None = None
    """To its engine, loaded or not."""
    handle: EngineHandle | None = None
    work: asyncio.Task[None] | None = None
    """The load or the stop in progress."""
    cache_events: Counter[str] = field(default_factory=Counter)
    """Of the engine's prefix cache since its load, by kind."""
    leases: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: dict[object, float] = field(default_factory=dict)
    """Those who wait for it, each with the time at which it came."""
    is_hurried: bool = False
    """Whether a request has waited for its load, not only people and routers who load ahead."""
    abandoned_s: float | None = None
    """When the last one that waited for its load left."""
    generation: int = 0
    """Of its loads."""
    progress: float = 0.0
    """Of the load."""
    load_s: float | None = None
    """What its last load took."""
    speed: ModelSpeed | None = None
    """What its engines have told of theirs last."""
    ready_s: float = 0.0
    used_s: float = 0.0
    """End of its last request, or of its load."""

    @property
    def is_used(self) -> bool:
        """Whether it has an engine, or is to get one."""
        return bool(self.handle or self.work or self.waiting)

    @property
    def is_leaving(self) -> bool:
        """Whether its engine ends: it is unloaded, or its load is cancelled."""
        is_cancelled = self.work is not None and self.work.cancelling() > 0
        return self.state is ModelState.DRAINING or (
            self.state is ModelState.LOADING and is_cancelled
        )

    def idle_s(self, now_s: float) -> float | None:
        """None while it is not loaded, or held or waited for."""
        if self.state is not ModelState.READY or self.leases or self.waiting:
            return None
        return max(0.0, now_s - self.used_s)

    def value_s(self, now_s: float) -> float:
        """What its leaving is likely to cost: its load, and the prefill of what its cache holds in
        memory alone, as far as it is likely to be asked for again."""
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
    """Of its load, from 0 to 1."""
    held_by: str | None = None
    """What its load waits for, in words."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """What people and routers want of one model's residency."""

    pinned: bool = False
    keep_alive_s: float | None = None
    """None: for ever."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a model takes, and how many requests at once it serves, unless its engine says so."""

    memory_bytes: int
    max_rows: int


def model_status(
    entry: ModelEntry, slot: Slot, budget: Budget, wishes: Wishes, sizes: Sizes, now_s: float
) -> ModelStatus:
    """The model as routers are told of it."""
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
