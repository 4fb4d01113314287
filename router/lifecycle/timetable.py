"""The schedules: their due times and pending actions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from registry import schedules
from registry.db import Registry
from registry.errors import RegistryError, RegistryUnwritable
from registry.records import ScheduleRecord
from router.lifecycle.calendar import due_times, with_due

log = logging.getLogger("mlx_fleet.lifecycle")


class Timetable:
    """Owns the schedules, as they are in the registry."""

    def __init__(
        self, registry: Registry, wall: Callable[[], float], records: Iterable[ScheduleRecord]
    ) -> None:
        self._registry = registry
        self.wall = wall
        self._records = {each.id: each for each in records}
        self._unwritten: set[str] = set()
        """Ids of schedules whose pending action is done but not yet cleared in the registry."""
        self._writing = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def records(self) -> tuple[ScheduleRecord, ...]:
        return tuple(self._records.values())

    def find(self, schedule_id: str) -> ScheduleRecord | None:
        return self._records.get(schedule_id)

    def add(self, record: ScheduleRecord) -> None:
        self._records[record.id] = record

    def remove(self, schedule_id: str) -> ScheduleRecord:
        self._unwritten.discard(schedule_id)
        return self._records.pop(schedule_id)

    def done(self, schedule_id: str) -> None:
        """Clears the pending action."""
        self._records[schedule_id] = replace(self._records[schedule_id], pending=None)
        self._unwritten.add(schedule_id)
        task = asyncio.create_task(self._write_done())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Returns once the registry has all cleared actions and nothing is being written."""
        await asyncio.gather(*self._tasks)
        await self._write_done()

    async def settle(self) -> None:
        """Records every new due time before it is acted on, so that none is acted on twice."""
        await self._write_done()
        async with self._writing:
            for record in self.records:
                await self._write_due(record)

    async def _write_done(self) -> None:
        async with self._writing:
            for schedule_id in list(self._unwritten):
                try:
                    await self._registry.write(partial(schedules.settle, schedule_id=schedule_id))
                except RegistryUnwritable:
                    return  # the registry has logged it
                except RegistryError:
                    log.exception("%s cannot be written; it will be retried", schedule_id)
                    return
                self._unwritten.discard(schedule_id)

    async def _write_due(self, record: ScheduleRecord) -> None:
        for due in due_times(record, self.wall()):
            fire = partial(
                schedules.fire,
                schedule_id=record.id,
                what=due.what,
                due_s=due.at_s,
                acts=due.acts,
            )
            try:
                fired = await self._registry.write(fire)
            except RegistryUnwritable:
                return  # the registry has logged it
            except RegistryError:
                log.exception("the schedule %s cannot be written; it will be retried", record.id)
                return
            current = self._records.get(record.id)
            if current is None:
                return  # removed meanwhile
            self._records[record.id] = with_due(current, due if fired else replace(due, acts=False))
            self._unwritten.discard(record.id)
