"""The scheduler as what it is: a state machine without a clock or a wire."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.protocol.messages import ModelState
from router.scheduler import (
    BLAME_WAIT_S,
    FAILED_LOAD_S,
    FIRST_BLAME_S,
    LOAD_BYTES_PER_S,
    LOAD_FIXED_S,
    MAX_ATTEMPTS,
    MAX_BLAME_S,
    PRIOR_SERVICE_S,
    RETRY_AFTER_S,
    Scheduler,
)
from router.types import Action, Grant, Lease, NodeView, Reject, Verdict
from tests.router.conftest import model_status, node_view, ticket


def granted(actions: list[Action]) -> Lease:
    (action,) = actions
    assert isinstance(action, Grant)
    return action.lease


def rejected(actions: list[Action]) -> Reject:
    (action,) = actions
    assert isinstance(action, Reject)
    return action


def busy(scheduler: Scheduler, view: NodeView, requests: int) -> None:
    for number in range(requests):
        granted(scheduler.on_request(ticket(f"busy-{view.node_id}-{number}"), [view], 0.0))


def test_grants_the_only_node_that_has_the_model() -> None:
    scheduler = Scheduler()
    views = [node_view("a", model_status("other")), node_view("b")]
    lease = granted(scheduler.on_request(ticket("r"), views, 7.0))
    assert lease == Lease("r", "b", "m", granted_s=7.0, attempt=1)
    assert scheduler.in_flight("b") == 1
    assert scheduler.in_flight("a") == 0


def test_rejects_as_unknown_where_no_node_has_the_model() -> None:
    action = rejected(Scheduler().on_request(ticket(), [node_view("a", model_status("x"))], 0.0))
    assert not action.known
    assert "'m'" in action.reason
    assert action.retry_after_s == RETRY_AFTER_S


def test_rejects_as_known_where_the_model_s_nodes_are_away() -> None:
    action = rejected(Scheduler().on_request(ticket(), [node_view("a", reachable=False)], 0.0))
    assert action.known
    assert "router nodes" in action.reason


def test_a_node_that_has_not_spoken_yet_has_no_models() -> None:
    silent = NodeView("a", "a", "agent", "http://a", None, reachable=True, error=None, heard_s=0.0)
    assert not rejected(Scheduler().on_request(ticket(), [silent], 0.0)).known


def test_what_a_node_had_before_the_start_is_known_until_its_first_word() -> None:
    silent = replace(node_view("a"), status=None, reachable=False, remembered=frozenset("m"))
    assert rejected(Scheduler().on_request(ticket(), [silent], 0.0)).known
    heard = replace(node_view("a", model_status("x")), remembered=frozenset("m"))
    assert not rejected(Scheduler().on_request(ticket(), [heard], 0.0)).known


def test_a_request_goes_to_the_node_with_fewer_in_flight() -> None:
    scheduler = Scheduler()
    a, b = node_view("a"), node_view("b")
    busy(scheduler, a, 2)
    busy(scheduler, b, 1)
    assert granted(scheduler.on_request(ticket(), [a, b], 0.0)).node_id == "b"


def test_a_pinned_request_goes_to_its_node_however_busy_that_is() -> None:
    scheduler = Scheduler()
    views = [node_view(name) for name in "abc"]
    busy(scheduler, views[1], 9)
    pinned = ticket("r", pinned_node_id="b")
    lease = granted(scheduler.on_request(pinned, views, 0.0))
    assert lease.node_id == "b"
    rejected(scheduler.on_failed(lease, views, 0.0, answered=True))


def test_a_pinned_request_is_tried_again_on_its_node_alone() -> None:
    scheduler = Scheduler()
    views = [node_view(name) for name in "ab"]
    lease = granted(scheduler.on_request(ticket("r", pinned_node_id="b"), views, 0.0))
    again = granted(scheduler.on_failed(lease, views, 0.0, answered=False))
    assert (again.node_id, again.attempt) == ("b", 2)
    rejected(scheduler.on_failed(again, views, 0.0, answered=False))


def test_a_pinned_request_is_rejected_where_its_node_is_away() -> None:
    views = [node_view("a"), node_view("b", reachable=False)]
    assert rejected(Scheduler().on_request(ticket(pinned_node_id="b"), views, 0.0)).known


def test_load_counts_from_the_grant_on() -> None:
    scheduler = Scheduler()
    views = [node_view(name) for name in "abc"]
    leases = [granted(scheduler.on_request(ticket(str(n)), views, 0.0)) for n in range(6)]
    assert sorted(lease.node_id for lease in leases) == ["a", "a", "b", "b", "c", "c"]


def test_a_request_of_another_model_keeps_the_node_s_one_gpu_busy() -> None:
    scheduler = Scheduler()
    a = node_view("a", model_status("x", max_rows=2), model_status("m"))
    b = node_view("b", model_status("m"))
    for number in range(2):
        granted(scheduler.on_request(ticket(f"x{number}", "x"), [a], 0.0))
    assert scheduler.expected_wait_s(a, model_status("m"), 0.0) == PRIOR_SERVICE_S
    busy(scheduler, b, 1)
    assert granted(scheduler.on_request(ticket(), [a, b], 0.0)).node_id == "b"


def test_more_rows_shorten_the_wait() -> None:
    scheduler = Scheduler()
    small, large = node_view("s", model_status(max_rows=1)), node_view("l", model_status())
    busy(scheduler, small, 1)
    busy(scheduler, large, 4)
    assert granted(scheduler.on_request(ticket(), [small, large], 0.0)).node_id == "l"


def test_ties_go_to_the_least_recently_used_even_at_the_same_instant() -> None:
    scheduler = Scheduler()
    views = [node_view(name) for name in "abc"]
    served = []
    for number in range(9):
        lease = granted(scheduler.on_request(ticket(str(number)), views, 5.0))
        scheduler.on_done(lease, 5.0, served=False)
        served.append(lease.node_id)
    assert served == list("abcabcabc")


@pytest.mark.parametrize("state", [ModelState.ON_DISK, ModelState.LOADING, ModelState.DRAINING])
def test_a_model_that_is_not_resident_costs_its_load(state: ModelState) -> None:
    model = model_status(state=state, weight_bytes=int(5 * LOAD_BYTES_PER_S))
    wait_s = Scheduler().expected_wait_s(node_view("a", model), model, 0.0)
    assert wait_s == LOAD_FIXED_S + 5


def test_a_failed_load_is_the_last_resort_and_not_ruled_out() -> None:
    scheduler = Scheduler()
    failed = node_view("a", model_status(state=ModelState.FAILED))
    good = node_view("b", model_status(state=ModelState.ON_DISK, weight_bytes=10**11))
    assert granted(scheduler.on_request(ticket("1"), [failed, good], 0.0)).node_id == "b"
    assert granted(scheduler.on_request(ticket("2"), [failed], 0.0)).node_id == "a"
    assert FAILED_LOAD_S > LOAD_FIXED_S


def test_service_times_are_learned_from_served_requests_only() -> None:
    scheduler = Scheduler()
    view, model = node_view("a", model_status(max_rows=1)), model_status(max_rows=1)
    scheduler.on_done(granted(scheduler.on_request(ticket("1"), [view], 0.0)), 900.0, served=False)
    busy(scheduler, view, 1)
    assert scheduler.expected_wait_s(view, model, 0.0) == PRIOR_SERVICE_S
    scheduler.on_done(granted(scheduler.on_request(ticket("2"), [view], 0.0)), 12.0, served=True)
    assert scheduler.expected_wait_s(view, model, 0.0) == pytest.approx(PRIOR_SERVICE_S + 2.0)


def test_a_failed_request_goes_to_another_node_once() -> None:
    scheduler = Scheduler()
    views = [node_view("a"), node_view("b"), node_view("c")]
    first = granted(scheduler.on_request(ticket(), views, 0.0))
    second = granted(scheduler.on_failed(first, views, 1.0, answered=True))
    assert second.node_id != first.node_id
    assert second.attempt == MAX_ATTEMPTS
    rejected(scheduler.on_failed(second, views, 2.0, answered=True))
    assert scheduler.open_leases == 0


def test_a_broken_connection_is_tried_again_on_the_same_node_where_no_other_is_left() -> None:
    scheduler = Scheduler()
    views = [node_view("a"), node_view("b", reachable=False)]
    first = granted(scheduler.on_request(ticket(), views, 0.0))
    second = granted(scheduler.on_failed(first, views, 1.0, answered=False))
    assert (second.node_id, second.attempt) == ("a", 2)
    rejected(scheduler.on_failed(second, views, 2.0, answered=False))


def test_a_node_that_refused_is_not_asked_again() -> None:
    scheduler = Scheduler()
    views = [node_view("a")]
    first = granted(scheduler.on_request(ticket(), views, 0.0))
    rejected(scheduler.on_failed(first, views, 1.0, answered=True))


def test_a_broken_connection_to_a_node_that_is_away_by_now_is_rejected() -> None:
    scheduler = Scheduler()
    first = granted(scheduler.on_request(ticket(), [node_view("a")], 0.0))
    away = [node_view("a", reachable=False)]
    assert rejected(scheduler.on_failed(first, away, 1.0, answered=False)).known


def test_a_node_that_fails_at_once_does_not_draw_all_requests() -> None:
    scheduler = Scheduler()
    broken, busy_view = node_view("a"), node_view("b")
    lease = granted(scheduler.on_request(ticket("1"), [broken], 0.0))
    scheduler.on_done(lease, 0.0, served=False, failed=True)
    busy(scheduler, busy_view, 50)
    views = [broken, busy_view]
    assert granted(scheduler.on_request(ticket("2"), views, 0.1)).node_id == "b"
    assert granted(scheduler.on_request(ticket("3"), views, FIRST_BLAME_S)).node_id == "a"


def test_blame_doubles_to_a_limit_and_ends_with_a_served_request() -> None:
    scheduler = Scheduler()
    view, model = node_view("a"), model_status()

    def end(now_s: float, *, served: bool) -> None:
        lease = granted(scheduler.on_request(ticket(), [view], now_s))
        scheduler.on_done(lease, now_s, served=served, failed=not served)

    for failures in range(1, 40):
        end(0.0, served=False)
        blamed_s = min(MAX_BLAME_S, FIRST_BLAME_S * 2.0 ** (failures - 1))
        assert scheduler.expected_wait_s(view, model, blamed_s - 0.01) == BLAME_WAIT_S
        assert scheduler.expected_wait_s(view, model, blamed_s) == 0.0
    end(0.0, served=True)
    assert scheduler.expected_wait_s(view, model, 0.0) == 0.0


def test_a_verdict_blames_or_teaches_as_the_end_itself_does() -> None:
    scheduler = Scheduler()
    view, model = node_view("a", model_status(max_rows=1)), model_status(max_rows=1)
    lease = granted(scheduler.on_request(ticket(), [view], 0.0))
    scheduler.on_done(lease, 12.0, served=False)
    assert scheduler.on_verdict(Verdict(lease, 12.0, failed=True)) == []
    assert scheduler.expected_wait_s(view, model, 12.5) == BLAME_WAIT_S
    assert scheduler.expected_wait_s(view, model, 12.0 + FIRST_BLAME_S) == 0.0
    scheduler.on_verdict(Verdict(lease, 12.0, failed=False))
    assert scheduler.expected_wait_s(view, model, 12.5) == 0.0
    busy(scheduler, view, 1)
    assert scheduler.expected_wait_s(view, model, 0.0) == pytest.approx(PRIOR_SERVICE_S + 2.0)


def test_a_verdict_on_a_node_that_is_forgotten_is_nothing() -> None:
    scheduler = Scheduler()
    lease = granted(scheduler.on_request(ticket(), [node_view("a")], 0.0))
    scheduler.on_done(lease, 1.0, served=False)
    scheduler.on_node_removed("a")
    for failed in (True, False):
        assert scheduler.on_verdict(Verdict(lease, 1.0, failed=failed)) == []
    assert scheduler.expected_wait_s(node_view("a"), model_status(), 1.0) == 0.0


def test_a_lease_cannot_end_twice() -> None:
    scheduler = Scheduler()
    lease = granted(scheduler.on_request(ticket(), [node_view("a")], 0.0))
    scheduler.on_done(lease, 1.0, served=True)
    with pytest.raises(KeyError):
        scheduler.on_done(lease, 1.0, served=True)
    assert scheduler.in_flight("a") == 0


def test_a_removed_node_is_forgotten_once_it_is_idle() -> None:
    scheduler = Scheduler()
    a, b = node_view("a", model_status(max_rows=1)), node_view("b")
    lease = granted(scheduler.on_request(ticket(), [a], 0.0))
    busy(scheduler, b, 1)
    scheduler.on_node_removed("a")
    assert scheduler.in_flight("a") == 1
    scheduler.on_done(lease, 100.0, served=True)
    scheduler.on_node_removed("a")
    busy(scheduler, a, 1)
    assert scheduler.expected_wait_s(a, model_status(max_rows=1), 0.0) == PRIOR_SERVICE_S
    assert scheduler.in_flight("b") == 1


NODES = ("a", "b", "c")
STATES = st.sampled_from(list(ModelState))
VIEWS = st.tuples(*(st.tuples(st.booleans(), st.booleans(), STATES) for _ in NODES))
STEPS = st.lists(
    st.tuples(
        st.integers(0, 5), st.sampled_from(("ask", "done", "served", "refused", "broken")), VIEWS
    ),
    max_size=60,
)


def fleet_of(views: tuple[tuple[bool, bool, ModelState], ...]) -> list[NodeView]:
    return [
        node_view(name, model_status("m" if has else "x", state=state), reachable=reachable)
        for name, (has, reachable, state) in zip(NODES, views, strict=True)
    ]


class World:
    """Tickets in whatever order hypothesis wishes, and what became of them."""

    def __init__(self) -> None:
        self.scheduler = Scheduler()
        self.held: dict[str, Lease] = {}
        self.tried: dict[str, list[str]] = {}
        self.ended: list[str] = []
        self.asked = 0

    def ask(self, fleet: list[NodeView], now_s: float) -> None:
        self.asked += 1
        name = f"t{self.asked}"
        self.tried[name] = []
        self.take(name, self.scheduler.on_request(ticket(name), fleet, now_s), fleet, same=None)

    def fail(self, lease: Lease, fleet: list[NodeView], now_s: float, *, at_fault: bool) -> None:
        del self.held[lease.ticket_id]
        actions = self.scheduler.on_failed(lease, fleet, now_s, answered=at_fault)
        same = None if at_fault else lease.node_id
        self.take(lease.ticket_id, actions, fleet, same=same)

    def finish(self, lease: Lease, now_s: float, *, served: bool) -> None:
        del self.held[lease.ticket_id]
        assert self.scheduler.on_done(lease, now_s, served=served, failed=not served) == []
        self.ended.append(lease.ticket_id)

    def take(
        self, name: str, actions: list[Action], fleet: list[NodeView], *, same: str | None
    ) -> None:
        (action,) = actions
        able = {
            view.node_id
            for view in fleet
            if view.reachable and view.status and view.status.models[0].name == "m"
        }
        untried = able - set(self.tried[name])
        if isinstance(action, Reject):
            assert not untried or len(self.tried[name]) == MAX_ATTEMPTS
            self.ended.append(name)
            return
        node_id = action.lease.node_id
        assert node_id in untried or (node_id == same and not untried)
        assert len(self.tried[name]) < MAX_ATTEMPTS
        self.tried[name].append(node_id)
        self.held[name] = action.lease

    def check(self) -> None:
        assert self.scheduler.open_leases == len(self.held)
        for node_id in NODES:
            held = sum(lease.node_id == node_id for lease in self.held.values())
            assert self.scheduler.in_flight(node_id) == held


@given(STEPS)
def test_every_ticket_ends_once_under_any_order_of_events(
    steps: list[tuple[int, str, tuple[tuple[bool, bool, ModelState], ...]]],
) -> None:
    world = World()
    for now_s, (which, what, views) in enumerate(steps):
        fleet = fleet_of(views)
        if what == "ask" or not world.held:
            world.ask(fleet, float(now_s))
            world.check()
            continue
        lease = list(world.held.values())[which % len(world.held)]
        if what in ("done", "served"):
            world.finish(lease, float(now_s), served=what == "served")
        else:
            world.fail(lease, fleet, float(now_s), at_fault=what == "refused")
        world.check()
    for lease in list(world.held.values()):
        world.finish(lease, 1e3, served=True)
    world.check()
    assert sorted(world.ended) == sorted(world.tried)


@given(st.lists(st.sampled_from(NODES), min_size=2, max_size=3, unique=True), st.integers(1, 30))
def test_equal_nodes_get_equal_shares_whatever_their_order(names: list[str], asked: int) -> None:
    scheduler = Scheduler()
    counts = dict.fromkeys(names, 0)
    for number in range(asked):
        views = [node_view(name) for name in (names if number % 2 else reversed(names))]
        lease = granted(scheduler.on_request(ticket(str(number)), views, 0.0))
        counts[lease.node_id] += 1
        scheduler.on_done(lease, 0.0, served=False)
    assert max(counts.values()) - min(counts.values()) <= 1
