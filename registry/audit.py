"""The audit log: who did what to what, in the order of writing."""

from __future__ import annotations

from sqlalchemy import insert, select

from registry.db import ReadSession, WriteSession
from registry.records import AuditRecord
from registry.tables import audit


async def add(
    session: WriteSession, at_s: float, actor: str, verb: str, subject: str, detail: str
) -> AuditRecord:
    """Append an entry and return it with its id."""
    new = insert(audit).values(at_s=at_s, actor=actor, verb=verb, subject=subject, detail=detail)
    row = await session.fetch_one(new.returning(audit))
    assert row is not None
    return AuditRecord(**row)


async def recent(session: ReadSession, limit: int) -> list[AuditRecord]:
    """The `limit` newest entries, newest first."""
    latest = select(audit).order_by(audit.c.id.desc()).limit(limit)
    return [AuditRecord(**row) for row in await session.fetch_all(latest)]
