"""Which models may come to a node, and for whom others make room."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import replace as changed
from math import inf

import pytest
from msgspec.structs import replace

from node.protocol.messages import ModelState, ModelStatus
from router.scheduler.residency import NO_ROOM
from router.scheduler.scheduler import Scheduler
from router.simulator.fleet import NodeSpec, spread
from router.simulator.node import Node
from router.simulator.ours import Ours
from router.simulator.policies import Policy
from router.simulator.replay import play
from router.simulator.workload import Workload
from router.types import CORDONED, Grant, Lease, NodeView, RejectKind
from tests.router.conftest import node_view
from tests.router.scheduler.fleet import Fleet, asking, cached_model, granted, queued, rejected
from tests.router.simulator.building import talks, workload

MIN_RESIDENCY_S, MAX_SWAP_WAIT_S = 30.0, 120.0


def node(name: str, *models: ModelStatus, budget: int = 10) -> NodeView:
    view = node_view(name, *models)
    assert view.status is not None
    used = sum(each.weight_bytes for each in models if each.state is not ModelState.ON_DISK)
    status = replace(
        view.status,
        memory_budget_bytes=budget,
        memory_leased_bytes=used,
        min_residency_s=MIN_RESIDENCY_S,
        max_swap_wait_s=MAX_SWAP_WAIT_S,
    )
    return replace(view, status=status)


def there(name: str, **fields: object) -> ModelStatus:
    return cached_model(name, weight_bytes=8, **fields)  # type: ignore[arg-type]


def away(name: str, **fields: object) -> ModelStatus:
    return there(name, state=ModelState.ON_DISK, **fields)


def begun(fleet: Fleet, name: str, model: str) -> Lease:
    """A lease whose answer has begun."""
    lease = fleet.lease(asking(name, model=model))
    fleet.first(lease)
    return lease


def grants(actions: object) -> list[str]:
    assert isinstance(actions, list)
    return [each.lease.ticket_id for each in actions if isinstance(each, Grant)]


def on_time(fleet: Fleet, now_s: float) -> list[str]:
    fleet.now_s = now_s
    return grants(fleet.scheduler.on_time(fleet.moment))


def test_a_node_where_the_model_never_fits_beside_what_is_pinned_is_out_of_the_question() -> None:
    fleet = Fleet(node("a", there("m", pinned=True), away("x")))
    assert (
        fleet.scheduler.explain(asking("1", model="x"), fleet.moment).nodes[0].excluded == NO_ROOM
    )
    assert rejected(fleet.ask(asking("1", model="x"))).kind is RejectKind.NO_NODE
    fleet.views = (node("a", there("m"), away("x")),)
    assert fleet.lease(asking("2", model="x")).node_id == "a"


def test_what_a_load_takes_counts_rather_than_the_weights() -> None:
    fleet = Fleet(node("a", away("x", memory_bytes=11)))
    assert rejected(fleet.ask(asking("1", model="x"))).kind is RejectKind.NO_NODE


def test_a_load_costs_what_the_node_says_that_the_last_one_took_and_what_is_left_of_one() -> None:
    fleet = Fleet(node("a", away("x", load_s=7.0)))
    assert fleet.term(asking("1", model="x"), "a", "load_s") == 7.0
    loading = there("x", load_s=7.0)
    loading = replace(loading, state=ModelState.LOADING, progress=0.75)
    fleet.views = (node("a", loading),)
    assert fleet.term(asking("1", model="x"), "a", "load_s") == 1.75


def test_a_busy_model_is_not_evicted_and_goes_on_while_another_one_is_waited_for() -> None:
    fleet = Fleet(node("a", there("m"), away("x")))
    lease = begun(fleet, "1", "m")
    queued(fleet.ask(asking("2", model="x")))
    assert "3" in grants(fleet.ask(asking("3", model="m")))
    assert grants(fleet.done(lease)) == []


def test_a_model_stays_for_its_minimum_residency_and_the_queue_wakes_at_its_end() -> None:
    fleet = Fleet(node("a", away("m"), away("x")))
    fleet.scheduler.on_fleet(fleet.moment)
    fleet.now_s = 5.0
    fleet.views = (node("a", there("m", generation=1), away("x")),)
    fleet.scheduler.on_fleet(fleet.moment)
    fleet.now_s = 6.0
    queued(fleet.ask(asking("1", model="x")))
    end_s = 5.0 + MIN_RESIDENCY_S
    assert on_time(fleet, end_s - 0.5) == []
    assert fleet.scheduler.wake_s() == pytest.approx(end_s, abs=0.01)
    assert on_time(fleet, end_s) == ["1"]


def test_a_model_that_is_loaded_anew_begins_its_residency_anew() -> None:
    fleet = Fleet(node("a", there("m", generation=1), away("x")))
    fleet.scheduler.on_fleet(fleet.moment)
    fleet.now_s = 50.0
    fleet.views = (node("a", there("m", generation=2), away("x")),)
    queued(fleet.ask(asking("1", model="x")))
    assert on_time(fleet, 79.0) == []
    assert on_time(fleet, 80.0) == ["1"]


def test_who_has_waited_too_long_closes_the_node_to_the_model_in_the_way() -> None:
    fleet = Fleet(node("a", there("m"), away("x")))
    lease = begun(fleet, "1", "m")
    queued(fleet.ask(asking("2", model="x")))
    fleet.now_s = MAX_SWAP_WAIT_S
    queued(fleet.ask(asking("3", model="m")))
    assert grants(fleet.done(lease)) == ["2"]


def test_a_node_is_open_again_once_the_one_who_waited_has_left() -> None:
    fleet = Fleet(node("a", there("m"), away("x")))
    begun(fleet, "1", "m")
    queued(fleet.ask(asking("2", model="x")))
    assert on_time(fleet, MAX_SWAP_WAIT_S) == []
    fleet.scheduler.on_left("2", fleet.moment)
    assert granted(fleet.ask(asking("3", model="m"))).node_id == "a"


def test_a_cordoned_node_makes_no_room() -> None:
    closed = node("a", there("m"), away("x"))
    fleet = Fleet(replace(closed, state=CORDONED))
    assert rejected(fleet.ask(asking("1", model="x"))).kind is RejectKind.NO_NODE


def in_turn(models: int, sessions: int, gap_s: float) -> Workload:
    """Sessions of one model each, A B A B."""
    made = workload(talks(sessions, 6), gap_s=gap_s)
    scripts = tuple(
        changed(
            script,
            calls=tuple(changed(each, model="abc"[number % models]) for each in script.calls),
        )
        for number, script in enumerate(made.scripts)
    )
    return changed(made, scripts=scripts, models=tuple("abc"[:models]))


def played(made: Workload, spec: NodeSpec) -> tuple[list[float], list[int], float]:
    """Times to the first token, loads by node, and the end."""
    nodes: list[Node] = []

    def ours(made_nodes: Sequence[Node], chance: random.Random) -> Policy:
        nodes.extend(made_nodes)
        return Ours(nodes, chance)

    jobs = play(made, spread([spec]), ours).jobs
    ends_s = max(each.ended_s for each in jobs)
    return [each.first_s - each.arrived_s for each in jobs], [n.loads for n in nodes], ends_s


@pytest.mark.parametrize(
    ("models", "nodes", "sessions", "gap_s"), [(2, 1, 20, 8.0), (3, 2, 24, 5.0)]
)
def test_models_that_do_not_fit_together_are_served_collated(
    models: int, nodes: int, sessions: int, gap_s: float
) -> None:
    made = in_turn(models, sessions, gap_s)
    spec = NodeSpec(count=nodes)
    waits_s, loads, end_s = played(made, spec)
    first_come = replace(spec, min_residency_s=0.0, max_swap_wait_s=0.0)
    others_s, _, _ = played(made, first_come)
    assert statistics.mean(waits_s) <= 0.5 * statistics.mean(others_s)
    assert max(loads) <= end_s / spec.min_residency_s
    assert max(waits_s) <= spec.max_swap_wait_s + spec.min_residency_s + 2 * spec.load_s
    assert inf not in waits_s


def test_a_breaker_opens_lets_one_trial_through_and_closes_when_that_is_served() -> None:
    fleet = Fleet(node("a", there("m")), node("b", there("m")))

    def states() -> list[tuple[str, str, int]]:
        rows = fleet.scheduler.breakers(fleet.now_s)
        return [(each.node_id, each.state, each.failures) for each in rows]

    failed = fleet.lease(asking("1", pinned_node_id="a", model="m"))
    assert states() == []
    fleet.done(failed, failed=True)
    assert states() == [("a", "open", 1)]
    (row,) = fleet.scheduler.breakers(fleet.now_s)
    fleet.now_s = row.until_s
    assert states() == [("a", "half_open", 1)]
    trial = fleet.lease(asking("2", pinned_node_id="a", model="m"))
    assert fleet.term(asking("3", model="m"), "a", "blame_s") > 0.0
    fleet.first(trial)
    fleet.done(trial, served=True)
    assert states() == []
    assert fleet.term(asking("3", model="m"), "a", "blame_s") == 0.0
    assert isinstance(fleet.scheduler, Scheduler)
