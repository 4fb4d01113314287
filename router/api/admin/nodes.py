"""`/admin/nodes`: lists, removes, cordons, wakes and checks nodes."""

import logging
import time
from collections.abc import Collection, Sequence
from dataclasses import asdict

from msgspec import structs

from node.protocol.messages import MemoryPressure
from registry import nodes
from registry.records import NodeRecord
from router.api.admin.bodies import AcceptModels, NodeNamed, NodeOrder, SetWaking, WakeOrder
from router.api.admin.gate import CurrentAdmin
from router.api.admin.views import (
    BreakerRow,
    NodeCheckRow,
    NodeModel,
    NodePressure,
    NodePrices,
    NodeRow,
)
from router.core import Core
from router.errors import BadRequest, Conflict, RouterError
from router.fleet import checkup
from router.scheduler.residency import fits
from router.states import ACTIVE, KIND_OPENAI
from router.upstream.credentials import NodeCredential
from router.upstream.magic_packet import read_mac

log = logging.getLogger("mlx_fleet.nodes")


async def list_nodes(admin: CurrentAdmin) -> list[NodeRow]:
    """Lists the nodes and what is known of them."""
    async with admin.core.registry.read() as session:
        records = await nodes.list_all(session)
    return [node_row(admin.core, record) for record in records]


async def remove_node(admin: CurrentAdmin, name: str) -> NodeRow:
    """Stops sending requests to the node and removes it."""
    record = await admin.change(
        "node.remove", name, "", lambda session: nodes.remove(session, name)
    )
    row = node_row(admin.core, record)
    await admin.core.lifecycle.actions.withdraw_policies(record.id)
    await _leave(admin.core, record, reachable=row.reachable)
    await admin.core.watcher.unwatch(record.id)
    admin.core.dispatcher.forget_node(record.id)
    admin.core.waker.forget(record.id)
    admin.core.lifecycle.forget_node(record.id)
    return row


async def _leave(core: Core, record: NodeRecord, *, reachable: bool) -> None:
    """Makes the agent forget this router, if it can be reached."""
    client = core.watcher.client(record.id)
    if client is None or not reachable or not NodeCredential.from_text(record.credential).is_paired:
        return
    try:
        await client.control.leave()
    except RouterError as error:
        log.warning("node %s keeps its pairing with this router: %s", record.name, error.message)


async def check_nodes(admin: CurrentAdmin) -> list[NodeCheckRow]:
    """Contacts every node and reports what is wrong with it."""
    async with admin.core.registry.read() as session:
        records = await nodes.list_all(session)
    return [NodeCheckRow(**asdict(found)) for found in await checkup.check_nodes(records)]


async def set_state(admin: CurrentAdmin, order: NodeOrder) -> NodeRow:
    """Cordons a node, puts it under maintenance, or makes it active again."""
    record = await admin.change(
        f"node.{order.state}",
        order.node,
        "",
        lambda session: nodes.set_state(session, order.node, order.state),
    )
    admin.core.fleet.set_state(record.id, record.state)
    return node_row(admin.core, record)


async def accept_models(admin: CurrentAdmin, body: AcceptModels) -> NodeRow:
    """Allows requests for these models to go to the server that lists them."""
    core = admin.core
    async with core.registry.read() as session:
        record = await nodes.get(session, body.node)
    if record.kind != KIND_OPENAI:
        raise BadRequest(
            f"{record.name} is a node agent, all of whose models are served.", param="node"
        )
    view = core.fleet.node(record.id)
    waiting = view.unaccepted if view else ()
    refuse_unlisted(body.models, {*waiting, *(record.accepted or ())})
    record = await admin.change(
        "node.accept",
        record.name,
        ", ".join(body.models),
        lambda session: nodes.accept(session, record.name, body.models),
    )
    core.watcher.accept(record)
    return node_row(core, record)


async def cut_requests(admin: CurrentAdmin, named: NodeNamed) -> NodeRow:
    """Ends this router's requests on a cordoned node: those without content go to another node, the
    others end with an error."""
    core = admin.core
    async with core.registry.read() as session:
        record = await nodes.get(session, named.node)
    if record.state == ACTIVE:
        raise Conflict(
            f"The node {record.name!r} takes requests; `router cordon {record.name}` first.",
            param="node",
        )
    row = node_row(core, record)
    client = core.watcher.client(record.id)
    if client is not None:
        client.cut_all()
    await admin.note("node.cut", record.name, f"{row.in_flight} in flight")
    return row


