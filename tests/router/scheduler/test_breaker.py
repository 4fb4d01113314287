"""When the breaker of a model on a node opens, for how long, and what closes it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from router.scheduler.breaker import (
    FIRST_OPEN_S,
    MAX_BACKOFF_S,
    MAX_OPEN_S,
    MAX_RECENT,
    MIN_BACKOFF_S,
    MIN_OUTCOMES,
    RECENT_S,
    Circuit,
)
from router.scheduler.cost import FAILURE_PENALTY_S
from router.states import BreakerState
from router.types import Failure, Lease
from tests.router.conftest import model_status, node_status, node_view
from tests.router.scheduler.fleet import Fleet, a_ticket, granted, rejected, usage_record


def fail(circuit: Circuit, now_s: float) -> float:
    """A request that was sent there just now fails. Returns for how long that opens it."""
    circuit.fail(now_s, now_s)
    return circuit.until_s - now_s


def opened_for_s(circuit: Circuit, now_s: float) -> float:
    """It fails, and once its time is over, it answers."""
    length_s = fail(circuit, now_s)
    assert circuit.serve(circuit.until_s)
    return length_s


def test_failures_in_a_row_open_it_for_twice_as_long_each_up_to_a_limit() -> None:
    circuit, now_s, lengths_s = Circuit(), 0.0, []
    for _ in range(40):
        lengths_s.append(fail(circuit, now_s))
        now_s = circuit.until_s
    assert lengths_s[:7] == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert set(lengths_s[5:]) == {MAX_OPEN_S}


def test_one_that_seldom_fails_is_closed_by_its_next_answer_and_begins_anew() -> None:
    circuit = Circuit()
    for number in range(10):
        now_s = 10.0 * number
        for _ in range(2):
            circuit.serve(now_s)
        assert fail(circuit, now_s) == FIRST_OPEN_S
        assert circuit.state(now_s) is BreakerState.OPEN
        assert circuit.serve(now_s + 0.1)
        assert circuit.state(now_s + 0.1) is BreakerState.CLOSED


def test_one_that_fails_every_second_request_opens_for_longer_though_it_answers_between() -> None:
    circuit, now_s, lengths_s = Circuit(), 0.0, []
    for _ in range(12):
        lengths_s.append(opened_for_s(circuit, now_s))
        now_s = circuit.until_s
    # Two failures and an answer are too few to tell.
    assert lengths_s == [1.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0, 30.0, 30.0, 30.0]


def test_one_that_fails_every_third_request_does_not() -> None:
    circuit, now_s = Circuit(), 0.0
    for _ in range(20):
        assert opened_for_s(circuit, now_s) == FIRST_OPEN_S
        now_s = circuit.until_s
        circuit.serve(now_s)


def test_while_it_fails_often_no_answer_closes_it_before_its_time() -> None:
    circuit = Circuit()
    for _ in range(MIN_OUTCOMES):
        circuit.fail(0.0, 1.0)
    assert not circuit.serve(1.5)
    assert circuit.state(1.5) is BreakerState.OPEN
    assert circuit.state(2.0) is BreakerState.HALF_OPEN
    assert circuit.serve(2.0)
    assert circuit.state(2.0) is BreakerState.CLOSED


@pytest.mark.parametrize(("answers", "is_closed"), [(0, True), (1, False), (4, False), (5, True)])
def test_half_of_the_recent_outcomes_are_often(answers: int, is_closed: bool) -> None:
    circuit = Circuit()
    for _ in range(answers):
        circuit.serve(0.0)
    for _ in range(4):
        circuit.fail(0.0, 1.0)
    assert circuit.counts() == (4, 4 + answers)
    assert circuit.serve(1.5) is is_closed


def test_what_fails_together_opens_it_once() -> None:
    circuit = Circuit()
    for number in range(8):
        circuit.fail(0.0, 10.0 + 0.01 * number)
    assert circuit.until_s == 10.0 + FIRST_OPEN_S
    circuit.trial = "t"
    circuit.fail(0.0, 11.5)
    assert (circuit.trial, circuit.until_s) == ("t", 11.0)
    assert fail(circuit, 12.0) == 2.0 * FIRST_OPEN_S
    assert circuit.counts() == (10, 10)


def test_an_answer_from_before_it_opened_does_not_close_it() -> None:
    circuit = Circuit()
    fail(circuit, 5.0)
    assert not circuit.serve(4.9)
    assert fail(circuit, 6.0) == 2.0 * FIRST_OPEN_S
    assert circuit.serve(6.0)


def test_outcomes_are_forgotten_after_their_time_and_above_their_number() -> None:
    circuit = Circuit()
    for number in range(2 * MAX_RECENT):
        circuit.fail(0.0, float(number) / 100.0)
    assert circuit.counts() == (MAX_RECENT, MAX_RECENT)
    later_s = 2.0 + RECENT_S
    assert circuit.serve(later_s)
    assert circuit.counts() == (0, 1)
    assert fail(circuit, later_s) == FIRST_OPEN_S
    for _ in range(2 * MAX_RECENT):
        circuit.serve(later_s)
    assert circuit.counts() == (0, MAX_RECENT)


# --- requests that are rejected ---


@pytest.mark.parametrize(
    ("retry_after_s", "backoff_s"),
    [(None, MIN_BACKOFF_S), (0, MIN_BACKOFF_S), (7, 7.0), (3600, MAX_BACKOFF_S)],
)
def test_a_rejection_keeps_other_requests_away_for_its_retry_after(
    retry_after_s: int | None, backoff_s: float
) -> None:
    circuit = Circuit()
    circuit.back_off(10.0, retry_after_s)
    assert circuit.blocks(10.0 + backoff_s - 0.01)
    assert not circuit.blocks(10.0 + backoff_s)
    assert circuit.state(10.0) is BreakerState.CLOSED and circuit.counts() == (0, 0)


def test_of_several_rejections_the_longest_wait_counts() -> None:
    circuit = Circuit()
    circuit.back_off(0.0, 30)
    circuit.back_off(1.0, None)
    assert circuit.blocks(29.0)
    circuit.back_off(5.0, 40)
    assert circuit.blocks(44.0) and not circuit.blocks(45.0)


def test_only_an_answer_to_a_later_request_ends_the_wait() -> None:
    circuit = Circuit()
    assert not circuit.end_back_off(1.0)
    circuit.back_off(2.0, 30)
    assert not circuit.end_back_off(1.0)
    assert circuit.blocks(3.0)
    assert circuit.end_back_off(3.0)
    assert not circuit.blocks(3.0)


def test_a_wait_neither_opens_nor_closes_a_breaker() -> None:
    circuit = Circuit()
    fail(circuit, 0.0)
    circuit.back_off(0.5, None)
    assert circuit.blocks(1.2)
    assert circuit.state(1.2) is BreakerState.HALF_OPEN
    assert fail(circuit, 1.6) == 2.0 * FIRST_OPEN_S


# --- in the scheduler ---


def states(fleet: Fleet) -> list[tuple[str, str, int, int]]:
    rows = fleet.scheduler.breakers(fleet.now_s)
    return [(each.node_id, each.state, each.failures, each.outcomes) for each in rows]


def failure_penalty_s(fleet: Fleet) -> float:
    return fleet.term(a_ticket("x"), "a", "failure_penalty_s")


def on_a(fleet: Fleet, name: str) -> Lease:
    return fleet.lease(a_ticket(name, pinned_node_id="a"))


def test_half_open_it_lets_one_request_try_and_closes_when_that_is_served() -> None:
    fleet = Fleet(node_view("a"), node_view("b"))
    lease = on_a(fleet, "1")
    assert states(fleet) == []
    fleet.done(lease, failed=True)
    assert states(fleet) == [("a", "open", 1, 1)]
    assert failure_penalty_s(fleet) == FAILURE_PENALTY_S
    fleet.now_s = FIRST_OPEN_S
    assert states(fleet) == [("a", "half_open", 1, 1)]
    assert failure_penalty_s(fleet) == 0.0
    trial = on_a(fleet, "2")
    assert failure_penalty_s(fleet) == FAILURE_PENALTY_S
    fleet.first(trial)
    fleet.done(trial, served=True)
    assert states(fleet) == []
    assert failure_penalty_s(fleet) == 0.0


def test_a_trial_whose_caller_leaves_lets_the_next_one_try() -> None:
    fleet = Fleet(node_view("a"), node_view("b"))
    fleet.done(on_a(fleet, "1"), failed=True)
    fleet.now_s = FIRST_OPEN_S
    trial = on_a(fleet, "2")
    assert failure_penalty_s(fleet) == FAILURE_PENALTY_S
    fleet.done(trial)
    assert states(fleet) == [("a", "half_open", 1, 1)]
    assert failure_penalty_s(fleet) == 0.0


def test_a_node_half_of_whose_verdicts_are_failures_is_left_for_longer() -> None:
    fleet = Fleet(node_view("a"), node_view("b"))
    for number in range(6):
        lease = on_a(fleet, f"{number}")
        fleet.done(lease)
        fleet.judge(lease, failed=bool(number % 2), usage=usage_record(lease, 100))
    (row,) = fleet.scheduler.breakers(fleet.now_s)
    assert (row.failures, row.outcomes, row.until_s) == (3, 6, 2.0 * FIRST_OPEN_S)
    fleet.now_s = row.until_s
    lease = on_a(fleet, "trial")
    fleet.done(lease)
    fleet.judge(lease, usage=usage_record(lease, 100))
    fleet.done(on_a(fleet, "again"), failed=True)
    (row,) = fleet.scheduler.breakers(fleet.now_s)
    assert (row.failures, row.outcomes) == (4, 8)
    assert row.until_s - fleet.now_s == 4.0 * FIRST_OPEN_S


def test_an_agent_that_began_anew_has_failed_nobody_yet() -> None:
    fleet = Fleet(node_view("a"), node_view("b"))
    fleet.done(on_a(fleet, "1"), failed=True)
    status = node_status(model_status(), node_id="a", instance_id="anew")
    fleet.views = (replace(fleet.views[0], status=status), fleet.views[1])
    assert failure_penalty_s(fleet) == 0.0
    assert states(fleet) == []


def rejected_lease(fleet: Fleet, lease: Lease, retry_after_s: int | None = None) -> Lease:
    """The lease that its ticket gets instead."""
    actions = fleet.scheduler.on_failed(lease, fleet.moment, Failure.BUSY, retry_after_s)
    return granted(actions)


def test_a_node_that_rejects_a_request_gets_no_more_until_its_retry_after_has_passed() -> None:
    fleet = Fleet(node_view("a"))
    lease = fleet.lease(a_ticket("1"))
    fleet.views = (*fleet.views, node_view("b"))
    assert rejected_lease(fleet, lease, 7).node_id == "b"
    assert states(fleet) == []
    assert failure_penalty_s(fleet) == FAILURE_PENALTY_S
    for second in range(7):
        fleet.now_s = float(second)
        assert fleet.lease(a_ticket(f"at {second}")).node_id == "b"
    fleet.now_s = 7.0
    assert failure_penalty_s(fleet) == 0.0
    assert fleet.chosen(a_ticket("then")) == "a"


def test_the_only_node_is_tried_again_despite_its_retry_after() -> None:
    fleet = Fleet(node_view("a"))
    for number in range(2):
        lease = fleet.lease(a_ticket(f"{number}"))
        args = lease, fleet.moment, Failure.BUSY, 7
        rejected(fleet.scheduler.on_failed(*args))
    served = fleet.lease(a_ticket("then"))
    assert failure_penalty_s(fleet) == FAILURE_PENALTY_S
    fleet.done(served, served=True)
    assert failure_penalty_s(fleet) == 0.0


def test_an_answer_that_had_begun_before_does_not_end_the_wait() -> None:
    fleet = Fleet(node_view("a"), node_view("b"))
    running = on_a(fleet, "1")
    fleet.now_s = 1.0
    fleet.views = (fleet.views[0],)
    late = fleet.lease(a_ticket("2"))
    fleet.views = (*fleet.views, node_view("b"))
    assert rejected_lease(fleet, late, 30).node_id == "b"
    fleet.done(running, served=True)
    assert failure_penalty_s(fleet) == FAILURE_PENALTY_S


def test_a_trial_that_is_rejected_leaves_the_breaker_as_it_is() -> None:
    fleet = Fleet(node_view("a"), node_view("b"))
    fleet.done(on_a(fleet, "1"), failed=True)
    fleet.now_s = FIRST_OPEN_S
    trial = on_a(fleet, "2")
    args = trial, fleet.moment, Failure.BUSY, None
    rejected(fleet.scheduler.on_failed(*args))
    assert states(fleet) == [("a", "half_open", 1, 1)]
    assert failure_penalty_s(fleet) == FAILURE_PENALTY_S
    fleet.now_s += MIN_BACKOFF_S
    assert failure_penalty_s(fleet) == 0.0
