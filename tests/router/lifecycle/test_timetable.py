"""Tests which facts of schedules are written to the registry, and when they are written again."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, cast

import pytest

from registry.db import Registry
from registry.errors import RegistryError
from registry.records import ScheduleRecord
from router.lifecycle.timetable import Timetable
from tests.fakes import FakeClock


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


DAILY = ScheduleRecord("s", "m", "", "0 8 * * *", None, "UTC", at("2026-11-27T00:00"))


@dataclass
class PlayedRegistry:
    """Takes what is written, or fails."""

    fails: tuple[str, ...] = ()
    fresh: bool = True
    written: list[dict[str, Any]] = field(default_factory=list)

    async def write(self, work: partial[Any]) -> bool:
        if work.func.__name__ in self.fails:
            raise RegistryError("disk full")
        self.written.append(work.keywords)
        return self.fresh


@pytest.fixture
def played() -> PlayedRegistry:
    return PlayedRegistry()


def table(played: PlayedRegistry, now: str, record: ScheduleRecord = DAILY) -> Timetable:
    return Timetable(cast(Registry, played), FakeClock(at(now)), (record,))


async def test_a_due_time_that_cannot_be_written_is_not_pending_until_it_can(
    played: PlayedRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    times = table(played, "2026-11-27T08:00")
    played.fails = ("fire",)
    await times.settle()
    assert times.records == (DAILY,)
    assert "it will be retried" in caplog.text
    played.fails = ()
    await times.settle()
    await times.settle()
    assert [each["acts"] for each in played.written] == [True]
    assert [each.pending for each in times.records] == ["load"]


async def test_a_due_time_that_the_registry_has_already_is_not_acted_upon(
    played: PlayedRegistry,
) -> None:
    played.fresh = False
    times = table(played, "2026-11-27T08:00")
    await times.settle()
    assert times.records == (replace(DAILY, load_fired_s=at("2026-11-27T08:00")),)


async def test_what_is_done_is_written_at_once_and_again_where_that_failed(
    played: PlayedRegistry,
) -> None:
    record = replace(DAILY, load_fired_s=at("2026-11-27T08:00"), pending="load")
    times = table(played, "2026-11-27T09:00", record)
    played.fails = ("settle",)
    times.done("s")
    assert times.records == (replace(record, pending=None),)
    await times.close()
    played.fails = ()
    await times.settle()
    await times.close()
    assert played.written == [{"schedule_id": "s"}]


async def test_a_new_due_time_stands_where_what_was_done_could_not_be_written(
    played: PlayedRegistry,
) -> None:
    record = replace(DAILY, load_fired_s=at("2026-11-27T08:00"), pending="load")
    wall = FakeClock(at("2026-11-27T09:00"))
    times = Timetable(cast(Registry, played), wall, (record,))
    played.fails = ("settle",)
    times.done("s")
    await times.close()
    wall.now_s = at("2026-11-28T08:00")
    await times.settle()
    played.fails = ()
    await times.close()
    assert [each["due_s"] for each in played.written] == [wall.now_s]
    assert [each.pending for each in times.records] == ["load"]
