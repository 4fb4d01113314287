"""Models and their states as each node last reported them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from sqlalchemy import delete, insert, select

from registry.db import ReadSession, WriteSession
from registry.errors import NotFound
from registry.records import ResidencyRecord
from registry.tables import nodes, residency


async def replace_node(
    session: WriteSession, node_id: str, rows: Sequence[ResidencyRecord]
) -> None:
    """Make `rows` all that is known of the node's models.

    Raises NotFound when no node has the id, ValueError when a row names another node.
    """
    if any(row.node_id != node_id for row in rows):
        raise ValueError(f"residency rows of another node given for node {node_id!r}")
    if await session.fetch_one(select(nodes.c.id).where(nodes.c.id == node_id)) is None:
        raise NotFound("node", node_id)
    await session.execute(delete(residency).where(residency.c.node_id == node_id))
    if rows:
        await session.execute(insert(residency), [asdict(row) for row in rows])


async def list_all(session: ReadSession) -> list[ResidencyRecord]:
    """All rows, by node id and model."""
    ordered = select(residency).order_by(residency.c.node_id, residency.c.model)
    return [ResidencyRecord(**row) for row in await session.fetch_all(ordered)]
