"""Reads tables of the registry that no part of the product lists."""

from __future__ import annotations

from sqlalchemy import select

from registry.db import ReadSession
from registry.records import UsageRecord
from registry.tables import models, usage


async def usage_rows(session: ReadSession) -> list[UsageRecord]:
    """All usage rows, latest first."""
    latest = select(usage).order_by(usage.c.finished_at_s.desc(), usage.c.seq.desc())
    return [UsageRecord(**row) for row in await session.fetch_all(latest)]


async def model_names(session: ReadSession) -> list[str]:
    """Names of all models that nodes have reported, in order."""
    rows = await session.fetch_all(select(models.c.name).order_by(models.c.name))
    return [row["name"] for row in rows]
