"""`/admin/models/pull`, `cancel-pull` and `remove`: models that come to nodes' disks and leave."""

from dataclasses import dataclass

import msgspec

from node.protocol.lifecycle import Peer, PullCommand
from node.protocol.messages import ModelState, NodeStatus
from router.api.admin.bodies import ModelOrder
from router.api.admin.disk_views import PullAsked, PullStarted, RemoveAsked
from router.api.admin.gate import AdminGiven
from router.api.admin.models import (
    HELD,
    chosen_node,
    client_of,
    find_status,
    holders_of,
    named_agent,
    refuse_maintenance,
)
from router.api.admin.views import OrderDone
from router.core import Core
from router.errors import (
    BadRequest,
    Conflict,
    NodeRefused,
    NodeUnreachable,
    NoNodeReady,
    UnknownModel,
)
from router.lifecycle.sources import can_reach, hidden, sources
from router.states import ACTIVE, KIND_AGENT, MAINTENANCE
from router.types import NodeView


@dataclass(frozen=True, slots=True)
class _Order:
    """What goes to the node, and where the model comes from, in words."""

    command: PullCommand
    source: str
    note: str = ""


async def pull_model(admin: AdminGiven, asked: PullAsked) -> PullStarted:
    """Begins a pull, or goes on with it; the node tells how far it is."""
    core = admin.core
    if asked.from_node:
        named_agent(core, asked.from_node)
    to = named_agent(core, asked.node) if asked.node else emptiest_node(core, asked.model)
    status = find_status(to, asked.model)
    if status is not None and status.state is not ModelState.PULLING and asked.revision is None:
        return PullStarted(model=asked.model, node=to.name, source="", since_s=status.since_unix_s)
    refuse_maintenance(to, "pulled")
    order = await _order(core, asked, to)
    begun = await client_of(core, to).pull(order.command)
    await admin.note("model.pull", asked.model, f"to {to.name}, from {order.source}")
    return PullStarted(
        model=asked.model,
        node=to.name,
        source=order.source,
        since_s=_since(begun, asked.model),
        note=order.note,
    )


async def cancel_pull(admin: AdminGiven, order: ModelOrder) -> OrderDone:
    """Ends a pull and deletes what has come."""
    core = admin.core
    views = [named_agent(core, order.node)] if order.node else _reachable(core)
    pulling = [view for view in views if _is_pulling(view, order.model)]
    if not pulling:
        where = f"to {order.node}" if order.node else "to any node that can be reached"
        raise Conflict(f"The model {order.model!r} is not being pulled {where}.", param="model")
    for view in pulling:
        await client_of(core, view).pull_cancel(order.model)
        await admin.note("model.cancel_pull", order.model, f"to {view.name}")
    return OrderDone(model=order.model, nodes=tuple(view.name for view in pulling), took_s=0.0)


async def remove_model(admin: AdminGiven, asked: RemoveAsked) -> OrderDone:
    """Deletes a model from one node's disk, whole or not; never while it is in memory."""
    view = named_agent(admin.core, asked.node)
    if not _is_pulling(view, asked.model) and view.broken(asked.model) is None:
        view = chosen_node(admin.core, asked.model, asked.node)
    status = find_status(view, asked.model)
    if status is not None and status.state in HELD:
        raise Conflict(
            f"The model {asked.model!r} is in memory on {view.name}; "
            f"`router unload {asked.model} --node {view.name}` first.",
            param="model",
        )
    await client_of(admin.core, view).remove(asked.model)
    await admin.note("model.remove", asked.model, f"from {view.name}")
    return OrderDone(model=asked.model, nodes=(view.name,), took_s=0.0)


def emptiest_node(core: Core, model: str) -> NodeView:
    """Where to pull to: where it has begun already, else the node with most free disk of those
    that do not have the model. Raises where there is none."""
    agents = _reachable(core)
    holders = {view.node_id for view in holders_of(core, model)}
    lacking = [view for view in agents if view.node_id not in holders]
    taking = [view for view in lacking if view.state == ACTIVE]
    if not agents:
        raise NoNodeReady("No node agent can be reached now; `router nodes` shows why.")
    if not lacking:
        raise Conflict(
            f"Every node that can be reached has the model {model!r} already.", param="model"
        )
    if not taking:
        raise Conflict(_none_takes(lacking, model), param="model")
    return max(taking, key=lambda view: (_is_pulling(view, model), _free_bytes(view)))


