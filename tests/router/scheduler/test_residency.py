"""Which models may be loaded on a node, and for which others are evicted."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import replace as changed
from math import inf

import pytest
from msgspec.structs import replace

from node.protocol.messages import ModelState, ModelStatus
from router.scheduler.cost import TIE_S
from router.scheduler.node_state import NodeBook, Ready
from router.scheduler.rejects import RETRY_AFTER_S
from router.scheduler.residency import OldestTicket, displacement, models_to_close
from router.simulator.fleet import NodeSpec, spread
from router.simulator.node import Node
from router.simulator.policies import Policy
from router.simulator.replay import play
from router.simulator.shipped_scheduler import ShippedScheduler
from router.simulator.workload import Workload
from router.states import CORDONED, MAINTENANCE
from router.types import Grant, Lease, NodeView, RejectKind
from tests.node.protocol import swap_cases
from tests.node.protocol.swap_cases import SwapCase
from tests.router.conftest import node_view
from tests.router.scheduler.fleet import Fleet, a_ticket, cached_model, granted, queued, rejected
from tests.router.simulator.building import talks, workload

GIB = 1 << 30
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


def resident(name: str, **fields: object) -> ModelStatus:
    return cached_model(name, weight_bytes=8, **fields)  # type: ignore[arg-type]


def on_disk(name: str, **fields: object) -> ModelStatus:
    return resident(name, state=ModelState.ON_DISK, **fields)


def started_lease(fleet: Fleet, name: str, model: str) -> Lease:
    """A lease whose answer has begun."""
    lease = fleet.lease(a_ticket(name, model=model))
    fleet.first(lease)
    return lease


def grants(actions: object) -> list[str]:
    assert isinstance(actions, list)
    return [each.lease.ticket_id for each in actions if isinstance(each, Grant)]


def on_time(fleet: Fleet, now_s: float) -> list[str]:
    fleet.now_s = now_s
    return grants(fleet.scheduler.on_time(fleet.moment))


@pytest.mark.parametrize("case", swap_cases.CASES, ids=lambda case: case.name)
def test_the_router_predicts_the_swap_rule(case: SwapCase) -> None:
    now_s = swap_cases.NOW_S
    models = [
        resident(
            each.name,
            memory_bytes=each.memory_bytes,
            unload_cost_s=each.unload_cost_s,
            pinned=each.pinned,
        )
        for each in case.residents
    ]
    model = on_disk("x", memory_bytes=case.needed_bytes)
    view = node("a", *models, model, budget=swap_cases.TOTAL_BYTES)
    assert view.status is not None
    status = replace(
        view.status,
        memory_leased_bytes=sum(each.memory_bytes for each in case.residents),
    )
    book = NodeBook(
        status=status,
        rows={each.name: each.leases for each in case.residents if each.leases},
        ready={
            each.name: Ready(1, each.evictable_s - swap_cases.MIN_RESIDENCY_S)
            for each in case.residents
        },
    )
    needed = displacement(book, status, model, now_s)
    unload = needed.models if needed.can_unload(now_s) else ()
    assert tuple(each.name for each in unload) == case.unload
    if not unload:
        waits = [OldestTicket("x", now_s - case.waited_s)]
        closed, _ = models_to_close(waits, {"a": (book, status)}, now_s)
        assert closed.get("a", frozenset()) == frozenset(case.closed)


def test_a_node_where_the_model_never_fits_beside_what_is_pinned_is_out_of_the_question() -> None:
    fleet = Fleet(node("a", resident("m", pinned=True), on_disk("x")))
    rejection = rejected(fleet.submit(a_ticket("1", model="x")))
    assert fleet.scheduler.explain(a_ticket("1", model="x"), fleet.moment).nodes[0].excluded
    assert (rejection.kind, rejection.retry_after_s) == (RejectKind.NOT_TAKEN, None)
    fleet.views = (node("a", resident("m"), on_disk("x")),)
    assert fleet.lease(a_ticket("2", model="x")).node_id == "a"


def test_what_a_load_takes_counts_rather_than_the_weights() -> None:
    fleet = Fleet(node("a", on_disk("x", memory_bytes=11)))
    assert rejected(fleet.submit(a_ticket("1", model="x"))).kind is RejectKind.NOT_TAKEN


def test_a_rejected_model_that_is_too_large_reports_what_it_lacks_and_what_to_do() -> None:
    fleet = Fleet(node("a", on_disk("x", memory_bytes=24 * GIB), budget=16 * GIB))
    reason = rejected(fleet.submit(a_ticket("1", model="x"))).reason
    assert "a: It needs 24.0 GiB for the model, and its memory limit is 16.0 GiB: 8.0 GiB" in reason
    assert "raise its --memory-limit or choose a smaller model" in reason
    assert "unpin" not in reason


def test_a_model_without_room_beside_what_is_pinned_is_rejected_with_that_reason() -> None:
    pinned = resident("m", memory_bytes=10 * GIB, pinned=True)
    fleet = Fleet(node("a", pinned, on_disk("x", memory_bytes=8 * GIB), budget=16 * GIB))
    reason = rejected(fleet.submit(a_ticket("1", model="x"))).reason
    assert "10.0 GiB of which are pinned: 2.0 GiB too few; unpin another model" in reason


@pytest.mark.parametrize(("state", "words"), [(CORDONED, "cordoned"), (MAINTENANCE, "maintenance")])
def test_a_node_that_rests_is_named_in_a_rejection_without_retry_after(
    state: str, words: str
) -> None:
    fleet = Fleet(replace(node("a", resident("x")), state=state))
    rejection = rejected(fleet.submit(a_ticket("1", model="x")))
    assert (rejection.kind, rejection.retry_after_s) == (RejectKind.NOT_TAKEN, None)
    assert words in rejection.reason


def test_where_one_node_rests_and_another_is_away_it_helps_to_try_again() -> None:
    cordoned = replace(node("a", resident("x")), state=CORDONED)
    fleet = Fleet(cordoned, replace(node("b", resident("x")), reachable=False))
    rejection = rejected(fleet.submit(a_ticket("1", model="x")))
    assert (rejection.kind, rejection.retry_after_s) == (RejectKind.NO_NODE, RETRY_AFTER_S)
    assert "a: It is cordoned." in rejection.reason
    assert "b: It cannot be reached." in rejection.reason


def test_a_load_costs_the_reported_time_of_the_last_one_and_what_is_left_of_one() -> None:
    fleet = Fleet(node("a", on_disk("x", load_s=7.0)))
    assert fleet.term(a_ticket("1", model="x"), "a", "load_s") == 7.0
    loading = resident("x", load_s=7.0)
    loading = replace(loading, state=ModelState.LOADING, progress=0.75)
    fleet.views = (node("a", loading),)
    assert fleet.term(a_ticket("1", model="x"), "a", "load_s") == 1.75


def test_a_busy_model_is_not_evicted_and_goes_on_while_another_one_is_waited_for() -> None:
    fleet = Fleet(node("a", resident("m"), on_disk("x")))
    lease = started_lease(fleet, "1", "m")
    queued(fleet.submit(a_ticket("2", model="x")))
    assert "3" in grants(fleet.submit(a_ticket("3", model="m")))
    assert grants(fleet.done(lease)) == []


def test_what_is_loaded_goes_on_while_another_model_is_loaded_beside_it() -> None:
    loading = cached_model("x", state=ModelState.ON_DISK, load_s=30.0)
    fleet = Fleet(node("a", cached_model(), loading, budget=1 << 40))
    prefill_s = fleet.term(a_ticket("1", 1000, model="x"), "a", "prefill_s")
    assert fleet.lease(a_ticket("1", 1000, model="x")).node_id == "a"
    fleet.now_s = 1.0
    assert fleet.term(a_ticket("2", 1000), "a", "queue_s") == 0.0
    assert started_lease(fleet, "2", "m").granted_s == 1.0
    queue_s = fleet.term(a_ticket("3", 1000, model="x"), "a", "queue_s")
    assert queue_s == pytest.approx(29.0 + prefill_s)
    # Once it is there, its prefill is ahead of all.
    fleet.now_s = 20.0
    fleet.views = (node("a", cached_model(), cached_model("x", generation=1), budget=1 << 40),)
    for model in ("m", "x"):
        queue_s = fleet.term(a_ticket("4", 1000, model=model), "a", "queue_s")
        assert queue_s == pytest.approx(prefill_s)


def test_a_model_stays_for_its_minimum_residency_and_the_queue_wakes_at_its_end() -> None:
    fleet = Fleet(node("a", on_disk("m"), on_disk("x")))
    fleet.scheduler.on_fleet(fleet.moment)
    fleet.now_s = 5.0
    fleet.views = (node("a", resident("m", generation=1), on_disk("x")),)
    fleet.scheduler.on_fleet(fleet.moment)
    fleet.now_s = 6.0
    queued(fleet.submit(a_ticket("1", model="x")))
    end_s = 5.0 + MIN_RESIDENCY_S
    assert on_time(fleet, end_s - 0.5) == []
    assert fleet.scheduler.wake_s() == pytest.approx(end_s, abs=0.01)
    assert on_time(fleet, end_s) == ["1"]


def test_a_model_that_is_loaded_anew_begins_its_residency_anew() -> None:
    fleet = Fleet(node("a", resident("m", generation=1), on_disk("x")))
    fleet.scheduler.on_fleet(fleet.moment)
    fleet.now_s = 50.0
    fleet.views = (node("a", resident("m", generation=2), on_disk("x")),)
    queued(fleet.submit(a_ticket("1", model="x")))
    assert on_time(fleet, 79.0) == []
    assert on_time(fleet, 80.0) == ["1"]


def test_a_request_that_has_waited_too_long_closes_the_node_to_the_model_in_the_way() -> None:
    fleet = Fleet(node("a", resident("m"), on_disk("x")))
    lease = started_lease(fleet, "1", "m")
    queued(fleet.submit(a_ticket("2", model="x")))
    fleet.now_s = MAX_SWAP_WAIT_S
    queued(fleet.submit(a_ticket("3", model="m")))
    assert grants(fleet.done(lease)) == ["2"]


def test_a_node_is_open_again_once_the_request_that_waited_has_left() -> None:
    fleet = Fleet(node("a", resident("m"), on_disk("x")))
    started_lease(fleet, "1", "m")
    queued(fleet.submit(a_ticket("2", model="x")))
    assert on_time(fleet, MAX_SWAP_WAIT_S) == []
    fleet.scheduler.on_disconnect("2")
    assert granted(fleet.submit(a_ticket("3", model="m"))).node_id == "a"


def elsewhere(load_s: float) -> Fleet:
    """The model is warm on `a` and on the disk of `b`."""
    warm, cold = cached_model(), cached_model(state=ModelState.ON_DISK, load_s=load_s)
    return Fleet(*(node(name, each, budget=1 << 40) for name, each in (("a", warm), ("b", cold))))


@pytest.mark.parametrize("load_s", [4.0, 7.0, 13.0, 20.0])
def test_a_second_node_loads_a_model_only_where_that_costs_less(load_s: float) -> None:
    fleet = elsewhere(load_s)
    assert fleet.lease(a_ticket("0", 1000)).node_id == "a"
    prefill_s = fleet.term(a_ticket("1", 1000), "a", "prefill_s")
    there_s, elsewhere_s = (fleet.term(a_ticket("1", 1000), each, "total_s") for each in "ab")
    waiting = 0
    while not (taken := grants(fleet.submit(a_ticket(str(waiting + 1), 1000)))):
        waiting += 1
    assert taken == [str(waiting + 1)]
    # Where the costs are equal, within a tie, it is the node that has nothing to do.
    assert there_s + waiting * prefill_s >= elsewhere_s - TIE_S
    assert there_s + (waiting - 1) * prefill_s < elsewhere_s - TIE_S


def test_a_burst_that_the_warm_node_serves_before_a_load_would_end_loads_nothing() -> None:
    fleet = elsewhere(7.0)
    lease = fleet.lease(a_ticket("0", 1000))
    for number in (1, 2):
        queued(fleet.submit(a_ticket(str(number), 1000)))
    for number in (1, 2):
        fleet.now_s += 2.6
        (action,) = fleet.first(lease)
        assert isinstance(action, Grant)
        lease = action.lease
        assert (lease.ticket_id, lease.node_id) == (str(number), "a")


def test_a_cordoned_node_makes_no_room() -> None:
    closed = node("a", resident("m"), on_disk("x"))
    fleet = Fleet(replace(closed, state=CORDONED))
    assert rejected(fleet.submit(a_ticket("1", model="x"))).kind is RejectKind.NOT_TAKEN


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
        return ShippedScheduler(nodes, chance)

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
