"""Cron lines mean what cron says, in APScheduler's terms."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from router.lifecycle.crons import InvalidCron, latest_due_s, next_due_s, trigger_of

BERLIN = ZoneInfo("Europe/Berlin")


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=BERLIN).timestamp()


@pytest.mark.parametrize(
    ("line", "after", "due"),
    [
        ("0 8 * * 1-5", "2026-11-27T08:00", "2026-11-30T08:00"),  # a Friday, and the Monday after
        ("0 8 * * 0", "2026-11-27T08:00", "2026-11-29T08:00"),
        ("0 8 * * 7", "2026-11-27T08:00", "2026-11-29T08:00"),
        ("0 8 * * 6-1", "2026-11-29T08:00", "2026-11-30T08:00"),
        ("0 8 * * mon-fri", "2026-11-27T08:00", "2026-11-30T08:00"),
        ("0 8 * * SUN,3", "2026-11-29T08:00", "2026-12-02T08:00"),
        ("0 8 * * */2", "2026-11-29T08:00", "2026-12-01T08:00"),
        ("*/15 * * * *", "2026-11-27T08:00", "2026-11-27T08:15"),
        ("0 8 1 * *", "2026-11-27T08:00", "2026-12-01T08:00"),
    ],
)
def test_a_line_is_due_when_cron_runs_it(line: str, after: str, due: str) -> None:
    assert next_due_s(trigger_of(line, "Europe/Berlin"), at(after)) == at(due)


@pytest.mark.parametrize(
    ("line", "timezone", "message"),
    [
        ("8 o'clock", "UTC", "five fields"),
        ("61 * * * *", "UTC", "61"),
        ("0 8 * * 8", "UTC", "day of the week"),
        ("0 8 * * x", "UTC", "not a cron line"),
        ("0 8 * * *", "Mars/Olympus", "no time zone"),
    ],
)
def test_what_is_no_line_is_refused_with_a_sentence(line: str, timezone: str, message: str) -> None:
    with pytest.raises(InvalidCron, match=message):
        trigger_of(line, timezone)


@pytest.mark.parametrize(
    ("line", "after", "until", "due"),
    [
        ("0 8 * * *", "2026-11-26T09:00", "2026-11-27T09:00", "2026-11-27T08:00"),
        ("0 8 * * *", "2026-11-27T08:00", "2026-11-27T09:00", None),
        ("0 8 * * *", "2026-11-27T07:00", "2026-11-27T08:00", "2026-11-27T08:00"),
        ("* * * * *", "2026-11-26T09:00", "2026-11-27T09:00", "2026-11-27T09:00"),
        ("0 0 31 2 *", "2026-11-26T09:00", "2026-11-27T09:00", None),
    ],
)
def test_the_latest_due_time_is_found(line: str, after: str, until: str, due: str | None) -> None:
    found = latest_due_s(trigger_of(line, "Europe/Berlin"), at(after), at(until))
    assert found == (None if due is None else at(due))
