"""Tests the actions that are planned from requirements and the reports of nodes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from node.protocol.lifecycle import ModelPolicy
from node.protocol.messages import ModelState, ModelStatus
from router.lifecycle.reconcile import (
    LoadModel,
    PullModel,
    PushPolicies,
    Requirement,
    Step,
    UnloadModel,
    falls_short,
    idle,
    node_for_schedule,
    plan,
    policies_for,
    steps,
)
from router.types import NodeView
from tests.node.protocol import idle_cases
from tests.node.protocol.idle_cases import IdleCase
from tests.router.conftest import model_status, node_view

PIN = Requirement("m", "n", pinned=True)


def view(*models: ModelStatus, node_id: str = "n", **fields: Any) -> NodeView:
    return msgspec.structs.replace(node_view(node_id, *models), **fields)


def on_disk(**fields: Any) -> ModelStatus:
    return model_status("m", state=ModelState.ON_DISK, **fields)


def pushed(view: NodeView, *requirements: Requirement) -> dict[str, PushPolicies]:
    assert view.status is not None
    push = PushPolicies(view.node_id, view.status.instance_id, policies_for(view, requirements))
    return {view.node_id: msgspec.structs.replace(push, in_maintenance=view.state == "maintenance")}


def test_policies_are_pushed_once_for_each_start_of_an_agent_even_none() -> None:
    node = view(on_disk())
    assert plan([node], [], {}) == list(pushed(node).values())
    assert plan([node], [], pushed(node)) == []
    assert node.status is not None
    anew = view(status=msgspec.structs.replace(node.status, instance_id="other"))
    assert [type(action) for action in plan([anew], [], pushed(node))] == [PushPolicies]


def test_a_policy_for_one_node_takes_precedence_over_one_for_all() -> None:
    everywhere, here = (
        Requirement("m", "", keep_alive_s=60.0),
        Requirement("m", "n", keep_alive_s=0.0),
    )
    assert policies_for(view(on_disk()), [here, everywhere]) == {"m": ModelPolicy(False, 0.0)}
    other = view(on_disk(), node_id="other")
    assert policies_for(other, [here, everywhere, PIN]) == {"m": ModelPolicy(False, 60.0)}
    assert policies_for(view(model_status("x")), [everywhere]) == {}


def test_a_pinned_model_is_loaded_where_it_is_whole_and_the_node_is_active() -> None:
    node = view(on_disk())
    assert plan([node], [PIN], pushed(node, PIN)) == [LoadModel("n", "m")]
    for state in ("cordoned", "maintenance"):
        out_of_service = view(on_disk(), state=state)
        assert plan([out_of_service], [PIN], pushed(out_of_service, PIN)) == []


def test_a_node_that_rests_by_another_router_is_left_empty_by_pins_and_schedules() -> None:
    """Else the two would load and unload by turns."""
    node = view(on_disk())
    assert node.status is not None
    in_maintenance = msgspec.structs.replace(node.status, in_maintenance=True)
    out_of_service = msgspec.structs.replace(node, status=in_maintenance)
    assert plan([out_of_service], [PIN], pushed(out_of_service, PIN)) == []
    assert steps(Step(True, "m", "n"), [out_of_service], []) == []
    assert node_for_schedule([out_of_service], "m") == ""
    ready = msgspec.structs.replace(in_maintenance, models=(model_status("m"),))
    leaving = msgspec.structs.replace(node, status=ready)
    assert plan([leaving], [PIN], pushed(leaving, PIN)) == []


@pytest.mark.parametrize(
    ("state", "retry_after_s", "loads"),
    [
        (ModelState.FAILED, 4.0, False),
        (ModelState.FAILED, 0.0, True),
        (ModelState.PULLING, 0.0, False),
        (ModelState.LOADING, 0.0, False),
        (ModelState.DRAINING, 0.0, False),
    ],
)
def test_a_load_is_not_ordered_while_it_cannot_be(
    state: ModelState, retry_after_s: float, loads: bool
) -> None:
    node = view(model_status("m", state=state, retry_after_s=retry_after_s, pinned=True))
    assert (LoadModel("n", "m") in plan([node], [PIN], pushed(node, PIN))) is loads


def test_a_node_that_cannot_be_reached_or_is_no_agent_is_left_alone() -> None:
    away, foreign = view(on_disk(), reachable=False), view(on_disk(), kind="openai")
    assert plan([away, foreign, view(status=None)], [PIN], {}) == []


@pytest.mark.parametrize(
    ("policy", "kept", "short"),
    [
        (ModelPolicy(True), {"pinned": False}, True),
        (ModelPolicy(True), {"pinned": True}, False),
        (ModelPolicy(False, 60.0), {"keep_alive_s": 30.0}, True),
        (ModelPolicy(False, 60.0), {"keep_alive_s": 90.0}, False),
        (ModelPolicy(False, 60.0), {"keep_alive_s": None}, False),
        (ModelPolicy(False, 0.0), {"keep_alive_s": 90.0}, True),
        (ModelPolicy(False, 60.0), {"keep_alive_s": 30.0, "pinned": True}, False),
    ],
)
def test_policies_are_pushed_again_to_a_node_that_keeps_a_model_for_less_long(
    policy: ModelPolicy, kept: dict[str, Any], short: bool
) -> None:
    assert falls_short(model_status("m", **kept), {"m": policy}) is short


def test_under_maintenance_every_model_leaves_that_no_request_uses() -> None:
    leased, free = model_status("a", leases=1), model_status("b", generation=7, pinned=True)
    node = view(leased, free, state="maintenance")
    requirements = [Requirement("b", "n", pinned=True)]
    assert plan([node], requirements, pushed(node, *requirements)) == [
        UnloadModel("n", "b", 7, 0.0)
    ]
    assert policies_for(node, requirements) == {}


@pytest.mark.parametrize("case", idle_cases.CASES, ids=lambda case: case.name)
def test_a_model_leaves_that_was_idle_for_longer_than_it_is_kept(case: IdleCase) -> None:
    node = view(case.status(), status_at_s=100.0)
    expected = [UnloadModel("n", "m", 3, idle_cases.KEEP_ALIVE_S)] if case.is_idle else []
    assert idle(node, 100.0, frozenset()) == expected
    assert idle(node, 100.0, frozenset({"m"})) == []


def test_a_model_is_idle_for_as_long_as_its_node_has_reported_nothing_else() -> None:
    model = model_status("m", idle_s=50.0, keep_alive_s=60.0, generation=3)
    node = view(model, status_at_s=100.0)
    assert idle(node, 109.0, frozenset()) == []
    assert idle(node, 110.0, frozenset()) == [UnloadModel("n", "m", 3, 60.0)]
    assert idle(view(model, status_at_s=100.0, reachable=False), 110.0, frozenset()) == []


def test_a_model_for_any_node_stays_where_it_is_else_goes_where_memory_is_free() -> None:
    empty, full = view(on_disk(), node_id="a"), view(on_disk(), node_id="b")
    assert full.status is not None
    full = msgspec.structs.replace(
        full, status=msgspec.structs.replace(full.status, memory_leased_bytes=1 << 20)
    )
    loaded = view(model_status("m"), node_id="c", status=None)
    assert node_for_schedule([full, empty, loaded], "m") == "a"
    assert node_for_schedule([full, empty], "m", "b") == "b"
    assert node_for_schedule([full, view(model_status("m"), node_id="c")], "m") == "c"
    assert node_for_schedule([view(on_disk(), state="cordoned")], "m") == ""


def stuck(**fields: Any) -> ModelStatus:
    return model_status("m", state=ModelState.PULLING, **{"wants_peer": True, **fields})


def pulls(*fleet: NodeView) -> list[PullModel]:
    return [action for action in plan(fleet, [], {}) if isinstance(action, PullModel)]


def test_a_copy_that_was_cut_short_goes_on_once_somebody_has_the_model() -> None:
    to, source = view(stuck()), view(on_disk(), node_id="source")
    assert pulls(to) == []
    assert pulls(to, source) == [PullModel("n", "m", ("source",))]
    busy = view(model_status("m", leases=3), node_id="busy")
    assert pulls(busy, to, source) == [PullModel("n", "m", ("source", "busy"))]
    cordoned = msgspec.structs.replace(to, state="cordoned")
    assert pulls(cordoned, source) == [PullModel("n", "m", ("source",))]


def test_a_copy_does_not_go_on_where_it_cannot_or_should_not() -> None:
    source = view(on_disk(), node_id="source")
    for model in (stuck(retry_after_s=1.0), stuck(wants_peer=False)):
        assert pulls(view(model), source) == []
    assert pulls(view(stuck(), state="maintenance"), source) == []
    for no_source in (
        view(stuck(), node_id="source"),
        view(model_status("other"), node_id="source"),
        view(on_disk(), node_id="source", reachable=False),
        view(on_disk(), node_id="source", kind="openai"),
        view(on_disk(), node_id="source", url="http://127.0.0.1:8801"),
    ):
        assert pulls(view(stuck()), no_source) == []
