"""Which due times count."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from registry.records import ScheduleRecord
from router.lifecycle.calendar import Due, due_times, keeps, next_times, with_due


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


MADE_S = at("2026-11-20T00:00")
DAILY = ScheduleRecord("s", "m", "", "0 8 * * *", "0 20 * * *", "UTC", MADE_S)
LOAD_ONLY = replace(DAILY, unload_cron=None)


def test_nothing_is_due_before_the_first_time() -> None:
    assert (
        due_times(replace(DAILY, created_at_s=at("2026-11-27T07:00")), at("2026-11-27T07:59")) == []
    )


def test_of_a_load_and_an_unload_that_were_missed_the_later_one_counts() -> None:
    assert due_times(DAILY, at("2026-11-27T21:00")) == [
        Due("load", at("2026-11-27T08:00"), acts=False),
        Due("unload", at("2026-11-27T20:00"), acts=True),
    ]
    assert due_times(DAILY, at("2026-11-28T09:00")) == [
        Due("unload", at("2026-11-27T20:00"), acts=False),
        Due("load", at("2026-11-28T08:00"), acts=True),
    ]


def test_a_time_that_was_acted_upon_is_not_due_again() -> None:
    fired = replace(LOAD_ONLY, load_fired_s=at("2026-11-27T08:00"))
    assert due_times(fired, at("2026-11-27T08:00")) == []
    assert due_times(fired, at("2026-11-28T07:59")) == []
    assert [due.at_s for due in due_times(fired, at("2026-11-28T08:00"))] == [
        at("2026-11-28T08:00")
    ]


def test_a_time_missed_for_more_than_a_day_is_noted_and_not_acted_upon() -> None:
    weekly, due = replace(LOAD_ONLY, load_cron="0 8 * * 1"), at("2026-11-23T08:00")
    [missed] = due_times(weekly, at("2026-11-24T08:01"))
    assert missed == Due("load", due, acts=False)
    assert with_due(replace(weekly, pending="unload"), missed) == replace(weekly, load_fired_s=due)
    [young] = due_times(weekly, at("2026-11-24T07:59"))
    assert with_due(weekly, young) == replace(weekly, load_fired_s=due, pending="load")


def test_an_unload_that_was_missed_for_days_ends_what_its_load_began() -> None:
    record = replace(DAILY, load_cron="0 8 * * 1-5", unload_cron="0 20 * * 1-5")
    record = replace(record, load_fired_s=at("2026-11-27T08:00"))
    assert keeps(record)
    for missed in due_times(record, at("2026-11-29T10:00")):
        record = with_due(record, missed)
    assert record.unload_fired_s == at("2026-11-27T20:00")
    assert (record.pending, keeps(record)) == (None, False)


def test_a_model_is_kept_from_its_load_to_its_unload_and_not_without_one() -> None:
    loaded = replace(DAILY, load_fired_s=100.0)
    assert keeps(loaded)
    assert not keeps(DAILY)
    assert not keeps(replace(loaded, unload_fired_s=200.0))
    assert keeps(replace(loaded, unload_fired_s=50.0))
    assert not keeps(replace(loaded, unload_cron=None))


def test_the_next_times_are_reported() -> None:
    now_s = at("2026-11-27T09:00")
    assert next_times(DAILY, now_s) == {
        "load": at("2026-11-28T08:00"),
        "unload": at("2026-11-27T20:00"),
    }
