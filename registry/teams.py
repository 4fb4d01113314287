"""Teams; a name belongs to one team until that team is deleted."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sqlalchemy import RowMapping, insert, select, update

from registry.db import ReadSession, WriteSession
from registry.errors import Conflict, NotFound
from registry.records import TeamRecord
from registry.tables import teams

_ACTIVE = teams.c.deleted_at_s.is_(None)


async def add(session: WriteSession, record: TeamRecord) -> TeamRecord:
    """Store a team; a name that another one has is a Conflict."""
    if await _find(session, record.name) is not None:
        raise Conflict("team name", record.name)
    await session.execute(insert(teams).values(asdict(record)))
    return record


async def change(session: WriteSession, name: str, **values: Any) -> TeamRecord:
    """Set columns of the team of that name. Raises NotFound."""
    record = await get(session, name)
    if not values:
        return record
    changed = update(teams).where(teams.c.id == record.id).values(values)
    row = await session.fetch_one(changed.returning(teams))
    assert row is not None
    return _record(row)


async def get(session: ReadSession, name: str) -> TeamRecord:
    """The team of that name. Raises NotFound."""
    record = await _find(session, name)
    if record is None:
        raise NotFound("team", name)
    return record


async def list_all(session: ReadSession, *, with_deleted: bool = False) -> list[TeamRecord]:
    """All teams, oldest first."""
    ordered = select(teams).order_by(teams.c.created_at_s, teams.c.id)
    which = ordered if with_deleted else ordered.where(_ACTIVE)
    return [_record(row) for row in await session.fetch_all(which)]


async def _find(session: ReadSession, name: str) -> TeamRecord | None:
    row = await session.fetch_one(select(teams).where((teams.c.name == name) & _ACTIVE))
    return None if row is None else _record(row)


def _record(row: RowMapping) -> TeamRecord:
    return TeamRecord(**row)
