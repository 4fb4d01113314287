"""Registered nodes; an id, a name and a URL each belong to one node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from sqlalchemy import RowMapping, delete, insert, or_, select, update

from registry.db import ReadSession, WriteSession
from registry.errors import Conflict, NotFound
from registry.records import NodeRecord
from registry.tables import nodes, policies, schedules

_LISTS = ("accepted", "macs")
"""Columns that are lists in JSON, and tuples in a record."""


async def add(session: WriteSession, record: NodeRecord) -> NodeRecord:
    """Register a node; a taken id, name or url is a Conflict that says which."""
    # Nothing can be written between this check and the insert: the transaction is the only writer.
    clash = or_(nodes.c.id == record.id, nodes.c.name == record.name, nodes.c.url == record.url)
    taken = [_record(row) for row in await session.fetch_all(select(nodes).where(clash))]
    for field in ("name", "url", "id"):
        if any(getattr(node, field) == getattr(record, field) for node in taken):
            raise Conflict(f"node {field}", getattr(record, field))
    values = {name: value for name, value in asdict(record).items() if value is not None}
    for name in _LISTS:
        if (given := getattr(record, name)) is not None:
            values[name] = list(given)
    await session.execute(insert(nodes).values(values))
    return record


async def remove(session: WriteSession, name: str) -> NodeRecord:
    """Forget a node, its residency, policies and schedules; its usage stays. Raises NotFound."""
    record = await get(session, name)
    for table in (policies, schedules):
        await session.execute(delete(table).where(table.c.node_id == record.id))
    await session.execute(delete(nodes).where(nodes.c.id == record.id))
    return record


async def set_state(session: WriteSession, name: str, state: str) -> NodeRecord:
    """Set the state that an admin wants for the node. Raises NotFound."""
    changed = update(nodes).where(nodes.c.name == name).values(state=state).returning(nodes)
    row = await session.fetch_one(changed)
    if row is None:
        raise NotFound("node", name)
    return _record(row)


async def set_access(
    session: WriteSession, name: str, *, credential: str | None = None, url: str | None = None
) -> NodeRecord:
    """Replace the node's credential or its url. Raises NotFound, and Conflict for a taken url."""
    if url is not None:
        taken = await session.fetch_one(
            select(nodes).where(nodes.c.url == url, nodes.c.name != name)
        )
        if taken is not None:
            raise Conflict("node url", url)
    given = {"credential": credential, "url": url}
    values = {column: value for column, value in given.items() if value is not None}
    changed = update(nodes).where(nodes.c.name == name).values(values).returning(nodes)
    row = await session.fetch_one(changed)
    if row is None:
        raise NotFound("node", name)
    return _record(row)


async def accept(session: WriteSession, name: str, models: Sequence[str]) -> NodeRecord:
    """Add models to those that the node's server may serve. Raises NotFound."""
    record = await get(session, name)
    accepted = list(dict.fromkeys([*(record.accepted or ()), *models]))
    changed = update(nodes).where(nodes.c.name == name).values(accepted=accepted).returning(nodes)
    row = await session.fetch_one(changed)
    assert row is not None
    return _record(row)


async def set_waking(
    session: WriteSession, name: str, *, mac: str | None = None, wakes: bool | None = None
) -> NodeRecord:
    """Set the MAC address at which the node is woken, and whether requests wake it; None leaves
    either as it is. Raises NotFound."""
    record = await get(session, name)
    values = {
        "wake_mac": record.wake_mac if mac is None else mac,
        "wakes": record.wakes if wakes is None else wakes,
    }
    changed = update(nodes).where(nodes.c.name == name).values(values).returning(nodes)
    row = await session.fetch_one(changed)
    assert row is not None
    return _record(row)


async def set_macs(session: WriteSession, node_id: str, macs: Sequence[str]) -> None:
    """Keep the MAC addresses that the node's agent reports."""
    await session.execute(update(nodes).where(nodes.c.id == node_id).values(macs=list(macs)))


async def get(session: ReadSession, name: str) -> NodeRecord:
    """The node of that name. Raises NotFound."""
    row = await session.fetch_one(select(nodes).where(nodes.c.name == name))
    if row is None:
        raise NotFound("node", name)
    return _record(row)


async def list_all(session: ReadSession) -> list[NodeRecord]:
    """All nodes by name."""
    return [_record(row) for row in await session.fetch_all(select(nodes).order_by(nodes.c.name))]


def _record(row: RowMapping) -> NodeRecord:
    lists = {name: None if row[name] is None else tuple(row[name]) for name in _LISTS}
    return NodeRecord(**{**row, **lists})
