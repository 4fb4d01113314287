"""Times at which models are loaded and unloaded, and the due times that have been handled."""

from __future__ import annotations

from dataclasses import asdict

from sqlalchemy import RowMapping, delete, insert, or_, select, update

from registry.db import ReadSession, WriteSession
from registry.errors import Conflict, NotFound
from registry.records import ScheduleRecord
from registry.tables import schedules

FIRED = {"load": schedules.c.load_fired_s, "unload": schedules.c.unload_fired_s}


async def add(session: WriteSession, record: ScheduleRecord) -> ScheduleRecord:
    """Store a new schedule; a taken id is a Conflict."""
    taken = select(schedules.c.id).where(schedules.c.id == record.id)
    if await session.fetch_one(taken) is not None:
        raise Conflict("schedule", record.id)
    await session.execute(insert(schedules).values(asdict(record)))
    return record


async def remove(session: WriteSession, schedule_id: str) -> ScheduleRecord:
    """Forget the schedule and return what it was. Raises NotFound."""
    gone = delete(schedules).where(schedules.c.id == schedule_id).returning(schedules)
    row = await session.fetch_one(gone)
    if row is None:
        raise NotFound("schedule", schedule_id)
    return _record(row)


async def fire(
    session: WriteSession, schedule_id: str, what: str, due_s: float, *, acts: bool
) -> bool:
    """Record that the due time of "load" or "unload" has passed; if it `acts`, the action is
    pending from then on, in place of an earlier one. False if that due time, or a later one, was
    recorded already, and if there is no such schedule."""
    fired = FIRED[what]
    fresh = or_(fired.is_(None), fired < due_s)
    noted = update(schedules).where(schedules.c.id == schedule_id, fresh)
    values = {fired: due_s, schedules.c.pending: what if acts else None}
    row = await session.fetch_one(noted.values(values).returning(schedules.c.id))
    return row is not None


async def settle(session: WriteSession, schedule_id: str) -> None:
    """Record that no action of the schedule is pending."""
    settled = update(schedules).where(schedules.c.id == schedule_id)
    await session.execute(settled.values(pending=None))


async def list_all(session: ReadSession) -> list[ScheduleRecord]:
    """All schedules, oldest first."""
    ordered = select(schedules).order_by(schedules.c.created_at_s, schedules.c.id)
    return [_record(row) for row in await session.fetch_all(ordered)]


def _record(row: RowMapping) -> ScheduleRecord:
    return ScheduleRecord(**row)
