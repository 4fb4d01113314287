"""Leases on models: requests wait for their model's engine, which then runs until they end."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from node.engines.model_memory import ModelMemory
from node.engines.processes import EngineProcesses
from node.engines.slot import EngineHandle, Slot
from node.engines.swapper import Swapper
from node.errors import MemoryShort, ShuttingDown
from node.ipc.messages import Pressure
from node.protocol.messages import ModelState

ANOTHER_IN_USE = "another model is in use"
BEING_UNLOADED = "it is being unloaded"


@dataclass(frozen=True, slots=True)
class ModelAwaited:
    """A request waits for its model."""

    name: str
    progress: float
    """Fraction of the load that is done, from 0 to 1."""
    blocked_by: str | None = None
    """Reason, in words, why its load has not begun."""


class Leasing:
    """Waits for engines, and counts the leases on them."""

    def __init__(self, engines: EngineProcesses, swapper: Swapper, memory: ModelMemory) -> None:
        self._engines = engines
        self._swapper = swapper
        self._memory = memory

    @contextmanager
    def serving(self, slot: Slot, name: str) -> Iterator["Lease"]:
        """Provides a lease for one request, which knows the model by that name."""
        lease = Lease(self, slot, name)
        try:
            yield lease
        finally:
            lease.close()

    async def ensure_ready(self, slot: Slot, *, ahead: bool) -> EngineHandle:
        """Returns the engine once it is ready. All waiting requests share one load, which is
        cancelled soon after the last of them disconnects."""
        if (handle := self._serving(slot)) is not None:
            return handle
        now_s = self._engines.now_s()
        if self._engines.pressure is Pressure.HARD:
            raise MemoryShort
        if slot.state is ModelState.FAILED and now_s < slot.loads.retry_at_s:
            raise slot.failure(now_s)
        with self._swapper.waiting(slot, ahead=ahead):
            self._swapper.decide()
            failures = slot.loads.failures
            while (handle := self._serving(slot)) is None:
                self._check_wait(slot, failures)
                await self._swapper.changed()
            return handle

    def awaited(self, slot: Slot, name: str) -> ModelAwaited | None:
        """Returns what a request for the model of that name waits for; None if it is ready."""
        if self._serving(slot) is not None:
            return None
        blocked_by = ANOTHER_IN_USE if self._swapper.is_blocked(slot.entry.name) else None
        if slot.is_unloading:
            blocked_by = BEING_UNLOADED
        progress = slot.progress if slot.state is ModelState.LOADING else 0.0
        return ModelAwaited(name, progress, blocked_by)

    def end(self, slot: Slot) -> None:
        """Ends a lease on the slot."""
        if slot.use.end_lease(self._engines.now_s()):
            self._swapper.decide_soon()

    def _check_wait(self, slot: Slot, failures: int) -> None:
        """Raises the error that ends the wait for a model, if there is one. `failures` is the
        number of failed loads when the wait began."""
        if self._engines.is_closing:
            raise ShuttingDown
        if self._engines.pressure is Pressure.HARD and slot.state is not ModelState.LOADING:
            raise MemoryShort
        if slot.loads.failures != failures:
            raise slot.failure(self._engines.now_s())
        if self._swapper.never_fits(slot.entry.name):
            raise self._memory.refusal(slot.entry)

    def _serving(self, slot: Slot) -> EngineHandle | None:
        is_open = slot.state is ModelState.READY and not self._swapper.is_closed(slot.entry.name)
        return slot.handle if is_open and not self._engines.is_closing else None


class Lease:
    """A request's lease on a model: until it is closed, the engine is not stopped."""

    def __init__(self, leasing: Leasing, slot: Slot, name: str) -> None:
        self._leasing = leasing
        self._slot = slot
        self._name = name
        self._is_counted = False

    async def ready(self, *, ahead: bool = False) -> EngineHandle:
        """Returns the engine, and loads it first if needed. `ahead` means that no request waits for
        the load. Raises `LoadFailure`, `DoesNotFit`, `MemoryShort` or `ShuttingDown`."""
        handle = await self._leasing.ensure_ready(self._slot, ahead=ahead)
        # No await since the state was seen as ready: nothing can have stopped the engine.
        if not self._is_counted:
            self._is_counted = True
            self._slot.use.lease()
        return handle

    def awaited(self) -> ModelAwaited | None:
        """Returns what the request waits for; None once its engine is ready."""
        return None if self._is_counted else self._leasing.awaited(self._slot, self._name)

    def close(self) -> None:
        if self._is_counted:
            self._is_counted = False
            self._leasing.end(self._slot)
