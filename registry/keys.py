"""API keys; a name belongs to one key until that key is revoked."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sqlalchemy import ColumnElement, RowMapping, insert, select, update

from registry.db import ReadSession, WriteSession
from registry.errors import Conflict, NotFound
from registry.records import KeyRecord
from registry.tables import keys


async def add(session: WriteSession, record: KeyRecord) -> KeyRecord:
    """Store a key; a name that an unrevoked key has is a Conflict."""
    if record.revoked_at_s is None and await _find(session, _active(record.name)):
        raise Conflict("key name", record.name)
    await session.execute(insert(keys).values(asdict(record)))
    return record


async def revoke(session: WriteSession, key_id_or_name: str, now_s: float) -> KeyRecord:
    """Revoke the key of that id, else the unrevoked key of that name, else the one of that name
    that was revoked last. Raises NotFound.

    A key revoked before keeps its first time of revocation.
    """
    found = await _find(session, keys.c.id == key_id_or_name)
    record = found or await _by_name(session, key_id_or_name)
    if record.revoked_at_s is not None:
        return record
    revoked = update(keys).where(keys.c.id == record.id).values(revoked_at_s=now_s)
    row = await session.fetch_one(revoked.returning(keys))
    assert row is not None
    return _record(row)


async def change(session: WriteSession, key_id_or_name: str, **values: Any) -> KeyRecord:
    """Set columns of the unrevoked key of that id, else of that name. Raises NotFound."""
    record = await find(session, key_id_or_name)
    if not values:
        return record
    changed = update(keys).where(keys.c.id == record.id).values(values)
    row = await session.fetch_one(changed.returning(keys))
    assert row is not None
    return _record(row)


async def find(session: ReadSession, key_id_or_name: str) -> KeyRecord:
    """The unrevoked key of that id, else of that name, expired or not. Raises NotFound."""
    by_id = (keys.c.id == key_id_or_name) & keys.c.revoked_at_s.is_(None)
    return await _find(session, by_id) or await get(session, key_id_or_name)


async def of_team(session: ReadSession, team_id: str) -> list[KeyRecord]:
    """The unrevoked keys of a team, oldest first."""
    those = select(keys).where((keys.c.team_id == team_id) & keys.c.revoked_at_s.is_(None))
    ordered = those.order_by(keys.c.created_at_s, keys.c.id)
    return [_record(row) for row in await session.fetch_all(ordered)]


async def get(session: ReadSession, name: str) -> KeyRecord:
    """The unrevoked key of that name, expired or not. Raises NotFound."""
    record = await _find(session, _active(name))
    if record is None:
        raise NotFound("key", name)
    return record


async def list_all(session: ReadSession) -> list[KeyRecord]:
    """All keys, revoked ones too, oldest first."""
    ordered = select(keys).order_by(keys.c.created_at_s, keys.c.id)
    return [_record(row) for row in await session.fetch_all(ordered)]


async def _by_name(session: ReadSession, name: str) -> KeyRecord:
    """The unrevoked key of that name, else the one that was revoked last. Raises NotFound."""
    named = select(keys).where(keys.c.name == name)
    row = await session.fetch_one(named.order_by(keys.c.revoked_at_s.desc().nulls_first()).limit(1))
    if row is None:
        raise NotFound("key", name)
    return _record(row)


def _active(name: str) -> ColumnElement[bool]:
    return (keys.c.name == name) & keys.c.revoked_at_s.is_(None)


async def _find(session: ReadSession, which: ColumnElement[bool]) -> KeyRecord | None:
    row = await session.fetch_one(select(keys).where(which))
    return None if row is None else _record(row)


def _record(row: RowMapping) -> KeyRecord:
    models = row["models"]
    lists = {
        "scopes": tuple(row["scopes"]),
        "models": None if models is None else tuple(models),
    }
    return KeyRecord(**{**row, **lists})
