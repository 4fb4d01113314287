"""The single owner of engine processes: one state machine for each model folder.

States: on_disk -> loading -> ready -> draining -> on_disk, and failed(reason), from which the next
request after a cool-down starts a new load. No caller reads a state and then acts on it: callers
take a `Lease` and await `Lease.ready`, and an engine is never stopped while a lease is in use.
Where not all models fit into memory, `node.engines.swap_policy` decides which are loaded.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from node.engines.memory_budget import Budget
from node.engines.processes import Engines, Hooks
from node.engines.sizing import MAX_ROWS, Plan, Room, needed_bytes, plan_engine
from node.engines.slot import (
    ANOTHER_IN_USE,
    BEING_UNLOADED,
    EngineHandle,
    EngineKind,
    EngineState,
    ModelAwaited,
    Sizes,
    Slot,
    Wishes,
    model_status,
)
from node.engines.swap_policy import Coming, Memory, Resident, Rules, Wanted
from node.engines.swapper import Residency
from node.errors import (
    DoesNotFit,
    LoadFailure,
    MemoryShort,
    ModelBroken,
    ModelBusy,
    ShuttingDown,
    UnknownModel,
)
from node.hardware import free_disk_bytes
from node.ipc.messages import Pressure
from node.models.store import BrokenFolder, Contents, ModelEntry, ModelStore
from node.protocol.messages import ModelState, ModelStatus
from serving.awake import Awake
from serving.stay_awake import StayAwake

NAME_LIMIT = 200
"""Longest piece of an unknown name that is repeated or compared, in characters."""

_NOWHERE = Path()

logger = logging.getLogger(__name__)


class Lease:
    """A request's lease on a model: until it is closed, the engine is not stopped."""

    def __init__(self, supervisor: "Supervisor", slot: Slot, name: str) -> None:
        self._supervisor = supervisor
        self._slot = slot
        self._name = name
        self._held = False

    async def ready(self, *, ahead: bool = False) -> EngineHandle:
        """Returns the engine, and loads it first if needed. `ahead` means that no request waits for
        the load. Raises `LoadFailure`, `DoesNotFit`, `MemoryShort` or `ShuttingDown`."""
        handle = await self._supervisor.ensure_ready(self._slot, ahead=ahead)
        # No await since the state was seen as ready: nothing can have stopped the engine.
        if not self._held:
            self._held = True
            self._slot.leases += 1
            self._slot.idle.clear()
        return handle

    def awaited(self) -> ModelAwaited | None:
        """Returns what the request waits for; None once its engine is ready."""
        return None if self._held else self._supervisor.awaited(self._slot, self._name)

    def close(self) -> None:
        if self._held:
            self._held = False
            self._supervisor.give_back(self._slot)


