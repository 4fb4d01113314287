"""`/admin/models`: lists models on nodes, and loads and unloads them."""

import difflib
import time
from collections import defaultdict
from collections.abc import Collection
from operator import attrgetter

from node.protocol.messages import BrokenModel, ModelState, ModelStatus
from registry import residency
from registry.records import ResidencyRecord
from router.api.admin.bodies import ModelOrder
from router.api.admin.gate import Admin, CurrentAdmin
from router.api.admin.views import ModelPlace, ModelRow, OrderDone
from router.core import Core
from router.errors import (
    BadRequest,
    Conflict,
    ModelBroken,
    NodeRefused,
    NodeUnreachable,
    NoNodeReady,
    NotFound,
    RouterError,
    UnknownModel,
)
from router.lifecycle.reconcile import READY_OR_LOADING, load_rank
from router.lifecycle.sources import has_whole
from router.scheduler.residency import no_room
from router.states import ACTIVE, BROKEN, KIND_AGENT, MAINTENANCE, OUT_OF_SERVICE
from router.types import NodeView
from router.upstream.node_client import NodeClient


async def list_models(admin: CurrentAdmin) -> list[ModelRow]:
    """Lists one row per model; for a node without a status, the models from the registry."""
    async with admin.core.registry.read() as session:
        remembered = await residency.list_all(session)
    return model_rows(admin.core, remembered)


async def load_model(admin: CurrentAdmin, order: ModelOrder) -> OrderDone:
    """Loads a model and responds once it is in memory."""
    core = admin.core
    model = core.names.resolve(order.model)
    view = chosen_node(core, model, order.node) if order.node else node_for_load(core, model)
    refuse_maintenance(view, "loaded")
    started_s = time.monotonic()
    await client_of(core, view).control.load(model)
    await admin.note("model.load", model, f"on {view.name}")
    return OrderDone(model=model, nodes=(view.name,), took_s=time.monotonic() - started_s)


def refuse_maintenance(view: NodeView, done: str) -> None:
    """Raises `Conflict` if the node is under maintenance; `done` names the refused action."""
    if view.state == MAINTENANCE:
        raise Conflict(
            f"The node {view.name!r} is under maintenance, so that nothing is {done} there; "
            f"`router maintenance {view.name} --off` ends it.",
            param="node",
        )


async def unload_model(admin: CurrentAdmin, order: ModelOrder) -> OrderDone:
    """Unloads a model from one node, or from all."""
    core = admin.core
    model = core.names.resolve(order.model)
    views = [chosen_node(core, model, order.node)] if order.node else nodes_with(core, model)
    holders = _holders(views, model)
    if not holders:
        where = f"on {order.node}" if order.node else "on any node that can be reached"
        raise Conflict(f"The model {model!r} is not loaded {where}.", param="model")
    _check_pins(core, model, holders)
    started_s = time.monotonic()
    done = await _unload_each(admin, model, holders)
    return OrderDone(model=model, nodes=tuple(done), took_s=time.monotonic() - started_s)


def holders_of(core: Core, model: str) -> list[NodeView]:
    """Lists the reachable agents that have the model loaded, or load it."""
    return _holders(nodes_with(core, model), model)


def _holders(views: list[NodeView], model: str) -> list[NodeView]:
    return [view for view in views if _status(view, model).state in READY_OR_LOADING]


def _check_pins(core: Core, model: str, views: list[NodeView]) -> None:
    """Raises `Conflict` for a pinned model, which would be loaded again at once."""
    for view in views:
        how = _pinned_by(core, model, view)
        if how:
            raise Conflict(f"The model {model!r} is pinned on {view.name}{how}", param="model")


def _pinned_by(core: Core, model: str, view: NodeView) -> str:
    """Describes what pins the model and how to undo it; empty if it is not pinned."""
    for node_id in (view.node_id, ""):
        if core.lifecycle.policies.get(model, node_id).pinned:
            where = f" --node {view.name}" if node_id else ""
            return f"; `router unpin {model}{where}` first."
    schedule_id = core.lifecycle.keeping(model, view.node_id)
    if schedule_id is not None:
        return (
            f" by the schedule {schedule_id} until its unload; "
            f"`router schedule rm {schedule_id}` ends that."
        )
    if _status(view, model).pinned:
        return (
            ", not by this router: by the node's own settings (`node-agent serve --pin`) or by "
            "another router."
        )
    return ""


def node_for_load(core: Core, model: str) -> NodeView:
    """Returns the node for an admin's load that names none: the best one by `load_rank` that
    accepts requests."""
    holders = nodes_with(core, model)
    views = [view for view in holders if view.state == ACTIVE]
    if not views:
        out_of_service = [f"{view.name} is {OUT_OF_SERVICE[view.state]}" for view in holders]
        why = "; ".join(out_of_service) or "`router nodes` shows why"
        raise NoNodeReady(
            f"No node agent that has the model {model!r} can be reached and takes requests now: "
            f"{why}.",
            param="model",
        )
    return max(views, key=lambda view: load_rank(view, model))


def chosen_node(core: Core, model: str, name: str) -> NodeView:
    """Returns the node that the admin named. Raises an error unless it can load and unload the
    model at this time."""
    view = named_agent(core, name)
    status = view.model(model)
    if reason := view.broken(model):
        raise ModelBroken(f"{model!r} cannot be served on {name}: {reason}", param="model")
    if status is None:
        raise UnknownModel(f"The node {name!r} does not have the model {model!r}.", param="model")
    if status.state is ModelState.PULLING:
        raise Conflict(f"The model {model!r} is not complete on {name!r} yet.", param="model")
    return view


