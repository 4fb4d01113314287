"""Tests the limits of what the disk tier may store and write."""

import logging

import pytest

from node.engine.cache.disk.limits import DAY_S, DayBudget, Outage


def test_the_budget_of_a_day_begins_anew_at_midnight(caplog: pytest.LogCaptureFixture) -> None:
    budget = DayBudget(100, day=3, written_bytes=60)
    assert budget.allows(40, 3 * DAY_S)
    assert not budget.allows(41, 4 * DAY_S - 1)
    assert not budget.allows(41, 4 * DAY_S - 1)
    assert len(caplog.records) == 1
    assert budget.allows(100, 4 * DAY_S)
    budget.spend(100, 4 * DAY_S)
    assert (budget.day, budget.written_bytes) == (4, 100)
    assert not budget.allows(1, 4 * DAY_S)
    assert len(caplog.records) == 2


def test_without_a_budget_everything_is_allowed() -> None:
    assert DayBudget(0, day=0, written_bytes=10**15).allows(10**12, 5.0)


def test_three_failures_in_a_row_pause_the_writing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    outage = Outage()
    for _ in range(2):
        outage.failed(OSError("full"), 10.0)
    assert not outage.paused(10.0)
    outage.failed(OSError("full"), 10.0)
    assert outage.paused(69.9)
    assert not outage.paused(70.0)
    outage.failed(OSError("full"), 70.0)
    assert outage.paused(129.0)
    outage.succeeded()
    assert not outage.paused(129.0)
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING", "INFO"]
