"""The single owner of engine processes: one state machine for each model folder.

on_disk -> loading -> ready -> draining -> on_disk, and failed(reason), which the next request after
a cool-down leaves again. Nobody reads a state and then acts on it: callers ask for a `Lease` and
await `Lease.ready`, and an engine is never stopped while a lease is ready.
"""

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from node.cache_watch import CacheWatch, cache_status
from node.errors import LoadFailure, MemoryShort, ModelBusy, ShuttingDown, UnknownModel
from node.hardware import Machine, free_disk_bytes
from node.link import EngineLink
from node.load_log import quarters
from node.memory import Budget, Leases
from node.policy import MAX_ROWS, Plan, Room, engine_spec, plan_engine, stored_choices
from node.protocol.messages import ModelState, ModelStatus
from node.settings import Settings
from node.store import ModelEntry, ModelStore
from node.types import CacheEvent, EngineStats, Loaded, Marked, Pressure

LOAD_COOL_DOWN_S = 5.0
STOP_GRACE_S = 5.0
EXIT_GRACE_S = 1.0
"""How long a process may live on after its end of the link closed."""
NAME_LIMIT = 200
"""Longest piece of an unknown name that is repeated or compared."""

logger = logging.getLogger(__name__)


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
class _Slot:
    """One model folder and its engine, if it has one."""

    entry: ModelEntry
    state: ModelState = ModelState.ON_DISK
    since_unix_s: float = field(default_factory=time.time)
    reason: str | None = None
    retry_at_s: float = 0.0
    handle: EngineHandle | None = None
    work: asyncio.Task[None] | None = None
    """The load or the stop in progress."""
    cache_events: Counter[str] = field(default_factory=Counter)
    """Of the engine's prefix cache since its load, by kind."""
    leases: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)


class Lease:
    """A request's hold on a model: until it is closed, the engine it got is not stopped."""

    def __init__(self, supervisor: "Supervisor", slot: _Slot) -> None:
        self._supervisor = supervisor
        self._slot = slot
        self._held = False

    async def ready(self) -> EngineHandle:
        """The engine, loaded first if need be. Raises `LoadFailure`, `DoesNotFit`, `MemoryShort`
        or `ShuttingDown`."""
        if self._supervisor.pressure is Pressure.HARD:
            raise MemoryShort
        handle = await self._supervisor.ensure_ready(self._slot)
        # No await since the state was seen as ready, so that nothing can have stopped the engine.
        if not self._held:
            self._held = True
            self._slot.leases += 1
            self._slot.idle.clear()
        return handle

    def close(self) -> None:
        if self._held:
            self._held = False
            self._slot.leases -= 1
            if self._slot.leases == 0:
                self._slot.idle.set()


