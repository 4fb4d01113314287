"""State that the supervisor keeps for each model of a node and its engine."""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from node.engines.link import EngineLink
from node.engines.load_history import LoadHistory
from node.engines.model_use import ModelUse
from node.errors import LoadFailure
from node.hardware import Machine
from node.ipc.messages import CacheEvent, Loaded
from node.models.store import ModelEntry
from node.protocol.messages import ModelSpeed, ModelState
from node.settings import Settings

LOAD_BYTES_PER_S = 1e9
"""Assumed read speed of a load until one has been measured."""
REUSE_HALF_LIFE_S = 600.0
"""Half-life, in seconds since its last request, of a model's chance to be requested again soon."""
PROGRESS_STEPS = 20
"""Number of progress reports to routers per load."""


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


class Slot:
    """One model folder and its engine, if it has one.

    States: on_disk -> loading -> ready -> draining -> on_disk, and loading -> failed. Others read
    the fields; only the methods change them, so that state, link, handle and work always agree.
    """

    def __init__(self, entry: ModelEntry) -> None:
        self.entry = entry
        self.use = ModelUse()
        self.loads = LoadHistory()
        self.state = ModelState.ON_DISK
        self.since_unix_s = time.time()
        """Start of the state."""
        self.reason: str | None = None
        """Reason of the state, as a sentence, if the last load failed."""
        self.link: EngineLink | None = None
        """Connection to its engine, loaded or not."""
        self.handle: EngineHandle | None = None
        """Its engine once that is loaded."""
        self.work: asyncio.Task[None] | None = None
        """The load or stop in progress."""
        self.progress = 0.0
        """Fraction of the load that is done, from 0 to 1."""
        self.cache_events: Counter[str] = Counter()
        """Number of prefix cache events since the load, by kind."""
        self.speed: ModelSpeed | None = None
        """Speed that its engines reported last."""
        self.ready_s = 0.0
        """Time at which its engine was loaded."""

    # --- transitions -------------------------------------------------------------------------

    def renew(self, entry: ModelEntry) -> None:
        """Takes over another entry for the same folder, unless an engine uses the present one."""
        if self.handle is None and self.work is None:
            self.entry = entry

    def begin_load(self, work: asyncio.Task[None], generation: int) -> None:
        self.work = work
        self.progress = 0.0
        self.loads.begin(generation)
        self.use.begin_load()
        self._enter(ModelState.LOADING)

    def connect(self, link: EngineLink) -> None:
        """Sets the connection to the engine of the load in progress."""
        self.link = link
        self.cache_events.clear()

    def complete_load(self, handle: EngineHandle, load_s: float, now_s: float) -> None:
        self.handle = handle
        self.work = None
        self.ready_s = now_s
        self.loads.succeeded(load_s)
        self.use.end_load(now_s)
        self._enter(ModelState.READY)

    def fail_load(self, reason: str, now_s: float) -> None:
        self.link = self.work = None
        self.loads.failed(now_s)
        self.use.end_load(None)
        self._enter(ModelState.FAILED, reason)

    def cancel_load(self) -> None:
        self.link = self.work = None
        self.use.end_load(None)
        self._enter(ModelState.ON_DISK)

    def begin_stop(self, work: asyncio.Task[None]) -> None:
        self.work = work
        self._enter(ModelState.DRAINING)

    def end_engine(self) -> None:
        """Removes the engine after it was stopped or has died."""
        self.handle = self.link = self.work = None
        self._enter(ModelState.ON_DISK)

    def forgive(self) -> None:
        """Ends the cool-down after a failed load."""
        self.loads.forgive()
        self._enter(ModelState.ON_DISK)

    def _enter(self, state: ModelState, reason: str | None = None) -> None:
        self.state = state
        self.reason = reason
        self.since_unix_s = time.time()

    # --- reports of the engine ---------------------------------------------------------------

    def set_progress(self, fraction: float) -> bool:
        """Sets the progress; returns True if it is to be reported to routers."""
        is_step = int(fraction * PROGRESS_STEPS) > int(self.progress * PROGRESS_STEPS)
        self.progress = fraction
        return is_step

    def count(self, events: Iterable[CacheEvent]) -> None:
        self.cache_events.update(event.kind.value for event in events)

    def set_speed(self, speed: ModelSpeed | None) -> None:
        """Keeps the last speed if there is no new one."""
        self.speed = speed or self.speed

    # --- views -------------------------------------------------------------------------------

    @property
    def is_used(self) -> bool:
        """True if it has an engine, or a load or stop is running or awaited."""
        return bool(self.handle or self.work or self.use.waiting)

    @property
    def is_unloading(self) -> bool:
        """True if its engine is ending: it is being unloaded, or its load is cancelled."""
        is_cancelled = self.work is not None and self.work.cancelling() > 0
        return self.state is ModelState.DRAINING or (
            self.state is ModelState.LOADING and is_cancelled
        )

    def idle_s(self, now_s: float) -> float | None:
        """Seconds without a request; None while it is not loaded, is leased or is waited for."""
        if self.state is not ModelState.READY or self.use.leases or self.use.waiting:
            return None
        return max(0.0, now_s - self.use.used_s)

    def unload_cost_s(self, now_s: float) -> float:
        """Expected cost of unloading the model, in seconds: its load, and the prefill of KV that is
        cached in memory alone, weighted by the chance that the model is requested again."""
        reload_s = self.loads.load_s or self.entry.weight_bytes / LOAD_BYTES_PER_S
        if self.handle is not None:
            reload_s += _recompute_s(self.handle)
        return reload_s * math.pow(0.5, (self.idle_s(now_s) or 0.0) / REUSE_HALF_LIFE_S)

    def failure(self, now_s: float) -> LoadFailure:
        """The error for a request while the last load has failed."""
        return LoadFailure(
            f"{self.entry.name} could not be loaded: {self.reason}",
            retry_after_s=max(1, math.ceil(self.loads.retry_at_s - now_s)),
        )


def _recompute_s(handle: EngineHandle) -> float:
    """Returns the prefill time of KV that only the memory of the engine has."""
    stats, each_bytes = handle.link.stats, handle.info.stored_bytes_per_token
    if stats is None or not each_bytes or not stats.prefill_rates:
        return 0.0
    alone_bytes = max(0, stats.stored_kv_bytes - stats.disk_kv_bytes)
    return alone_bytes / each_bytes / stats.prefill_rates[0].tokens_per_s
