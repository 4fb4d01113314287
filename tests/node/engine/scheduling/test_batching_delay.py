from __future__ import annotations

import pytest

from node.engine.scheduling.batching_delay import (
    MAX_WINDOW_S,
    MAX_WINDOWS,
    PREFILL_SHARE,
    BatchingDelay,
)


def test_nothing_is_waited_for_before_a_speed_is_known() -> None:
    assert BatchingDelay().due_s(1.0, 1.5, 1000) == 1.0


def test_the_wait_is_a_share_of_the_prefill_that_follows() -> None:
    delay = BatchingDelay()
    delay.learn(100, 0.01)
    assert delay.due_s(1.0, 1.0, 200) == pytest.approx(1.0 + PREFILL_SHARE * 0.02)


def test_no_prefill_however_long_is_delayed_for_longer_than_the_longest_wait() -> None:
    delay = BatchingDelay()
    delay.learn(100, 10.0)
    assert delay.due_s(1.0, 1.005, 5000) == pytest.approx(1.005 + MAX_WINDOW_S)
    assert delay.due_s(1.0, 9.0, 5000) == pytest.approx(1.0 + MAX_WINDOWS * MAX_WINDOW_S)


def test_the_newest_speeds_count_most() -> None:
    delay = BatchingDelay()
    delay.learn(100, 1.0)
    delay.learn(0, 5.0)
    before = delay.due_s(0.0, 0.0, 10)
    delay.learn(100, 0.1)
    assert delay.due_s(0.0, 0.0, 10) < before
