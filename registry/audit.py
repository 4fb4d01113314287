"""The audit log: who did what to what, in the order of writing."""

from __future__ import annotations

from dataclasses import asdict

from sqlalchemy import delete, insert, select

from registry.db import ReadSession, WriteSession
from registry.records import AuditRecord
from registry.tables import audit

DONE = "done"
_FAILED_SHARE = 10
"""Attempts that failed are kept in a tenth of the number of entries beside the others, so that
nobody can flush the log with them."""


async def add(session: WriteSession, entry: AuditRecord) -> AuditRecord:
    """Append an entry and return it with its id."""
    values = asdict(entry)
    del values["id"]
    row = await session.fetch_one(insert(audit).values(values).returning(audit))
    assert row is not None
    return AuditRecord(**row)


async def recent(
    session: ReadSession, limit: int, since_s: float | None = None
) -> list[AuditRecord]:
    """The `limit` newest entries, newest first; only those since then, if given."""
    latest = select(audit).order_by(audit.c.id.desc()).limit(limit)
    if since_s is not None:
        latest = latest.where(audit.c.at_s >= since_s)
    return [AuditRecord(**row) for row in await session.fetch_all(latest)]


async def trim(session: WriteSession, most: int) -> int:
    """Delete all but the newest entries, `most` of what was done and a tenth of that of what
    failed; the number of those deleted."""
    deleted = 0
    for which, kept in (
        (audit.c.outcome == DONE, most),
        (audit.c.outcome != DONE, most // _FAILED_SHARE),
    ):
        newest = select(audit.c.id).where(which).order_by(audit.c.id.desc()).offset(kept).limit(1)
        last = newest.scalar_subquery()
        deleted += await session.execute(delete(audit).where(which & (audit.c.id <= last)))
    return deleted