def mac_of(text: str | None, param: str) -> str | None:
    """A MAC address that an admin has given. Raises `BadRequest`."""
    if text is None:
        return None
    mac = read_mac(text)
    if mac is None:
        raise BadRequest(
            f"{text!r} is not a MAC address; one looks like a0:b1:c2:d3:e4:f5.", param=param
        )
    return mac


async def wake_node(admin: CurrentAdmin, body: WakeOrder) -> NodeRow:
    """Sends magic packets to a node that sleeps, until it responds or a minute is over; returns at
    once."""
    core = admin.core
    async with core.registry.read() as session:
        record = await nodes.get(session, body.node)
    if not core.waker.wake(record.id):
        raise Conflict(
            f"The MAC address of {record.name} is not known: its agent reports it once it is "
            f"connected, or `router wake {record.name} --mac MAC` sets it.",
            param="node",
        )
    await admin.note("node.wake", record.name, ", ".join(core.waker.macs(record.id)))
    return node_row(core, record)


async def set_waking(admin: CurrentAdmin, body: SetWaking) -> NodeRow:
    """Sets the MAC address of a node, and whether requests may wake it."""
    core, mac = admin.core, mac_of(body.mac, "mac")
    detail = " ".join(
        (
            *([f"mac {mac}"] if mac is not None else []),
            *([f"requests {'may' if body.wakes else 'may not'}"] if body.wakes is not None else []),
        )
    )
    record = await admin.change(
        "node.waking",
        body.node,
        detail,
        lambda session: nodes.set_waking(session, body.node, mac=mac, wakes=body.wakes),
    )
    core.waker.follow(record)
    return node_row(core, record)


def _pressure(reported: MemoryPressure | None) -> NodePressure | None:
    return (
        None
        if reported is None
        else NodePressure(**structs.asdict(reported), effect=reported.effect)
    )


def node_row(core: Core, record: NodeRecord) -> NodeRow:
    view = core.fleet.node(record.id)
    status = view.status if view else None
    there = frozenset(model.name for model in status.models) if status else frozenset[str]()
    return NodeRow(
        id=record.id,
        name=record.name,
        url=record.url,
        kind=record.kind,
        created_at_s=record.created_at_s,
        reachable=view is not None and view.reachable,
        error=view.error if view else "The node is not watched.",
        status_age_s=max(0.0, time.monotonic() - view.status_at_s)
        if view and view.status_at_s
        else None,
        version=status.version if status else None,
        protocol=status.protocol if status else None,
        installed_by=status.installed_by if status else "",
        instance_id=status.instance_id if status else None,
        engine=status.engine if status else None,
        chip=status.chip if status else None,
        memory_budget_bytes=status.memory_budget_bytes if status else None,
        memory_leased_bytes=status.memory_leased_bytes if status else None,
        in_flight=core.traffic.in_flight(record.id),
        leases=sum(model.leases for model in status.models) if status else 0,
        state=record.state,
        max_rows=record.max_rows,
        breakers=_breaker_rows(core, record.id, there),
        unaccepted=view.unaccepted if view else (),
        stalled=tuple(sorted(view.stalled & there)) if view else (),
        too_large=tuple(each.name for each in status.models if not fits(status, each))
        if status
        else (),
        pressure=_pressure(status.pressure) if status else None,
        broken=tuple(each.name for each in status.broken) if status else (),
        prices=NodePrices(**record.prices) if record.prices is not None else None,
        macs=core.waker.macs(record.id),
        wakes=record.wakes,
        is_waking=core.waker.is_waking(record.id),
        models=tuple(
            NodeModel(name=model.name, state=model.state.value)
            for model in (status.models if status else ())
        ),
    )


def _breaker_rows(core: Core, node_id: str, there: frozenset[str]) -> tuple[BreakerRow, ...]:
    """Returns the breakers of models that are still on the node."""
    return tuple(
        BreakerRow(
            model=each.model,
            state=each.state.value,
            failures=each.failures,
            outcomes=each.outcomes,
        )
        for each in core.traffic.breakers()
        if each.node_id == node_id and each.model in there
    )


def refuse_unlisted(models: Sequence[str], listed: Collection[str]) -> None:
    for model in models:
        if model not in listed:
            raise BadRequest(
                f"The server does not list {model!r}; it lists {', '.join(listed) or 'none'}.",
                param="models",
            )