class Supervisor:
    """Loads, serves and unloads the models of one node within its memory budget."""

    def __init__(
        self,
        store: ModelStore,
        budget: Budget,
        kind: EngineKind,
        *,
        on_change: Callable[[], None] = lambda: None,
        on_marked: Callable[[Marked], None] = lambda marked: None,
        watch: CacheWatch | None = None,
    ) -> None:
        self._store = store
        self.budget = budget
        self._kind = kind
        self._on_change = on_change
        self._on_marked = on_marked
        self._watch = watch or CacheWatch()
        self._leases = Leases(budget)
        self._disk_free_bytes = 0
        self.pressure = Pressure.NONE
        self._entries: dict[str, ModelEntry] = {}
        self._slots: dict[str, _Slot] = {}
        self._chores: set[asyncio.Task[None]] = set()
        self._closing = False

    async def refresh(self) -> None:
        """Reads the store again."""
        on_disk, self._disk_free_bytes = await asyncio.to_thread(self._look)
        loaded = [slot.handle.entry for slot in self._slots.values() if slot.handle is not None]
        before, self._entries = self._entries, {entry.name: entry for entry in (*loaded, *on_disk)}
        if before.keys() != self._entries.keys():
            self._on_change()

    def _look(self) -> tuple[tuple[ModelEntry, ...], int]:
        return self._store.list(), free_disk_bytes(self._kind.settings.kv_folder)

    def names(self) -> list[str]:
        return list(self._entries)

    async def find(self, name: str) -> ModelEntry:
        """The model of that name. Raises `UnknownModel` with names that resemble it."""
        entry = self._entries.get(name)
        if entry is None:
            await self.refresh()
            entry = self._entries.get(name)
        if entry is not None:
            return entry
        near = await asyncio.to_thread(self._store.near, name[:NAME_LIMIT])
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        raise UnknownModel(f"There is no model {name[:NAME_LIMIT]!r} on this node.{hint}")

    @contextmanager
    def serving(self, entry: ModelEntry) -> Iterator[Lease]:
        """A lease for one request."""
        lease = Lease(self, self._slot(entry))
        try:
            yield lease
        finally:
            lease.close()

    async def ensure_ready(self, slot: _Slot) -> EngineHandle:
        """One load however many wait; one that stops waiting does not cancel it. Ask through
        `Lease.ready`."""
        while True:
            if self._closing:
                raise ShuttingDown
            if slot.state is ModelState.READY and slot.handle is not None:
                return slot.handle
            if slot.work is None:
                self._begin_load(slot)
            work = slot.work
            assert work is not None
            await asyncio.wait({work})
            if slot.state is ModelState.FAILED:
                raise self._failure(slot)

    async def unload(self, entry: ModelEntry) -> None:
        """Stops the model's engine. Raises `ModelBusy` while it loads or serves requests."""
        slot = self._slot(entry)
        if slot.state is ModelState.LOADING:
            raise ModelBusy(f"{entry.name} is being loaded.")
        if slot.leases and slot.state is ModelState.READY:
            raise ModelBusy(f"{entry.name} still serves {slot.leases} requests.")
        await self.drain(entry)

    async def drain(self, entry: ModelEntry) -> None:
        """Gives the engine no more requests, and stops it when it has finished its last one."""
        slot = self._slot(entry)
        if slot.state is ModelState.FAILED:
            self._set(slot, ModelState.ON_DISK)
        if slot.state is ModelState.READY and slot.handle is not None:
            self._set(slot, ModelState.DRAINING)
            slot.work = asyncio.create_task(self._stop(slot, slot.handle.link))
        if slot.work is not None:
            await asyncio.wait({slot.work})

    def status(self) -> tuple[ModelStatus, ...]:
        """Every model on disk or in memory, by name."""
        return tuple(self._status(self._entries[name]) for name in sorted(self._entries))

    def engines(self) -> dict[str, EngineState]:
        """The models that have an engine, by name."""
        return {
            slot.entry.name: EngineState(slot.handle, slot.state, dict(slot.cache_events))
            for slot in self._slots.values()
            if slot.handle is not None
        }

    def set_pressure(self, level: Pressure) -> None:
        """Tells all engines, also those that are loaded later."""
        self.pressure = level
        for engine in self.engines().values():
            engine.handle.link.set_pressure(level)

    async def settled(self) -> None:
        """Waits until the engines have the stored KV that they are granted now, or are late."""
        # Who is late is logged by the settling that goes on beside everything else.
        with suppress(LoadFailure):
            await self._leases.settle()

    async def close(self, grace_s: float) -> None:
        """Ends all loads and engines; an engine that is not gone after `grace_s` is killed."""
        self._closing = True
        work = [slot.work for slot in self._slots.values() if slot.work is not None]
        for task in work:
            task.cancel()
        engines = self.engines().values()
        await asyncio.gather(*(engine.handle.link.stop(grace_s) for engine in engines))
        if ending := [*work, *self._chores]:
            await asyncio.wait(ending)
        await self._leases.close()

    def _slot(self, entry: ModelEntry) -> _Slot:
        # A scripted model has no folder, so that its name is all that tells it from others.
        key = entry.name if entry.folder == Path() else str(entry.folder)
        slot = self._slots.get(key)
        if slot is None:
            slot = self._slots[key] = _Slot(entry)
            slot.idle.set()
        elif slot.handle is None and slot.work is None:
            # The folder may have changed since, and another name may have been asked for.
            slot.entry = entry
        return slot

    def _begin_load(self, slot: _Slot) -> None:
        """Raises `DoesNotFit`, or `LoadFailure` during the cool-down of a load that failed."""
        if slot.state is ModelState.FAILED and time.monotonic() < slot.retry_at_s:
            raise self._failure(slot)
        plan = self._plan(slot.entry)
        self.budget.admit(slot.entry.name, plan.fixed, self._kind.settings.kv_cache_bytes)
        # First, so that the slot keeps the name under which memory was granted.
        slot.work = asyncio.create_task(self._load(slot, plan))
        self._set(slot, ModelState.LOADING)

    def _plan(self, entry: ModelEntry) -> Plan:
        room = Room(
            self.budget.room_bytes(entry.name), self._disk_free_bytes, self._kind.machine.has_gpu
        )
        return plan_engine(entry, room, self._kind.settings)

    async def _load(self, slot: _Slot, plan: Plan) -> None:
        entry = slot.entry
        slot.cache_events.clear()
        link = EngineLink(
            on_progress=quarters(entry.name),
            on_loaded=lambda info: self._watch.on_loaded(entry, info),
            on_marked=self._on_marked,
            on_cache_events=lambda events: self._on_cache_events(slot, events),
            on_stats=lambda stats: self._on_stats(slot, stats),
            on_died=lambda: self._on_died(slot, link),
        )
        spec = engine_spec(entry, plan, self._kind.settings, self._kind.script_json)
        started_s = time.monotonic()
        state, reason = ModelState.ON_DISK, None
        try:
            await self._leases.make_room()
            info = await link.start(spec)
            slot.handle = EngineHandle(entry, link, info)
            state = ModelState.READY
            logger.info("Loaded %s in %.1f s.", entry.name, time.monotonic() - started_s)
        except LoadFailure as exc:
            state, reason = ModelState.FAILED, exc.message
        except OSError as exc:
            state, reason = ModelState.FAILED, f"The engine process cannot be started: {exc}."
        finally:
            if state is not ModelState.READY:
                self._release(entry.name)
            slot.work = None
            slot.retry_at_s = time.monotonic() + LOAD_COOL_DOWN_S
            self._set(slot, state, reason)
        if slot.handle is not None:
            self._move_in(slot.handle, plan)
        elif reason is not None:
            logger.error("Cannot load %s: %s", entry.name, reason)

    def _move_in(self, handle: EngineHandle, plan: Plan) -> None:
        """The engine serves: it gets its share of stored KV."""
        name = handle.entry.name
        self.budget.correct(name, handle.info.weight_bytes)
        self._leases.join(name, handle.link, plan.fixed)
        if self.pressure is not Pressure.NONE:
            handle.link.set_pressure(self.pressure)
        self._settle()
        stored_bytes = self.budget.lease(name).stored_kv_bytes
        stored = stored_choices(stored_bytes, len(self.engines()), self._kind.settings)
        for choice in (*plan.choices, *stored):
            logger.info("%s: %s", name, choice.line)

    def _release(self, name: str) -> None:
        self._watch.on_gone(name)
        self.budget.release(name)
        self._leases.leave(name)
        self._settle()

    def _settle(self) -> None:
        """Brings the engines to what the budget now grants them, beside everything else."""
        if not self._closing:
            self._leases.settle_soon()

    def _on_cache_events(self, slot: _Slot, events: tuple[CacheEvent, ...]) -> None:
        slot.cache_events.update(event.kind.value for event in events)
        self._watch.on_cache_events(slot.entry.name, events)

    def _on_stats(self, slot: _Slot, stats: EngineStats) -> None:
        if slot.handle is not None and self.budget.pin(slot.entry.name, stats.pinned_kv_bytes):
            self._settle()

    async def _stop(self, slot: _Slot, link: EngineLink) -> None:
        try:
            await slot.idle.wait()
            if code := await link.stop(STOP_GRACE_S):
                logger.error("The engine of %s ended with code %s.", slot.entry.name, code)
        finally:
            slot.work = None
            self._forget(slot)

    def _on_died(self, slot: _Slot, link: EngineLink) -> None:
        if slot.handle is None or slot.handle.link is not link:
            return
        # A stop in progress waits for its requests, which fail now, and ends by itself.
        if slot.state is ModelState.READY:
            chore = asyncio.create_task(self._bury(slot.entry.name, link))
            self._chores.add(chore)
            chore.add_done_callback(self._chores.discard)
            self._forget(slot)

    async def _bury(self, name: str, link: EngineLink) -> None:
        code = await link.stop(EXIT_GRACE_S)
        logger.error("The engine of %s ended with code %s; a request starts it again.", name, code)

    def _forget(self, slot: _Slot) -> None:
        slot.handle = None
        self._release(slot.entry.name)
        self._set(slot, ModelState.ON_DISK)

    def _failure(self, slot: _Slot) -> LoadFailure:
        failure = LoadFailure(f"{slot.entry.name} could not be loaded: {slot.reason}")
        failure.retry_after_s = max(1, math.ceil(slot.retry_at_s - time.monotonic()))
        return failure

    def _set(self, slot: _Slot, state: ModelState, reason: str | None = None) -> None:
        slot.state = state
        slot.reason = reason
        slot.since_unix_s = time.time()
        self._on_change()

    def _status(self, entry: ModelEntry) -> ModelStatus:
        handle = (slot := self._slot(entry)).handle
        return ModelStatus(
            name=entry.name,
            state=slot.state,
            weight_bytes=entry.weight_bytes if handle is None else handle.info.weight_bytes,
            context_tokens=entry.context_tokens if handle is None else handle.info.context_tokens,
            active_requests=0 if handle is None else handle.link.open_rows,
            max_rows=handle.info.max_rows if handle else self._kind.settings.max_rows or MAX_ROWS,
            since_unix_s=slot.since_unix_s,
            reason=slot.reason,
            capabilities=entry.capabilities,
            tool_parser=entry.formats.tool_calls,
            reasoning_parser=entry.formats.reasoning,
            cache=None
            if handle is None
            else cache_status(self.budget.lease(handle.entry.name), handle.info, handle.link.stats),
        )
