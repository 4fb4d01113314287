"""Aliases: names that clients may use for models."""

from __future__ import annotations

from dataclasses import asdict

from sqlalchemy import RowMapping, delete, select
from sqlalchemy.dialects.sqlite import insert

from registry.db import ReadSession, WriteSession
from registry.errors import NotFound
from registry.records import AliasRecord, AliasTarget
from registry.tables import aliases


async def put(session: WriteSession, record: AliasRecord) -> AliasRecord:
    """Make the alias, or point it elsewhere; one that existed keeps its time of creation."""
    new = insert(aliases).values(asdict(record))
    changed = {name: new.excluded[name] for name in ("targets", "selector", "spill_at")}
    upsert = new.on_conflict_do_update(index_elements=[aliases.c.name], set_=changed)
    row = await session.fetch_one(upsert.returning(aliases))
    assert row is not None
    return _record(row)


async def remove(session: WriteSession, name: str) -> AliasRecord:
    """Forget the alias and return what it was. Raises NotFound."""
    gone = delete(aliases).where(aliases.c.name == name).returning(aliases)
    row = await session.fetch_one(gone)
    if row is None:
        raise NotFound("alias", name)
    return _record(row)


async def list_all(session: ReadSession) -> list[AliasRecord]:
    """All aliases by name."""
    rows = await session.fetch_all(select(aliases).order_by(aliases.c.name))
    return [_record(row) for row in rows]


def _record(row: RowMapping) -> AliasRecord:
    targets = tuple(AliasTarget(**target) for target in row["targets"])
    return AliasRecord(**{**row, "targets": targets})
