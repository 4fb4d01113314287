"""`/admin/cache/clear`: deletes the KV that nodes have stored."""

import asyncio

from node.protocol.lifecycle import ClearedCache
from router.api.admin.bodies import ClearCache
from router.api.admin.gate import CurrentAdmin
from router.api.admin.models import client_of, named_agent, nodes_with
from router.api.admin.views import ClearedRow
from router.core import Core
from router.errors import NoNodeReady, RouterError
from router.states import KIND_AGENT
from router.types import NodeView


async def clear_cache(admin: CurrentAdmin, body: ClearCache) -> list[ClearedRow]:
    """Deletes stored KV, in memory and on disk, of loaded models: of all or of one, on all nodes
    that can be reached or on one. A node that fails has its error in its row."""
    core = admin.core
    model = core.names.resolve(body.model) if body.model else None
    views = [named_agent(core, body.node)] if body.node else _agents(core, model)
    if not views:
        raise NoNodeReady("No node agent can be reached now; `router nodes` shows why.")
    rows = await asyncio.gather(*(_clear(core, view, model) for view in views))
    freed_bytes = sum(row.memory_bytes + row.disk_bytes for row in rows)
    done = ", ".join(row.node for row in rows if row.error is None) or "none"
    detail = f"on {done}: {freed_bytes:,} bytes"
    await admin.note("cache.clear", model or "all models", detail)
    return list(rows)


def _agents(core: Core, model: str | None) -> list[NodeView]:
    """Lists the agents that can be reached, and that have the model if one is named."""
    views = core.fleet.snapshot if model is None else nodes_with(core, model)
    return [view for view in views if view.reachable and view.kind == KIND_AGENT]


async def _clear(core: Core, view: NodeView, model: str | None) -> ClearedRow:
    cleared, error = ClearedCache((), 0, 0), None
    try:
        cleared = await client_of(core, view).control.clear_cache(model)
    except RouterError as failure:
        error = failure.message
    return ClearedRow(
        node=view.name,
        models=cleared.models,
        memory_bytes=cleared.memory_bytes,
        disk_bytes=cleared.disk_bytes,
        skipped=cleared.skipped,
        error=error,
    )
