"""Warm sessions: what is lost with them, and how much work they are for their node."""

from __future__ import annotations

from math import exp

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.scheduler.warm_sessions import FORGOTTEN_S, RETURN_DECAY_S, Demand, WarmSessions


def price(begin: float, end: float) -> float:
    return (end - begin) * 0.001


def test_the_least_recently_used_is_lost_first_and_from_its_end() -> None:
    warm = WarmSessions()
    warm.touch("old", 1000.0, Demand(), 0.0)
    warm.touch("new", 1000.0, Demand(), RETURN_DECAY_S)
    assert warm.loss_s(500.0, "", RETURN_DECAY_S, price) == pytest.approx(0.5 * exp(-1.0))
    assert warm.loss_s(1500.0, "", RETURN_DECAY_S, price) == pytest.approx(exp(-1.0) + 0.5)
    assert warm.loss_s(9000.0, "", RETURN_DECAY_S, price) == pytest.approx(exp(-1.0) + 1.0)


def test_a_session_does_not_push_itself_out() -> None:
    warm = WarmSessions()
    warm.touch("own", 1000.0, Demand(), 0.0)
    assert warm.loss_s(500.0, "own", 0.0, price) == 0.0


def test_a_session_that_is_used_again_is_the_last_one_to_go() -> None:
    warm = WarmSessions()
    for name in ("a", "b", "a"):
        warm.touch(name, 1000.0 if name == "b" else 10.0, Demand(), 0.0)
    assert warm.loss_s(1000.0, "", 0.0, price) == pytest.approx(1.0)
    assert warm.tokens == pytest.approx(1010.0)


def test_sessions_that_were_quiet_for_long_are_dropped() -> None:
    warm = WarmSessions()
    warm.touch("a", 1000.0, Demand(), 0.0)
    warm.touch("b", 10.0, Demand(), FORGOTTEN_S)
    assert len(warm) == 1
    assert warm.tokens == pytest.approx(10.0)


def test_a_session_with_a_waiting_turn_keeps_no_quiet_ones_behind_it() -> None:
    warm = WarmSessions()
    for name, tokens in (("waits", 1000.0), ("quiet", 100.0)):
        warm.touch(name, tokens, Demand(), 0.0)
    warm.expect("waits", FORGOTTEN_S - 1.0)
    warm.touch("new", 10.0, Demand(), FORGOTTEN_S)
    assert warm.tokens == pytest.approx(1010.0)
    warm.touch("new", 10.0, Demand(), 2 * FORGOTTEN_S - 1.0)
    assert len(warm) == 1


def test_a_session_with_a_waiting_turn_certainly_returns() -> None:
    warm = WarmSessions()
    warm.touch("a", 1000.0, Demand(0.1, 0.4, 1.6), 0.0)
    warm.touch("b", 10.0, Demand(), 0.0)
    warm.expect("a", 2 * RETURN_DECAY_S)
    assert warm.live_tokens(2 * RETURN_DECAY_S) == pytest.approx(1000.0 + 10.0 * exp(-2.0))
    assert warm.loss_s(1000.0, "", 2 * RETURN_DECAY_S, price) == pytest.approx(1.0)
    warm.expect("unknown", 2 * RETURN_DECAY_S)
    warm.forget("a")
    assert warm.live_tokens(2 * RETURN_DECAY_S) == pytest.approx(10.0 * exp(-2.0))


def test_a_turn_waits_for_half_of_what_runs_and_longer_the_busier_the_node_is() -> None:
    warm = WarmSessions()
    # A prefill of 4 s every 10 s: a request that arrives waits 2 s with a probability of 0.4.
    warm.touch("a", 1.0, Demand(0.1, 0.4, 1.6), 0.0)
    assert warm.waits_s(0.0, "", 0.0, 1.0)[0] == pytest.approx(0.8 / 0.6)
    # A node that has turned out to be twice as fast: 2 s every 10 s.
    assert warm.waits_s(0.0, "", 0.0, 0.5)[0] == pytest.approx(0.2 / 0.8)
    assert warm.waits_s(0.0, "a", 0.0, 1.0)[0] == pytest.approx(0.0)
    assert warm.waits_s(0.0, "", RETURN_DECAY_S, 1.0)[0] < warm.waits_s(0.0, "", 0.0, 1.0)[0]


def test_others_wait_for_what_is_left_of_a_prefill_when_their_turn_arrives() -> None:
    warm = WarmSessions()
    warm.touch("a", 1.0, Demand(turns_per_s=0.1), 0.0)
    short_s, long_s = warm.waits_s(1.0, "", 0.0, 1.0)[1], warm.waits_s(1000.0, "", 0.0, 1.0)[1]
    assert short_s == pytest.approx(0.05, rel=0.1)
    assert long_s == pytest.approx(990.0)
    assert warm.waits_s(1000.0, "a", 0.0, 1.0)[1] == 0.0


def test_a_busy_node_passes_a_delay_on() -> None:
    idle, busy = WarmSessions(), WarmSessions()
    idle.touch("a", 1.0, Demand(turns_per_s=0.1), 0.0)
    busy.touch("a", 1.0, Demand(turns_per_s=0.1, tokens_per_s=0.5), 0.0)
    assert busy.waits_s(1.0, "", 0.0, 1.0)[1] == pytest.approx(
        2.0 * idle.waits_s(1.0, "", 0.0, 1.0)[1]
    )


STEPS = st.lists(
    st.tuples(st.integers(0, 4), st.integers(1, 1000), st.floats(0.0, 50.0)), max_size=30
)


@given(STEPS)
def test_the_kept_sums_are_those_of_the_sessions(steps: list[tuple[int, int, float]]) -> None:
    warm, now_s = WarmSessions(), 0.0
    truth: dict[str, tuple[int, float]] = {}
    for name, tokens, later_s in steps:
        now_s += later_s
        if tokens % 7:
            warm.touch(f"{name}", tokens, Demand(0.1, 0.0, 0.0), now_s)
            truth[f"{name}"] = (tokens, now_s)
        else:
            warm.forget(f"{name}")
            truth.pop(f"{name}", None)
    live = sum(tokens * exp((used_s - now_s) / RETURN_DECAY_S) for tokens, used_s in truth.values())
    assert warm.live_tokens(now_s) == pytest.approx(live, rel=1e-6, abs=1e-3)


def test_the_sums_outlast_any_uptime() -> None:
    warm, month_s = WarmSessions(), 30 * 86_400.0
    warm.touch("a", 100.0, Demand(0.1, 2.0, 4.0), 0.0)
    warm.touch("b", 10.0, Demand(0.1, 2.0, 4.0), 0.0)
    warm.expect("b", month_s)
    assert warm.live_tokens(month_s) == pytest.approx(10.0)
    warm.touch("c", 1.0, Demand(0.2, 2.0, 4.0), month_s + RETURN_DECAY_S)
    assert len(warm) == 2
    assert warm.live_tokens(month_s + RETURN_DECAY_S) == pytest.approx(10.0 * exp(-1.0) + 1.0)
    only_c = WarmSessions()
    only_c.touch("c", 1.0, Demand(0.2, 2.0, 4.0), 0.0)
    assert warm.waits_s(1.0, "b", month_s + RETURN_DECAY_S, 0.1) == pytest.approx(
        only_c.waits_s(1.0, "", 0.0, 0.1)
    )
