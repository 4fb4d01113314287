"""Levels of memory pressure."""

import pytest

from node.engines.memory_pressure import CALM_READINGS, PressureGauge
from node.hardware import MemoryReading
from node.ipc.messages import Pressure

NONE, SOFT, HARD = Pressure.NONE, Pressure.SOFT, Pressure.HARD


def levels(gauge: PressureGauge, *available: int | None) -> list[Pressure]:
    return [gauge.feed(MemoryReading(available_bytes=each)) for each in available]


def test_rises_at_once_with_what_is_left_of_the_memory() -> None:
    assert levels(PressureGauge(100), 50, 6, 5, 3, 2) == [NONE, NONE, SOFT, SOFT, HARD]
    assert levels(PressureGauge(100), 1) == [HARD]


def test_falls_step_by_step_after_a_calm_while() -> None:
    gauge = PressureGauge(100)
    levels(gauge, 1)
    assert levels(gauge, *[50] * CALM_READINGS) == [HARD] * (CALM_READINGS - 1) + [SOFT]
    assert levels(gauge, *[50] * CALM_READINGS) == [SOFT] * (CALM_READINGS - 1) + [NONE]


def test_one_bad_reading_begins_the_calm_anew() -> None:
    gauge = PressureGauge(100)
    levels(gauge, 5, *[50] * (CALM_READINGS - 1), 5)
    assert levels(gauge, *[50] * CALM_READINGS) == [SOFT] * (CALM_READINGS - 1) + [NONE]


@pytest.mark.parametrize(("available", "level"), [(8, SOFT), (9, NONE)])
def test_a_little_more_than_the_threshold_is_no_calm(available: int, level: Pressure) -> None:
    gauge = PressureGauge(100)
    levels(gauge, 5, *[available] * 2 * CALM_READINGS)
    assert gauge.level is level


def test_uses_the_level_of_the_kernel_where_there_is_one() -> None:
    gauge = PressureGauge(100)
    assert gauge.feed(MemoryReading(kernel_level=1)) is NONE
    assert gauge.feed(MemoryReading(kernel_level=2)) is SOFT
    assert gauge.feed(MemoryReading(kernel_level=4)) is HARD
    for _ in range(CALM_READINGS):
        gauge.feed(MemoryReading(kernel_level=1))
    assert gauge.level is SOFT


def test_a_reading_without_information_changes_nothing() -> None:
    gauge = PressureGauge(100)
    levels(gauge, 5)
    for reading in (MemoryReading(), MemoryReading(kernel_level=77)):
        assert gauge.feed(reading) is SOFT
