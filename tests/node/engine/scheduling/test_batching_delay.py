from __future__ import annotations

import pytest

from node.engine.scheduling.batching_delay import LONGEST_IN_ALL, LONGEST_S, SHARE, Gather


def test_nothing_is_waited_for_before_a_speed_is_known() -> None:
    assert Gather().due_s(1.0, 1.5, 1000) == 1.0


def test_the_wait_is_a_share_of_the_prefill_that_comes() -> None:
    gather = Gather()
    gather.learn(100, 0.01)
    assert gather.due_s(1.0, 1.0, 200) == pytest.approx(1.0 + SHARE * 0.02)


def test_no_prefill_however_long_is_held_up_for_longer_than_the_longest_wait() -> None:
    gather = Gather()
    gather.learn(100, 10.0)
    assert gather.due_s(1.0, 1.005, 5000) == pytest.approx(1.005 + LONGEST_S)
    assert gather.due_s(1.0, 9.0, 5000) == pytest.approx(1.0 + LONGEST_IN_ALL * LONGEST_S)


def test_the_newest_speeds_count_most() -> None:
    gather = Gather()
    gather.learn(100, 1.0)
    gather.learn(0, 5.0)
    before = gather.due_s(0.0, 0.0, 10)
    gather.learn(100, 0.1)
    assert gather.due_s(0.0, 0.0, 10) < before
