"""Admins' residency policies: one row for a model on a node, or on every node."""

from __future__ import annotations

from dataclasses import asdict

from sqlalchemy import RowMapping, delete, select
from sqlalchemy.dialects.sqlite import insert

from registry.db import ReadSession, WriteSession
from registry.records import PolicyRecord
from registry.tables import policies


async def put(session: WriteSession, record: PolicyRecord) -> PolicyRecord:
    """Store the policy in place of an earlier one; one without any setting is deleted."""
    if not record.pinned and record.keep_alive_s is None:
        key = (policies.c.model == record.model) & (policies.c.node_id == record.node_id)
        await session.execute(delete(policies).where(key))
        return record
    new = insert(policies).values(asdict(record))
    changed = {name: new.excluded[name] for name in ("pinned", "keep_alive_s")}
    await session.execute(
        new.on_conflict_do_update(index_elements=["model", "node_id"], set_=changed)
    )
    return record


async def list_all(session: ReadSession) -> list[PolicyRecord]:
    """All of them, by model and node."""
    rows = await session.fetch_all(select(policies).order_by(policies.c.model, policies.c.node_id))
    return [_record(row) for row in rows]


def _record(row: RowMapping) -> PolicyRecord:
    return PolicyRecord(**row)
