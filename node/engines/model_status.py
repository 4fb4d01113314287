"""The status of a model, as routers receive it."""

from dataclasses import dataclass

from node.engines.cache_events import cache_status
from node.engines.memory_budget import Budget
from node.engines.residency_policy import Residency
from node.engines.slot import Slot
from node.models.store import ModelEntry
from node.protocol.messages import ModelState, ModelStatus


@dataclass(frozen=True, slots=True)
class PlannedSizes:
    """Memory that a model needs and requests that it serves at once, unless its engine reports
    others."""

    memory_bytes: int
    max_rows: int


def model_status(
    entry: ModelEntry,
    slot: Slot,
    budget: Budget,
    residency: Residency,
    sizes: PlannedSizes,
    now_s: float,
) -> ModelStatus:
    """Returns the model's status as routers receive it."""
    handle, loads = slot.handle, slot.loads
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
        retry_after_s=max(0.0, loads.retry_at_s - now_s) if is_failed else 0.0,
        progress=slot.progress if is_loading else None,
        generation=loads.generation,
        leases=slot.use.leases + slot.use.waiting,
        idle_s=slot.idle_s(now_s),
        work_tokens=0 if handle is None else handle.link.work_tokens,
        prefilled_tokens=None if handle is None else handle.link.prefilled_tokens,
        decoded_tokens=None if handle is None else handle.link.decoded_tokens,
        pinned=residency.pinned,
        keep_alive_s=residency.keep_alive_s,
        disk_bytes=entry.disk_bytes,
        memory_bytes=sizes.memory_bytes,
        load_s=loads.load_s,
        unload_cost_s=slot.unload_cost_s(now_s) if slot.state is ModelState.READY else 0.0,
        speed=slot.speed,
        family=entry.facts.family,
        parameters=entry.facts.parameters,
        quantization=entry.facts.quantization,
        capabilities=entry.capabilities,
        tool_parser=entry.formats.tool_calls,
        reasoning_parser=entry.formats.reasoning,
        cache=None
        if handle is None
        else cache_status(budget.lease(handle.entry.name), handle.info, handle.link.stats),
    )