def named_agent(core: Core, name: str) -> NodeView:
    """Returns the node agent that the admin named. Raises an error unless it is reachable."""
    view = core.fleet.by_name(name)
    if view is None:
        names = [node.name for node in core.fleet.snapshot]
        near = difflib.get_close_matches(name, names, n=3)
        hint = f" Did you mean {', '.join(near)}?" if near else " `router nodes` lists them."
        raise NotFound(f"There is no node {name!r}.{hint}", param="node")
    if view.kind != KIND_AGENT:
        raise BadRequest(
            f"The node {name!r} is not a node agent; it manages its models itself.",
            param="node",
        )
    if not view.reachable or view.status is None:
        raise NodeUnreachable(f"The node {name!r} cannot be reached: {view.error}")
    return view


def model_rows(core: Core, remembered: list[ResidencyRecord]) -> list[ModelRow]:
    places: dict[str, list[ModelPlace]] = defaultdict(list)
    failing = {(each.node_id, each.model) for each in core.traffic.breakers()}
    for view in core.fleet.snapshot:
        for name, place in _places(view, remembered, failing):
            places[name].append(place)
    aliases: dict[str, list[str]] = defaultdict(list)
    for alias in sorted(core.names.aliases, key=attrgetter("name")):
        for target in core.names.route_of(alias).targets:
            aliases[target.model].append(alias.name)
    return [_row(name, aliases[name], places[name]) for name in sorted(places)]


def _row(name: str, aliases: list[str], places: list[ModelPlace]) -> ModelRow:
    contexts = [place.context_tokens for place in places if place.context_tokens is not None]
    return ModelRow(
        name=name,
        aliases=tuple(aliases),
        weight_bytes=max(place.weight_bytes for place in places),
        context_tokens=max(contexts, default=None),
        active_requests=sum(place.active_requests for place in places),
        nodes=tuple(sorted(places, key=lambda place: place.node)),
    )


def _places(
    view: NodeView, remembered: list[ResidencyRecord], failing: Collection[tuple[str, str]]
) -> list[tuple[str, ModelPlace]]:
    if view.status is None:
        return [
            (row.model, _remembered_place(view, row))
            for row in remembered
            if row.node_id == view.node_id
        ]
    free = view.status.disk_free_bytes
    whole = [
        (model.name, _place(view, model, free, failing=(view.node_id, model.name) in failing))
        for model in view.status.models
    ]
    return [*whole, *((each.name, _broken_place(view, each)) for each in view.status.broken)]


def _place(
    view: NodeView, model: ModelStatus, node_free_bytes: int, *, failing: bool
) -> ModelPlace:
    return ModelPlace(
        node=view.name,
        reachable=view.reachable,
        state=model.state.value,
        weight_bytes=model.weight_bytes,
        context_tokens=model.context_tokens,
        active_requests=model.active_requests,
        since_s=model.since_unix_s,
        reason=model.reason,
        progress=model.progress,
        pinned=model.pinned,
        keep_alive_s=_keep_alive_s(view, model),
        idle_s=_idle_s(view, model),
        paid=view.is_paid,
        failing=failing or model.name in view.stalled,
        disk_bytes=model.disk_bytes,
        node_free_bytes=node_free_bytes,
        no_room=(no_room(view.status, model) or None) if view.status else None,
        node_state=view.state,
    )


def _keep_alive_s(view: NodeView, model: ModelStatus) -> float | None:
    if view.kind != KIND_AGENT or model.state is not ModelState.READY:
        return None
    return model.keep_alive_s or 0.0


def _idle_s(view: NodeView, model: ModelStatus) -> float | None:
    """Seconds since its last request ended; None if unknown."""
    if model.idle_s is None or not view.reachable:
        return None
    return model.idle_s + max(0.0, time.monotonic() - view.status_at_s)


def _broken_place(view: NodeView, model: BrokenModel) -> ModelPlace:
    return ModelPlace(
        node=view.name,
        reachable=view.reachable,
        state=BROKEN,
        weight_bytes=0,
        context_tokens=None,
        active_requests=0,
        since_s=0.0,
        reason=model.reason,
        paid=view.is_paid,
        node_state=view.state,
    )


def _remembered_place(view: NodeView, row: ResidencyRecord) -> ModelPlace:
    return ModelPlace(
        node=view.name,
        reachable=view.reachable,
        state=row.state,
        weight_bytes=row.weight_bytes,
        context_tokens=None,
        active_requests=0,
        since_s=row.since_s,
        reason=None,
        paid=view.is_paid,
        node_state=view.state,
    )


def nodes_with(core: Core, model: str) -> list[NodeView]:
    """Lists the reachable agents that have the whole model on disk."""
    return [view for view in core.fleet.snapshot if has_whole(view, model)]


def _status(view: NodeView, model: str) -> ModelStatus:
    status = view.model(model)
    assert status is not None
    return status


def client_of(core: Core, view: NodeView) -> NodeClient:
    client = core.watcher.client(view.node_id)
    if client is None:
        raise NodeUnreachable(f"The node {view.name!r} has just been removed.")
    return client


async def _unload_each(admin: Admin, model: str, views: list[NodeView]) -> list[str]:
    """Unloads on every node, and raises the errors of those that refused at the end."""
    done: list[str] = []
    refused: list[str] = []
    for view in views:
        try:
            await client_of(admin.core, view).control.unload(model)
        except RouterError as error:
            refused.append(f"{view.name}: {error.message}")
            continue
        await admin.note("model.unload", model, f"on {view.name}")
        done.append(view.name)
    if refused:
        unloaded = f" Unloaded on {', '.join(done)}." if done else ""
        raise NodeRefused(" ".join(refused) + unloaded)
    return done
