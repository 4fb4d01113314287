"""A sleep is noticed by two clocks that go apart."""

import asyncio
import logging

import pytest

from serving import sleep_watch
from serving.sleep_watch import LEAST_S, SleepGauge, watch_sleep
from tests.fakes import FakeClock

WAIT_S = 30


class Clocks:
    def __init__(self) -> None:
        self.wall, self.monotonic = FakeClock(1.8e9), FakeClock(50.0)
        self.gauge = SleepGauge(self.wall, self.monotonic)

    def work(self, seconds: float) -> None:
        self.wall.advance(seconds)
        self.monotonic.advance(seconds)


def test_a_sleep_is_what_only_the_time_of_day_has_seen() -> None:
    clocks = Clocks()
    clocks.work(3600)
    assert clocks.gauge.check() is None
    clocks.wall.advance(8 * 3600)
    clocks.work(1)
    assert clocks.gauge.check() == pytest.approx(8 * 3600)
    assert clocks.gauge.check() is None, "once"
    clocks.work(60)
    assert clocks.gauge.check() is None


def test_a_short_one_and_a_clock_that_is_set_back_are_none() -> None:
    clocks = Clocks()
    for seconds in (LEAST_S - 1, LEAST_S - 1, -7200):
        clocks.wall.advance(seconds)
        assert clocks.gauge.check() is None
    clocks.wall.advance(LEAST_S + 1)
    assert clocks.gauge.check() == pytest.approx(LEAST_S + 1)


async def test_each_sleep_is_logged_though_its_callback_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(sleep_watch, "CHECK_S", 0.0)
    clocks, woken = Clocks(), asyncio.Event()

    async def wake() -> None:
        woken.set()
        raise OSError("no route")

    watch = asyncio.create_task(watch_sleep(wake, clocks.gauge))
    for _ in range(2):
        clocks.wall.advance(600)
        await asyncio.wait_for(woken.wait(), WAIT_S)
        woken.clear()
    watch.cancel()
    await asyncio.wait({watch})
    logged = [line for line in caplog.messages if "has slept for 600 s" in line]
    assert len(logged) == 2
    assert "The callback after a sleep failed." in caplog.messages
