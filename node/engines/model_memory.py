"""The memory that a node's models occupy and need."""

from node.engines.memory_budget import Budget
from node.engines.model_catalog import ModelCatalog
from node.engines.residency_policy import ResidencyPolicy
from node.engines.sizing import Plan, Room, needed_bytes, plan_engine
from node.engines.slot import EngineKind, Slot
from node.engines.slots import Slots
from node.engines.swap_policy import AwaitedModel, LoadingModel, MemoryView
from node.errors import DoesNotFit
from node.models.store import ModelEntry
from node.protocol.messages import ModelState
from node.protocol.swap_rule import ResidentModel


class ModelMemory:
    """Derives sizes from the memory budget and the machine. It has no state of its own."""

    def __init__(
        self,
        budget: Budget,
        kind: EngineKind,
        slots: Slots,
        catalog: ModelCatalog,
        residency: ResidencyPolicy,
    ) -> None:
        self._budget = budget
        self._kind = kind
        self._slots = slots
        self._catalog = catalog
        self._residency = residency

    def plan(self, entry: ModelEntry) -> Plan:
        """Returns the sizes of an engine that is to be loaded."""
        return plan_engine(entry, self._room(entry), self._kind.settings)

    def refusal(self, entry: ModelEntry) -> DoesNotFit:
        """Returns the error for a model that does not fit."""
        return self._budget.refusal(entry.name, self._needed_bytes(entry))

    def size_bytes(self, entry: ModelEntry, slot: Slot) -> int:
        """Returns the bytes that the model occupies, or would occupy if it were loaded."""
        if slot.handle is None and slot.state is not ModelState.LOADING:
            return self._needed_bytes(entry)
        return self._budget.kept_bytes(slot.entry.name)

    def view(self, now_s: float) -> MemoryView:
        """Returns the state of memory for the swap policy."""
        residents: list[ResidentModel] = []
        loading: list[LoadingModel] = []
        awaited: list[AwaitedModel] = []
        unloading_bytes = 0
        for slot in self._slots:
            name, use = slot.entry.name, slot.use
            kept_bytes = self._budget.kept_bytes(name)
            pinned = self._residency.of(name).pinned
            if slot.is_unloading:
                unloading_bytes += kept_bytes
            elif slot.state is ModelState.READY:
                evictable_s = slot.ready_s + self._kind.settings.min_residency_s
                cost_s = slot.unload_cost_s(now_s)
                residents.append(
                    ResidentModel(name, kept_bytes, use.leases, evictable_s, cost_s, pinned)
                )
            elif slot.state is ModelState.LOADING:
                abandoned_s = None if pinned else use.abandoned_s
                loading.append(LoadingModel(name, kept_bytes, abandoned_s))
            elif use.waiting and not kept_bytes and slot.loads.retry_at_s <= now_s:
                since_s = use.oldest_wait_s
                awaited.append(AwaitedModel(name, self._needed_bytes(slot.entry), since_s))
        return MemoryView(self._budget.total_bytes, residents, loading, awaited, unloading_bytes)

    def _needed_bytes(self, entry: ModelEntry) -> int:
        return needed_bytes(entry, self._room(entry), self._kind.settings)

    def _room(self, entry: ModelEntry) -> Room:
        return Room(
            self._budget.room_bytes(entry.name),
            self._catalog.disk_free_bytes,
            self._kind.machine.has_gpu,
        )
