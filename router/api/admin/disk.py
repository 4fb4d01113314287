"""`/admin/models/pull`, `cancel-pull` and `remove`: brings models to nodes' disks and deletes
them."""

from dataclasses import dataclass

import msgspec

from node.protocol.lifecycle import Peer, PullCommand
from node.protocol.messages import ModelState, NodeStatus
from router.api.admin.bodies import ModelOrder
from router.api.admin.disk_views import PullBody, PullStarted, RemoveBody
from router.api.admin.gate import CurrentAdmin
from router.api.admin.models import (
    chosen_node,
    client_of,
    named_agent,
    nodes_with,
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
from router.lifecycle.reconcile import READY_OR_LOADING
from router.lifecycle.sources import can_reach, sources, unreachable_source
from router.states import ACTIVE, KIND_AGENT, MAINTENANCE
from router.types import NodeView


@dataclass(frozen=True, slots=True)
class _Order:
    """The command for the node, and the model's source in words."""

    command: PullCommand
    source: str
    note: str = ""


async def pull_model(admin: CurrentAdmin, body: PullBody) -> PullStarted:
    """Starts or continues a pull; the node reports its progress."""
    core = admin.core
    if body.from_node:
        named_agent(core, body.from_node)
    to = named_agent(core, body.node) if body.node else emptiest_node(core, body.model)
    status = to.model(body.model)
    if status is not None and status.state is not ModelState.PULLING and body.revision is None:
        return PullStarted(model=body.model, node=to.name, source="", since_s=status.since_unix_s)
    refuse_maintenance(to, "pulled")
    order = await _order(core, body, to)
    begun = await client_of(core, to).control.pull(order.command)
    await admin.note("model.pull", body.model, f"to {to.name}, from {order.source}")
    return PullStarted(
        model=body.model,
        node=to.name,
        source=order.source,
        since_s=_since(begun, body.model),
        note=order.note,
    )


async def cancel_pull(admin: CurrentAdmin, order: ModelOrder) -> OrderDone:
    """Cancels a pull and deletes what has arrived."""
    core = admin.core
    views = [named_agent(core, order.node)] if order.node else _reachable(core)
    pulling = [view for view in views if _is_pulling(view, order.model)]
    if not pulling:
        where = f"to {order.node}" if order.node else "to any node that can be reached"
        raise Conflict(f"The model {order.model!r} is not being pulled {where}.", param="model")
    for view in pulling:
        await client_of(core, view).control.pull_cancel(order.model)
        await admin.note("model.cancel_pull", order.model, f"to {view.name}")
    return OrderDone(model=order.model, nodes=tuple(view.name for view in pulling), took_s=0.0)


async def remove_model(admin: CurrentAdmin, body: RemoveBody) -> OrderDone:
    """Deletes a model from one node's disk, complete or not, unless it is in memory."""
    view = named_agent(admin.core, body.node)
    if not _is_pulling(view, body.model) and view.broken(body.model) is None:
        view = chosen_node(admin.core, body.model, body.node)
    status = view.model(body.model)
    if status is not None and status.state in READY_OR_LOADING:
        raise Conflict(
            f"The model {body.model!r} is in memory on {view.name}; "
            f"`router unload {body.model} --node {view.name}` first.",
            param="model",
        )
    await client_of(admin.core, view).control.remove(body.model)
    await admin.note("model.remove", body.model, f"from {view.name}")
    return OrderDone(model=body.model, nodes=(view.name,), took_s=0.0)


def emptiest_node(core: Core, model: str) -> NodeView:
    """Returns the node to pull to: the one where the pull has begun, else the one with the most
    free disk among those without the model. Raises an error if there is none."""
    agents = _reachable(core)
    holders = {view.node_id for view in nodes_with(core, model)}
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


async def _order(core: Core, body: PullBody, to: NodeView) -> _Order:
    repo_id = body.repo or (body.model if "/" in body.model and not body.from_node else "")
    command = PullCommand(body.model, repo_id, body.revision, body.hub_token.strip() or None)
    source = await _from_peer(core, body, to, has_hub=bool(repo_id))
    if source is not None:
        peer_name, peer = source
        return _Order(msgspec.structs.replace(command, peer=peer), peer_name)
    no_way = _no_way_from(core, body, to)
    if not repo_id and no_way:
        raise Conflict(no_way, param="node")
    if not repo_id:
        raise UnknownModel(
            f"No other node that can be reached has the model {body.model!r}, and its name "
            "is not one of the hub; give its repository with --repo OWNER/NAME.",
            param="model",
        )
    return _Order(command, f"the hub's {repo_id}", no_way)


async def _from_peer(
    core: Core, body: PullBody, to: NodeView, *, has_hub: bool
) -> tuple[str, Peer] | None:
    """Returns a node to copy from; None if the hub is the source."""
    if body.from_node:
        source = _named_source(core, body, to)
    else:
        found = _nearest_source(core, body, to)
        if found is None:
            return None
        source = found
    try:
        return source.name, await client_of(core, source).as_peer(body.model)
    except (NodeUnreachable, NodeRefused):
        if body.from_node or not has_hub:
            raise
        return None


def _named_source(core: Core, body: PullBody, to: NodeView) -> NodeView:
    if body.revision is not None:
        raise BadRequest(
            "A revision is of the hub; a node has the one that it has.", param="revision"
        )
    assert body.from_node is not None
    source = chosen_node(core, body.model, body.from_node)
    if not can_reach(to, source):
        raise BadRequest(_no_way(source), param="from_node")
    return source


def _no_way(source: NodeView) -> str:
    return (
        f"The router knows the node {source.name!r}, which has the model, by an address of its own "
        f"machine, {source.url}, where other nodes do not find it; add it again under its name in "
        "the network."
    )


def _no_way_from(core: Core, body: PullBody, to: NodeView) -> str:
    """Explains why a node that has the model cannot be the source; empty if none is excluded for
    its address."""
    source = unreachable_source(core.fleet.snapshot, body.model, to) if _may_copy(body) else None
    return _no_way(source) if source is not None and not _sources(core, body, to) else ""


def _may_copy(body: PullBody) -> bool:
    """Returns False if a revision or a repository other than the model's name was requested."""
    return body.revision is None and (body.repo or body.model) == body.model


def _nearest_source(core: Core, body: PullBody, to: NodeView) -> NodeView | None:
    """Returns the node with the fewest requests among those that have the model."""
    found = _sources(core, body, to)
    return min(found, key=lambda view: core.traffic.in_flight(view.node_id), default=None)


def _sources(core: Core, body: PullBody, to: NodeView) -> list[NodeView]:
    return sources(core.fleet.snapshot, body.model, to) if _may_copy(body) else []


def _reachable(core: Core) -> list[NodeView]:
    return [
        view
        for view in core.fleet.snapshot
        if view.kind == KIND_AGENT and view.reachable and view.status is not None
    ]


def _is_pulling(view: NodeView, model: str) -> bool:
    status = view.model(model)
    return status is not None and status.state is ModelState.PULLING


def _free_bytes(view: NodeView) -> int:
    return view.status.disk_free_bytes if view.status else 0


def _since(status: NodeStatus, model: str) -> float:
    return next((each.since_unix_s for each in status.models if each.name == model), 0.0)
