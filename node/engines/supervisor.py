"""The owner of a node's models: which are on disk, loaded or leased, and in which state.

No caller reads a state and then acts on it: callers take a `Lease` and await `Lease.ready`, and an
engine is never stopped while a lease is in use. `node.engines.slot` has the states of a model.
Where not all models fit into memory, `node.engines.swap_policy` decides which are loaded.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from node.engines.lease import Lease, Leasing
from node.engines.memory_budget import Budget
from node.engines.model_catalog import ModelCatalog
from node.engines.model_memory import ModelMemory
from node.engines.model_status import PlannedSizes, model_status
from node.engines.processes import EngineProcesses, Hooks
from node.engines.residency_policy import ResidencyPolicy
from node.engines.sizing import MAX_ROWS
from node.engines.slot import EngineKind, EngineState, Slot
from node.engines.slots import Slots
from node.engines.swapper import Swapper
from node.errors import ModelBusy
from node.ipc.messages import Pressure
from node.models.store import BrokenFolder, ModelEntry, ModelStore
from node.protocol.messages import ModelState, ModelStatus

logger = logging.getLogger(__name__)


class Supervisor:
    """Loads, serves and unloads the models of one node within its memory budget."""

    def __init__(
        self,
        store: ModelStore,
        budget: Budget,
        kind: EngineKind,
        residency: ResidencyPolicy,
        hooks: Hooks | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        hooks = hooks or Hooks()
        settings = kind.settings
        self.budget = budget
        self.awake = hooks.awake
        self.now_s = clock
        self._kind = kind
        self._residency = residency
        self._on_change = hooks.on_change
        self._slots = Slots()
        self._catalog = ModelCatalog(
            store, settings.kv_folder, self._slots, self._on_change, self._on_read
        )
        self._memory = ModelMemory(budget, kind, self._slots, self._catalog, residency)
        self._engines = EngineProcesses(kind, budget, hooks, self._on_end, clock)
        self._swapper = Swapper(
            self._slots,
            self._engines,
            self._memory,
            settings.max_swap_wait_s,
            self._on_change,
        )
        self._leasing = Leasing(self._engines, self._swapper, self._memory)

    # --- models on disk ----------------------------------------------------------------------

    async def refresh(self) -> None:
        """Reads the store again."""
        await self._catalog.refresh()

    def names(self) -> list[str]:
        return list(self._catalog.entries)

    @property
    def broken(self) -> tuple[BrokenFolder, ...]:
        """Models on disk that cannot be served."""
        return self._catalog.broken

    async def find(self, name: str) -> ModelEntry:
        """Returns the model of that name. Raises `ModelBroken`, or `UnknownModel` with similar
        names."""
        return await self._catalog.find(name)

    async def meant(self, name: str) -> str:
        """The same as `ModelCatalog.meant`."""
        return await self._catalog.meant(name)

    def _on_read(self) -> None:
        if self._needs_spare():
            self._engines.keep_spare(self._needs_spare)

    def _needs_spare(self) -> bool:
        """True if a load is likely soon and none is running."""
        if self._engines.is_closing:
            return False
        is_loading = any(slot.state is ModelState.LOADING for slot in self._slots)
        return len(self.engines()) < len(self._catalog.entries) and not is_loading

    # --- leases and unloads ------------------------------------------------------------------

    @contextmanager
    def serving(self, entry: ModelEntry) -> Iterator[Lease]:
        """Provides a lease for one request."""
        with (
            self.awake.work(),
            self._leasing.serving(self._slots.of(entry), entry.name) as lease,
        ):
            yield lease

    def retry_now(self, entry: ModelEntry) -> None:
        """Lets the next request load the model although its last load has just failed."""
        self._slots.of(entry).loads.allow_retry()

    async def unload(
        self, entry: ModelEntry, generation: int | None = None, min_idle_s: float = 0.0
    ) -> None:
        """Stops the model's engine. Raises `ModelBusy` while it loads or serves requests, if it is
        not the load `generation`, or if it has been idle for less than `min_idle_s`."""
        slot = self._slots.of(entry)
        if slot.state is ModelState.LOADING:
            raise ModelBusy(f"{entry.name} is being loaded.")
        if slot.use.leases and slot.state is ModelState.READY:
            raise ModelBusy(f"{entry.name} still serves {slot.use.leases} requests.")
        is_other = slot.loads.generation != generation or slot.handle is None
        if generation is not None and is_other:
            raise ModelBusy(f"{entry.name} has been unloaded or loaded again meanwhile.")
        if min_idle_s > 0.0:
            self._check_idle(slot, min_idle_s)
        await self.drain(entry)

    def _check_idle(self, slot: Slot, min_idle_s: float) -> None:
        """Raises `ModelBusy` if the model has been used or pinned: a router that unloads an idle
        model may not have heard of it."""
        if (slot.idle_s(self.now_s()) or 0.0) < min_idle_s:
            raise ModelBusy(f"{slot.entry.name} has been used meanwhile.")
        if self._residency.of(slot.entry.name).pinned:
            raise ModelBusy(f"{slot.entry.name} is pinned.")

    async def drain(self, entry: ModelEntry) -> None:
        """Sends the engine no more requests, and stops it when its last one has finished."""
        slot = self._slots.of(entry)
        if slot.state is ModelState.FAILED:
            slot.forgive()
            self._on_change()
        self._engines.stop_soon(slot)
        if slot.work is not None:
            await asyncio.wait({slot.work})

    def kill(self, name: str, reason: str) -> None:
        """Kills an engine that hangs; its load or its requests fail as if it had died."""
        for slot in self._slots:
            if slot.entry.name == name and slot.link is not None:
                logger.error("The engine of %s is killed: %s", name, reason)
                slot.link.kill()

    def on_residency_change(self) -> None:
        """Applies changed residency policies."""
        self._swapper.decide_soon()

    # --- state -------------------------------------------------------------------------------

    def status(self) -> tuple[ModelStatus, ...]:
        """Returns the status of every model on disk or in memory, by name."""
        entries = self._catalog.entries
        return tuple(self._status(entries[name]) for name in sorted(entries))

    def _status(self, entry: ModelEntry) -> ModelStatus:
        slot = self._slots.of(entry)
        max_rows = self._kind.settings.max_rows or MAX_ROWS
        sizes = PlannedSizes(self._memory.size_bytes(entry, slot), max_rows)
        residency = self._residency.of(entry.name)
        return model_status(entry, slot, self.budget, residency, sizes, self.now_s())

    def engines(self) -> dict[str, EngineState]:
        """Returns the models that have an engine, by name."""
        return self._slots.engines()

    @property
    def pressure(self) -> Pressure:
        return self._engines.pressure

    @property
    def pressure_age_s(self) -> float:
        """Seconds since the level last changed."""
        return self.now_s() - self._engines.pressure_since_s

    def set_pressure(self, level: Pressure) -> None:
        """Sends the level to all engines, and to those that are loaded later."""
        self._engines.set_pressure(level, self._slots)
        self._swapper.wake()

    async def settled(self) -> None:
        """Waits until every engine has the stored KV that the budget grants it, or has missed the
        time for it."""
        await self._engines.settled()

    async def close(self, grace_s: float) -> None:
        """Ends all loads and engines; kills an engine that takes more than `grace_s`
        seconds."""
        self._swapper.close()
        await self._engines.close(list(self._slots), grace_s)

    def _on_end(self) -> None:
        if not self._engines.is_closing:
            self._swapper.wake()
