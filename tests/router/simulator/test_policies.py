"""Tests the choices of the other routers' policies."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from router.simulator.fleet import equal_fleet
from router.simulator.node import Node
from router.simulator.policies import (
    Dispatch,
    LeastInFlight,
    RoundRobin,
    SendAtOnce,
    SessionPin,
    TextTree,
)
from router.simulator.workload import SimulatedCall
from tests.router.simulator.building import call, job


def nodes(count: int) -> list[Node]:
    return [Node(number, spec, ("",)) for number, spec in enumerate(equal_fleet(count))]


def of_session(session: str, path: Sequence[int] = (1,)) -> SimulatedCall:
    return replace(call(0, path), session=session)


def test_round_robin_chooses_each_node_in_turn() -> None:
    policy = RoundRobin(nodes(3), random.Random(1))
    chosen = [policy.choose(call(number, (1,))) for number in range(6)]
    assert chosen[:3] == chosen[3:]
    assert sorted(chosen[:3]) == [0, 1, 2]


def test_least_in_flight_chooses_the_node_with_fewest_and_any_of_equals() -> None:
    fleet = nodes(3)
    policy = LeastInFlight(fleet, random.Random(1))
    fleet[0].submit(job(1, (1,)), 0.0)
    chosen = Counter(policy.choose(call(2, (2,))) for _ in range(100))
    assert set(chosen) == {1, 2}


def test_a_pinned_session_stays_and_new_ones_go_where_fewest_are() -> None:
    policy = SessionPin(nodes(2), random.Random(1))
    first = policy.choose(of_session("a"))
    assert policy.choose(of_session("b")) == 1 - first
    assert {policy.choose(of_session("a")) for _ in range(5)} == {first}


def test_without_sessions_calls_that_begin_alike_are_pinned_together() -> None:
    policy = SessionPin(nodes(2), random.Random(1))
    assert policy.choose(of_session("", (1, 2))) == policy.choose(of_session("", (1, 3)))
    assert policy.choose(of_session("", (1, 2))) != policy.choose(of_session("", (4, 2)))


def test_the_text_tree_follows_the_longest_match_and_else_the_smallest_tree() -> None:
    policy = TextTree(nodes(2), random.Random(1))
    first = policy.choose(call(1, (1, 2, 3)))
    assert policy.choose(call(2, (7, 8))) == 1 - first
    assert policy.choose(call(3, (1, 2, 3, 4, 5))) == first
    assert policy.choose(call(4, (7, 8, 9))) == 1 - first
    # A quarter is too short a match: the smaller tree, which is the other one's.
    assert policy.choose(call(5, (1, 20, 21, 22))) == 1 - first


def test_the_text_tree_drops_its_match_where_counts_differ_much() -> None:
    fleet = nodes(2)
    policy = TextTree(fleet, random.Random(1))
    first = policy.choose(call(0, (1, 2)))
    for number in range(1, 65):
        fleet[first].submit(job(number, (1, 2)), 0.0)
    assert policy.choose(call(90, (1, 2, 3))) == first
    fleet[first].submit(job(65, (1, 2)), 0.0)
    assert policy.choose(call(91, (1, 2, 3))) == 1 - first


def test_a_tree_that_is_too_large_forgets_leaves() -> None:
    class Small(TextTree):
        MAX_TOKENS = 300

    policy = Small(nodes(1), random.Random(1))
    policy.choose(call(1, (1, 2)))
    policy.choose(call(2, (5, 6)))
    sent = policy._sent[0]
    assert sent.tokens == 300
    assert sent.matched(call(3, (1, 2))) == 100


def test_a_baseline_sends_each_call_at_once() -> None:
    policy = SendAtOnce(RoundRobin(nodes(1), random.Random(1)))
    one = job(1, (1,))
    assert policy.on_arrival(one, 0.0) == [Dispatch(one, 0)]
    assert policy.wake_s() is None