class Supervisor:
    """Loads, serves and unloads the models of one node within its memory budget."""

    def __init__(
        self, store: ModelStore, budget: Budget, kind: EngineKind, hooks: Hooks | None = None
    ) -> None:
        self._store = store
        self.budget = budget
        self._kind = kind
        hooks = hooks or Hooks()
        self._on_change = hooks.on_change
        self.now_s: Callable[[], float] = time.monotonic
        self._engines = Engines(kind, budget, hooks, self._on_end, lambda: self.now_s())
        settings = kind.settings
        self._residency = Residency(self, Rules(settings.min_residency_s, settings.max_swap_wait_s))
        self.wishes: Callable[[str], Wishes] = lambda name: Wishes()
        """Returns the residency that is wanted for a model, by its name."""
        self.awake = Awake(StayAwake.NEVER)
        """Keeps the machine awake while models are leased or waited for."""
        self._looking = asyncio.Lock()
        """Serializes reads of the disk, so that an older result never replaces a newer one."""
        self._disk_free_bytes = 0
        self._entries: dict[str, ModelEntry] = {}
        self.broken: tuple[BrokenFolder, ...] = ()
        """Models on disk that cannot be served."""
        self._slots: dict[str, Slot] = {}
        self._closing = False

    async def refresh(self) -> None:
        """Reads the store again."""
        async with self._looking:
            here, self._disk_free_bytes = await asyncio.to_thread(self._look)
            # A folder that has taken the name of a model in use waits until that model is at rest.
            used = [slot.entry for slot in self._slots.values() if slot.is_used]
            before = (self._entries.keys(), self.broken)
            self._entries = {entry.name: entry for entry in (*here.models, *used)}
            self.broken = tuple(each for each in here.broken if each.name not in self._entries)
        if before != (self._entries.keys(), self.broken):
            self._on_change()
        if self._wants_spare():
            self._engines.keep_spare(self._wants_spare)

    def _wants_spare(self) -> bool:
        """True if a load is likely soon and none is running."""
        if self._closing:
            return False
        states = {slot.state for slot in self._slots.values()}
        return len(self.engines()) < len(self._entries) and ModelState.LOADING not in states

    def _look(self) -> tuple[Contents, int]:
        return self._store.contents(), free_disk_bytes(self._kind.settings.kv_folder)

    def names(self) -> list[str]:
        return list(self._entries)

    async def find(self, name: str) -> ModelEntry:
        """Returns the model of that name. Raises `ModelBroken`, or `UnknownModel` with similar
        names."""
        entry = self._entries.get(name)
        if entry is None:
            await self.refresh()
            entry = self._entries.get(name)
        if entry is not None:
            return entry
        for each in self.broken:
            if each.name == name:
                raise ModelBroken(f"The model {name!r} cannot be served: {each.reason}")
        near = await asyncio.to_thread(self._store.near, name[:NAME_LIMIT])
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        raise UnknownModel(f"There is no model {name[:NAME_LIMIT]!r} on this node.{hint}")

    @contextmanager
    def serving(self, entry: ModelEntry) -> Iterator[Lease]:
        """Provides a lease for one request."""
        lease = Lease(self, self._slot(entry), entry.name)
        try:
            with self.awake.work():
                yield lease
        finally:
            lease.close()

    async def ensure_ready(self, slot: Slot, *, ahead: bool = False) -> EngineHandle:
        """Returns the engine once it is ready; for `Lease.ready` alone. All waiting requests share
        one load, which is cancelled soon after the last of them disconnects."""
        if (handle := self._serving(slot)) is not None:
            return handle
        if self.pressure is Pressure.HARD:
            raise MemoryShort
        if slot.state is ModelState.FAILED and self.now_s() < slot.retry_at_s:
            raise self._failure(slot)
        slot.is_hurried |= not ahead
        with self._residency.waiting(slot):
            self._residency.look()
            failures = slot.failures
            while (handle := self._serving(slot)) is None:
                self._check_wait(slot, failures)
                await self._residency.news()
            return handle

    def retry_now(self, entry: ModelEntry) -> None:
        """Lets the next request load the model although its last load has just failed."""
        self._slot(entry).retry_at_s = 0.0

    def _check_wait(self, slot: Slot, failures: int) -> None:
        """Raises the error that ends the wait for a model, if there is one. `failures` is the
        number of failed loads when the wait began."""
        if self._closing:
            raise ShuttingDown
        if self.pressure is Pressure.HARD and slot.state is not ModelState.LOADING:
            raise MemoryShort
        if slot.failures != failures:
            raise self._failure(slot)
        if self._residency.is_hopeless(slot.entry.name):
            raise self._no_room(slot.entry)

    def _serving(self, slot: Slot) -> EngineHandle | None:
        is_open = slot.state is ModelState.READY and not self._residency.is_closed(slot.entry.name)
        return slot.handle if is_open and not self._closing else None

    def awaited(self, slot: Slot, name: str) -> ModelAwaited | None:
        """Returns what a request for the model of that name waits for; for `Lease.awaited`
        alone."""
        if self._serving(slot) is not None:
            return None
        held_by = ANOTHER_IN_USE if self._residency.gives_way(slot.entry.name) else None
        if slot.is_leaving:
            held_by = BEING_UNLOADED
        progress = slot.progress if slot.state is ModelState.LOADING else 0.0
        return ModelAwaited(name, progress, held_by)

    def give_back(self, slot: Slot) -> None:
        """Ends a lease on the slot."""
        slot.leases -= 1
        slot.used_s = self.now_s()
        if slot.leases == 0:
            slot.idle.set()
            self._residency.look_soon()

    async def unload(
        self, entry: ModelEntry, generation: int | None = None, min_idle_s: float = 0.0
    ) -> None:
        """Stops the model's engine. Raises `ModelBusy` while it loads or serves requests, if it is
        not the load `generation`, or if it has been idle for less than `min_idle_s`."""
        slot = self._slot(entry)
        if slot.state is ModelState.LOADING:
            raise ModelBusy(f"{entry.name} is being loaded.")
        if slot.leases and slot.state is ModelState.READY:
            raise ModelBusy(f"{entry.name} still serves {slot.leases} requests.")
        if generation is not None and (slot.generation != generation or slot.handle is None):
            raise ModelBusy(f"{entry.name} has been unloaded or loaded anew meanwhile.")
        if min_idle_s > 0.0:
            self._check_idle(slot, min_idle_s)
        await self.drain(entry)

    def _check_idle(self, slot: Slot, min_idle_s: float) -> None:
        """Raises `ModelBusy` if the model has been used or pinned: a router that unloads an idle
        model may not have heard of it."""
        if (slot.idle_s(self.now_s()) or 0.0) < min_idle_s:
            raise ModelBusy(f"{slot.entry.name} has been used meanwhile.")
        if self.wishes(slot.entry.name).pinned:
            raise ModelBusy(f"{slot.entry.name} is pinned.")

    async def drain(self, entry: ModelEntry) -> None:
        """Sends the engine no more requests, and stops it when its last one has finished."""
        slot = self._slot(entry)
        if slot.state is ModelState.FAILED:
            slot.retry_at_s = slot.cool_down_s = 0.0
            self._engines.set(slot, ModelState.ON_DISK)
        self._engines.stop_soon(slot)
        if slot.work is not None:
            await asyncio.wait({slot.work})

    def kill(self, name: str, reason: str) -> None:
        """Kills an engine that hangs; its load or its requests fail as if it had died."""
        for slot in self._slots.values():
            if slot.entry.name == name and slot.link is not None:
                logger.error("The engine of %s is killed: %s", name, reason)
                slot.link.kill()

    def status(self) -> tuple[ModelStatus, ...]:
        """Returns the status of every model on disk or in memory, by name."""
        return tuple(self._status(self._entries[name]) for name in sorted(self._entries))

    def engines(self) -> dict[str, EngineState]:
        """Returns the models that have an engine, by name."""
        return {
            slot.entry.name: EngineState(slot.handle, slot.state, dict(slot.cache_events))
            for slot in self._slots.values()
            if slot.handle is not None
        }

    @property
    def pressure(self) -> Pressure:
        return self._engines.pressure

    @property
    def pressure_age_s(self) -> float:
        """Seconds since the level last changed."""
        return self.now_s() - self._engines.pressure_since_s

    def set_pressure(self, level: Pressure) -> None:
        """Sends the level to all engines, and to those that are loaded later."""
        self._engines.pressure = level
        self._engines.pressure_since_s = self.now_s()
        self._residency.tell()
        for engine in self.engines().values():
            engine.handle.link.set_pressure(level)

    async def settled(self) -> None:
        """Waits until every engine has the stored KV that the budget grants it, or has missed the
        time for it."""
        await self._engines.settled()

    async def close(self, grace_s: float) -> None:
        """Ends all loads and engines; kills an engine that has not ended after `grace_s`
        seconds."""
        self._closing = True
        self._residency.close()
        await self._engines.close(list(self._slots.values()), grace_s)

    def _slot(self, entry: ModelEntry) -> Slot:
        # A scripted model has no folder; only its name distinguishes it.
        key = entry.name if entry.folder == _NOWHERE else str(entry.folder)
        slot = self._slots.get(key)
        if slot is None:
            slot = self._slots[key] = Slot(entry)
            slot.idle.set()
        elif slot.handle is None and slot.work is None:
            # The folder may have changed, or be requested under another name.
            slot.entry = entry
        return slot

    # --- memory ---------------------------------------------------------------------------------

    def memory(self) -> Memory:
        now_s = self.now_s()
        residents: list[Resident] = []
        coming: list[Coming] = []
        wanted: list[Wanted] = []
        leaving_bytes = 0
        for slot in () if self._closing else self._slots.values():
            name = slot.entry.name
            kept_bytes, pinned = self.budget.kept_bytes(name), self.wishes(name).pinned
            if slot.is_leaving:
                leaving_bytes += kept_bytes
            elif slot.state is ModelState.READY:
                value_s = slot.value_s(now_s)
                residents.append(
                    Resident(name, kept_bytes, slot.leases, slot.ready_s, value_s, pinned)
                )
            elif slot.state is ModelState.LOADING:
                coming.append(Coming(name, kept_bytes, None if pinned else slot.abandoned_s))
            elif slot.waiting and not kept_bytes and slot.retry_at_s <= now_s:
                since_s = min(slot.waiting.values())
                wanted.append(Wanted(name, self._needed_bytes(slot.entry), since_s))
        return Memory(self.budget.total_bytes, residents, coming, wanted, leaving_bytes)

    def on_wishes(self) -> None:
        """Applies changed residency policies."""
        self._residency.look_soon()

    def begin_load(self, name: str) -> None:
        slot = self._named(name)
        self._engines.begin_load(slot, self._plan(slot.entry))

    def begin_stop(self, name: str) -> None:
        slot = self._named(name)
        idle_s = slot.idle_s(self.now_s()) or 0.0
        logger.info("Unloading %s, idle for %.0f s, to make room.", name, idle_s)
        self._engines.stop_soon(slot)

    def cancel_load(self, name: str) -> None:
        slot = self._named(name)
        if slot.work is not None:
            logger.info("Nobody waits for %s any more: its load is cancelled.", name)
            slot.work.cancel()

    def on_abandoned(self, slot: Slot) -> None:
        # Routers with requests for other models use this status.
        if slot.state is ModelState.LOADING:
            self._on_change()

    def _named(self, name: str) -> Slot:
        """Returns the slot that has, or will have, the engine of that name."""
        found = [slot for slot in self._slots.values() if slot.entry.name == name]
        return max(found, key=lambda slot: slot.is_used)

    def _no_room(self, entry: ModelEntry) -> DoesNotFit:
        return self.budget.refusal(entry.name, self._needed_bytes(entry))

    def _plan(self, entry: ModelEntry) -> Plan:
        return plan_engine(entry, self._room(entry), self._kind.settings)

    def _needed_bytes(self, entry: ModelEntry) -> int:
        return needed_bytes(entry, self._room(entry), self._kind.settings)

    def _room(self, entry: ModelEntry) -> Room:
        return Room(
            self.budget.room_bytes(entry.name), self._disk_free_bytes, self._kind.machine.has_gpu
        )

    def _failure(self, slot: Slot) -> LoadFailure:
        failure = LoadFailure(f"{slot.entry.name} could not be loaded: {slot.reason}")
        failure.retry_after_s = max(1, math.ceil(slot.retry_at_s - self.now_s()))
        return failure

    def _on_end(self) -> None:
        if not self._closing:
            self._residency.tell()

    def _status(self, entry: ModelEntry) -> ModelStatus:
        slot = self._slot(entry)
        if slot.handle is None and slot.state is not ModelState.LOADING:
            memory_bytes = self._needed_bytes(entry)
        else:
            memory_bytes = self.budget.kept_bytes(slot.entry.name)
        sizes = Sizes(memory_bytes, self._kind.settings.max_rows or MAX_ROWS)
        wishes = self.wishes(entry.name)
        return model_status(entry, slot, self.budget, wishes, sizes, self.now_s())
