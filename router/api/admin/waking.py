"""`/admin/nodes/wake` and `/admin/nodes/waking`: nodes that sleep."""

from registry import nodes
from router.api.admin.bodies import SetWaking, WakeOrder
from router.api.admin.gate import CurrentAdmin
from router.api.admin.nodes import node_row
from router.api.admin.views import NodeRow
from router.errors import BadRequest, Conflict
from router.upstream.magic_packet import read_mac


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
