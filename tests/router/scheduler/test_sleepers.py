"""Nodes that sleep are candidates at the price of waking them."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from node.protocol.paths import PATH_COUNT_TOKENS
from router.types import Action, NodeView, Queued, RejectKind
from router.waking import WakeNode, Waking
from tests.router.scheduler.fleet import Fleet, a_ticket, agents, granted, rejected

USUAL_S = 20.0


def asleep(view: NodeView, **fields: Any) -> NodeView:
    """The node after it has fallen asleep; requests may wake it."""
    values = {"reachable": False, "silent_since_s": 0.0, "waking": Waking(USUAL_S)}
    return replace(view, **{**values, **fields})


def woken_by(actions: list[Action]) -> list[str]:
    return [each.node_id for each in actions if isinstance(each, WakeNode)]


def test_a_request_waits_for_the_node_that_it_wakes() -> None:
    (awake,) = agents("a")
    fleet = Fleet(asleep(awake))
    waits, wakes = fleet.submit(a_ticket("r"))
    assert isinstance(waits, Queued) and waits.wait_s >= USUAL_S
    assert wakes == WakeNode("a")
    fleet.views = (asleep(awake, waking=Waking(USUAL_S, 0.0)),)
    for fleet.now_s in (1.0, 2.0):
        assert fleet.scheduler.on_time(fleet.moment) == [], "it is woken once"
    fleet.views = (awake,)
    assert granted(fleet.scheduler.on_fleet(fleet.moment)).node_id == "a"


def test_a_node_that_is_awake_and_idle_is_never_worse() -> None:
    first, second = agents("a", "b")
    fleet = Fleet(asleep(first), second)
    lease = granted(fleet.submit(a_ticket("r")))
    assert lease.node_id == "b"


def test_more_work_than_the_waking_takes_wakes_it() -> None:
    first, second = agents("a", "b")
    fleet = Fleet(asleep(first), second)
    granted(fleet.submit(a_ticket("r0", 1000)))
    woken: list[str] = []
    for number in range(1, 12):
        actions = fleet.submit(a_ticket(f"r{number}", 1000))
        woken += woken_by(actions)
        if number == 1:
            assert woken == [], "one that waits is served sooner than the node wakes"
    assert woken[:1] == ["a"]


def test_a_loaded_model_is_not_worth_a_wait_that_is_longer_than_a_load() -> None:
    fleet = Fleet(asleep(agents("a")[0]), *agents("b"))
    assert fleet.term(a_ticket("r"), "a", "wake_s") == USUAL_S
    assert fleet.term(a_ticket("r"), "b", "wake_s") == 0.0
    assert fleet.chosen(a_ticket("r")) == "b"


def test_the_decision_names_the_waking() -> None:
    fleet = Fleet(asleep(agents("a")[0]), *agents("b"))
    reason = fleet.scheduler.explain(a_ticket("r"), fleet.moment).reason
    assert reason.endswith("most of the difference for waking the node.")


def test_less_is_left_of_a_waking_that_goes_on() -> None:
    (awake,) = agents("a")
    fleet = Fleet(asleep(awake, waking=Waking(USUAL_S, 0.0)))
    fleet.now_s = 15.0
    assert fleet.term(a_ticket("r"), "a", "wake_s") == 5.0


def test_one_that_could_not_be_woken_ends_the_wait() -> None:
    (awake,) = agents("a")
    fleet = Fleet(asleep(awake))
    fleet.submit(a_ticket("r"))
    fleet.scheduler.on_fleet(fleet.moment)
    fleet.views = (asleep(awake, waking=None),)
    reject = rejected(fleet.scheduler.on_fleet(fleet.moment))
    assert reject.kind is RejectKind.NO_NODE and "a: It cannot be reached." in reject.reason


@pytest.mark.parametrize(
    "fields",
    [{"waking": None}, {"silent_since_s": None}, {"state": "cordoned"}],
    ids=["may not be woken", "responds, but not as it should", "out of service"],
)
def test_not_every_node_that_is_away_is_woken(fields: dict[str, Any]) -> None:
    fleet = Fleet(asleep(agents("a")[0], **fields))
    rejected(fleet.submit(a_ticket("r")))


def test_a_deadline_before_it_is_awake_is_refused_at_once() -> None:
    fleet = Fleet(asleep(agents("a")[0]))
    actions = fleet.submit(a_ticket("r", deadline_s=5.0))
    assert rejected(actions).kind is RejectKind.DEADLINE


def test_counting_tokens_waits_for_it_too() -> None:
    (awake,) = agents("a")
    fleet = Fleet(asleep(awake))
    ticket = replace(a_ticket("r"), path=PATH_COUNT_TOKENS, chain=None)
    assert woken_by(fleet.submit(ticket)) == ["a"]
    fleet.views = (awake,)
    assert granted(fleet.scheduler.on_fleet(fleet.moment)).node_id == "a"


def test_a_stored_response_wakes_the_node_that_has_it() -> None:
    first, second = agents("a", "b")
    fleet = Fleet(asleep(first), second)
    assert woken_by(fleet.submit(a_ticket("r", pinned_node_id="a"))) == ["a"]


def test_it_is_woken_for_what_it_had_before_the_router_started() -> None:
    view = asleep(agents("a")[0], status=None, remembered=frozenset({"m"}))
    fleet = Fleet(view)
    assert woken_by(fleet.submit(a_ticket("r"))) == ["a"]
    assert fleet.term(a_ticket("r"), "a", "total_s") == USUAL_S
    rejected(Fleet(view).submit(a_ticket("other", model="unknown")))


def test_a_node_that_falls_asleep_is_woken_for_those_that_wait() -> None:
    first, second = agents("a", "b")
    fleet = Fleet(first, second)
    for number in range(3):
        fleet.submit(a_ticket(f"r{number}", 20_000))
    assert len(fleet.scheduler.explain(a_ticket("x"), fleet.moment).nodes) == 2
    fleet.views = (asleep(first), asleep(second))
    fleet.now_s = 1.0
    assert woken_by(fleet.scheduler.on_fleet(fleet.moment)) in (["a"], ["b"])