def _none_takes(lacking: list[NodeView], model: str) -> str:
    states = ", ".join(
        f"{view.name} is {'under maintenance' if view.state == MAINTENANCE else view.state}"
        for view in lacking
    )
    return (
        f"No node that can be reached and lacks the model {model!r} takes models now: {states}; "
        f"`router uncordon {lacking[0].name}` ends that."
    )


async def _order(core: Core, asked: PullAsked, to: NodeView) -> _Order:
    repo_id = asked.repo or (asked.model if "/" in asked.model and not asked.from_node else "")
    command = PullCommand(asked.model, repo_id, asked.revision, asked.hub_token.strip() or None)
    source = await _from_peer(core, asked, to, has_hub=bool(repo_id))
    if source is not None:
        peer_name, peer = source
        return _Order(msgspec.structs.replace(command, peer=peer), peer_name)
    no_way = _no_way_from(core, asked, to)
    if not repo_id and no_way:
        raise Conflict(no_way, param="node")
    if not repo_id:
        raise UnknownModel(
            f"No other node that can be reached has the model {asked.model!r}, and it is no name "
            "of the hub; say which one it is with --repo OWNER/NAME.",
            param="model",
        )
    return _Order(command, f"the hub's {repo_id}", no_way)


async def _from_peer(
    core: Core, asked: PullAsked, to: NodeView, *, has_hub: bool
) -> tuple[str, Peer] | None:
    """A node to copy from; None where the hub has to do."""
    if asked.from_node:
        source = _named_source(core, asked, to)
    else:
        found = _nearest_source(core, asked, to)
        if found is None:
            return None
        source = found
    try:
        share = await client_of(core, source).share(asked.model)
    except (NodeUnreachable, NodeRefused):
        if asked.from_node or not has_hub:
            raise
        return None
    return source.name, Peer(source.url, share)


def _named_source(core: Core, asked: PullAsked, to: NodeView) -> NodeView:
    if asked.revision is not None:
        raise BadRequest(
            "A revision is of the hub; a node has the one that it has.", param="revision"
        )
    assert asked.from_node is not None
    source = chosen_node(core, asked.model, asked.from_node)
    if not can_reach(to, source):
        raise BadRequest(_no_way(source), param="from_node")
    return source


def _no_way(source: NodeView) -> str:
    return (
        f"The router knows the node {source.name!r}, which has the model, by an address of its own "
        f"machine, {source.url}, where other nodes do not find it; add it again under its name in "
        "the network."
    )


def _no_way_from(core: Core, asked: PullAsked, to: NodeView) -> str:
    """Of a node that would be the source if others found it; empty where there is none."""
    source = hidden(core.fleet.snapshot, asked.model, to) if _may_copy(asked) else None
    return _no_way(source) if source is not None and not _sources(core, asked, to) else ""


def _may_copy(asked: PullAsked) -> bool:
    """Not where a revision is asked for, or another repository than the one that the name tells."""
    return asked.revision is None and (asked.repo or asked.model) == asked.model


def _nearest_source(core: Core, asked: PullAsked, to: NodeView) -> NodeView | None:
    """The node with fewest requests of those that have the model."""
    found = _sources(core, asked, to)
    return min(found, key=lambda view: core.traffic.in_flight(view.node_id), default=None)


def _sources(core: Core, asked: PullAsked, to: NodeView) -> list[NodeView]:
    return sources(core.fleet.snapshot, asked.model, to) if _may_copy(asked) else []


def _reachable(core: Core) -> list[NodeView]:
    return [
        view
        for view in core.fleet.snapshot
        if view.kind == KIND_AGENT and view.reachable and view.status is not None
    ]


def _is_pulling(view: NodeView, model: str) -> bool:
    status = find_status(view, model)
    return status is not None and status.state is ModelState.PULLING


def _free_bytes(view: NodeView) -> int:
    return view.status.disk_free_bytes if view.status else 0


def _since(status: NodeStatus, model: str) -> float:
    return next((each.since_unix_s for each in status.models if each.name == model), 0.0)
