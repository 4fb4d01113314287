"""`/admin/status`, the fleet at one moment, and `/admin/check`, the router itself."""

import time
from dataclasses import asdict

from node.protocol.messages import IN_MEMORY, ModelState, ModelStatus
from node.protocol.versions import SPOKEN
from registry import keys
from router import own_checks
from router.api.admin.gate import CurrentAdmin
from router.api.admin.nodes import list_nodes
from router.api.admin.report_views import FailedModelRow, LoadedRow, QueueRow, StatusRow
from router.api.admin.reports import show_registry
from router.api.admin.views import OwnCheckRow
from router.core import Core
from router.states import KIND_AGENT
from router.types import NodeView
from serving.installer import own_installer
from serving.version import own_version


async def show_status(admin: CurrentAdmin) -> StatusRow:
    """The fleet at one moment: nodes, loaded models, requests, tokens per second and the queue."""
    core = admin.core
    rows = await list_nodes(admin)
    views = sorted(core.fleet.snapshot, key=lambda view: view.name)
    loaded = [row for view in views for row in _loaded(core, view)]
    return StatusRow(
        version=own_version(),
        protocol=SPOKEN.newest,
        oldest_protocol=SPOKEN.oldest,
        installed_by=own_installer(),
        nodes=tuple(sorted(rows, key=lambda row: row.name)),
        loaded=tuple(loaded),
        queue=_queue(core),
        failed=tuple(row for view in views for row in _failed(view)),
        known_models=len(core.fleet.models | core.fleet.paid_models),
        in_flight=sum(row.in_flight for row in rows),
        decode_tokens_per_s=sum(row.decode_tokens_per_s or 0.0 for row in loaded),
        prefill_tokens_per_s=sum(row.prefill_tokens_per_s or 0.0 for row in loaded),
        registry=await show_registry(admin),
    )


def _loaded(core: Core, view: NodeView) -> list[LoadedRow]:
    # A server of kind openai does not say which of its models are in memory.
    if view.status is None or not view.reachable or view.kind != KIND_AGENT:
        return []
    found = [model for model in view.status.models if model.state in IN_MEMORY]
    return [_row(core, view, model) for model in sorted(found, key=lambda model: model.name)]


def _row(core: Core, view: NodeView, model: ModelStatus) -> LoadedRow:
    rates = core.rates.of(view.node_id, model.name)
    stored_bytes = model.cache.memory_used_bytes if model.cache else 0
    return LoadedRow(
        model=model.name,
        node=view.name,
        state=model.state.value,
        progress=model.progress,
        running=model.active_requests,
        waiting=max(0, model.leases - model.active_requests),
        max_rows=model.max_rows,
        decode_tokens_per_s=rates.decode if rates else None,
        prefill_tokens_per_s=rates.prefill if rates else None,
        memory_bytes=model.weight_bytes + stored_bytes,
        context_tokens=model.context_tokens,
        pinned=model.pinned,
        keep_alive_s=(model.keep_alive_s or 0.0) if model.state is ModelState.READY else None,
        unload_in_s=_unload_in_s(view, model),
    )


def _unload_in_s(view: NodeView, model: ModelStatus) -> float | None:
    if model.pinned or not model.keep_alive_s or model.idle_s is None:
        return None
    idle_s = model.idle_s + max(0.0, time.monotonic() - view.status_at_s)
    return max(0.0, model.keep_alive_s - idle_s)


def _queue(core: Core) -> tuple[QueueRow, ...]:
    oldest = core.traffic.oldest_waits()
    lengths = sorted(core.traffic.queue_lengths())
    return tuple(
        QueueRow(model=model, priority=priority, waiting=int(waiting), oldest_s=oldest[labels])
        for labels, waiting in lengths
        for model, priority in [labels]
    )


def _failed(view: NodeView) -> list[FailedModelRow]:
    if view.status is None or not view.reachable:
        return []
    return [
        FailedModelRow(model=model.name, node=view.name, reason=model.reason or "")
        for model in view.status.models
        if model.state is ModelState.FAILED
    ]


async def check_itself(admin: CurrentAdmin) -> list[OwnCheckRow]:
    """Checks the router's registry, disk, open files, certificate and keys, and says what to do."""
    registry, settings = admin.core.registry, admin.core.settings.current
    async with registry.read() as session:
        known = await keys.list_all(session)
    found = [
        await own_checks.check_registry(registry.path, registry.trouble.sentence),
        own_checks.check_disk(registry.path),
        own_checks.check_open_files(),
        *own_checks.check_certificate(settings),
        own_checks.check_keys(known, time.time()),
    ]
    return [OwnCheckRow(**asdict(each)) for each in found]
