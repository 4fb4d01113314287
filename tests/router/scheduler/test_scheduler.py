"""The scheduler as what it is: a state machine without a clock or a wire."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from node.protocol.messages import ModelState
from router.scheduler.breaker import FIRST_OPEN_S
from router.scheduler.cost import FAILED_LOAD_S, FAILURE_PENALTY_S, TIE_S, TIE_TOKENS
from router.scheduler.rates import LOAD_BYTES_PER_S, LOAD_FIXED_S
from router.scheduler.rejects import RETRY_AFTER_S
from router.scheduler.scheduler import MAX_ATTEMPTS
from router.types import (
    Failure,
    Hints,
    NodeView,
    RejectKind,
)
from tests.router.conftest import model_status, node_view, ticket
from tests.router.leases import open_leases
from tests.router.scheduler.fleet import (
    TOKEN_S,
    Fleet,
    a_ticket,
    agents,
    cached_model,
    chain,
    granted,
    rejected,
    usage_record,
)


def test_grants_the_only_node_that_has_the_model() -> None:
    fleet = Fleet(node_view("a", model_status("other")), node_view("b"))
    fleet.now_s = 7.0
    lease = fleet.lease(ticket("r"))
    assert (lease.ticket_id, lease.node_id, lease.model) == ("r", "b", "m")
    assert (lease.granted_s, lease.attempt, lease.instance_id) == (7.0, 1, "i1")
    assert fleet.scheduler.in_flight("b") == 1
    assert fleet.scheduler.in_flight("a") == 0


def test_rejects_as_unknown_where_no_node_has_the_model() -> None:
    action = rejected(Fleet(node_view("a", model_status("x"))).submit(ticket()))
    assert action.kind is RejectKind.UNKNOWN_MODEL
    assert "'m'" in action.reason
    assert action.retry_after_s == RETRY_AFTER_S


def test_rejects_as_known_where_the_model_s_nodes_are_away() -> None:
    action = rejected(Fleet(node_view("a", reachable=False)).submit(ticket()))
    assert action.kind is RejectKind.NO_NODE
    assert "router nodes" in action.reason


def test_a_node_that_has_not_reported_yet_has_no_models() -> None:
    silent = NodeView(
        "a", "a", "agent", "http://a", None, reachable=True, error=None, status_at_s=0.0
    )
    assert rejected(Fleet(silent).submit(ticket())).kind is RejectKind.UNKNOWN_MODEL


def test_what_a_node_had_before_the_start_is_known_until_its_first_status() -> None:
    silent = replace(node_view("a"), status=None, reachable=False, remembered=frozenset("m"))
    assert rejected(Fleet(silent).submit(ticket())).kind is RejectKind.NO_NODE
    reported = replace(node_view("a", model_status("x")), remembered=frozenset("m"))
    assert rejected(Fleet(reported).submit(ticket())).kind is RejectKind.UNKNOWN_MODEL


def test_a_request_goes_to_the_node_with_less_prefill_ahead() -> None:
    fleet = Fleet(node_view("a"), node_view("b"))
    first, second = fleet.lease(a_ticket("1", 9000)), fleet.lease(a_ticket("2", 900))
    assert (first.node_id, second.node_id) == ("a", "b")
    assert fleet.lease(a_ticket("3", 100)).node_id == "b"


def test_a_prefix_draws_a_request_until_the_wait_for_it_is_longer() -> None:
    fleet = Fleet(node_view("a"), node_view("b"))
    fleet.prefixes.add("a", chain(7, 1), 5_000)
    assert fleet.chosen(a_ticket("1", 6_000, of=7)) == "a"
    assert fleet.term(a_ticket("1", 6_000, of=7), "a", "prefill_s") == pytest.approx(
        1_000 * TOKEN_S, rel=0.2
    )
    fleet.lease(a_ticket("2", 10_000, pinned_node_id="a"))
    assert fleet.chosen(a_ticket("1", 6_000, of=7)) == "b"


def test_the_lease_records_what_was_promised() -> None:
    fleet = Fleet(*agents("a"))
    fleet.prefixes.add("a", chain(7, 1), 5_000)
    assert fleet.lease(a_ticket("1", 6_000, of=7)).predicted_tokens == 5_000


def test_what_a_lease_will_have_prefilled_counts_for_the_next_from_the_grant_on() -> None:
    fleet = Fleet(node_view("a"), node_view("b"))
    first = fleet.lease(a_ticket("1", 6_000, of=7))
    assert fleet.term(a_ticket("2", 6_400, of=7), first.node_id, "cached_tokens") >= 5_000
    fleet.done(first)
    assert fleet.term(a_ticket("2", 6_400, of=7), first.node_id, "cached_tokens") == 0


def test_reading_from_disk_costs_less_than_prefill_and_more_than_memory() -> None:
    fleet = Fleet(*agents("a", "b", disk_tokens=10**6))
    fleet.prefixes.add("a", chain(7, 1), 5_000, memory_tokens=0)
    request = a_ticket("1", 6_000, of=7)
    assert 0.0 < fleet.term(request, "a", "restore_s") < fleet.term(request, "b", "prefill_s")
    assert fleet.chosen(request) == "a"


def test_what_would_be_pushed_out_counts_and_only_where_sessions_live() -> None:
    full = agents("a", "b", memory_tokens=10_000, used_tokens=10_000)
    fleet = Fleet(*full)
    session = fleet.serve(a_ticket("1", 9_000, hints=Hints("s")))
    request = a_ticket("2", 5_000)
    assert fleet.term(request, session.node_id, "eviction_s") > 5.0
    other = "b" if session.node_id == "a" else "a"
    assert fleet.term(request, other, "eviction_s") == 0.0
    fleet.now_s += 300.0
    assert fleet.term(request, session.node_id, "eviction_s") < 0.01


def test_a_session_that_needs_a_slot_costs_the_least_recently_used_one_all_that_it_has() -> None:
    few = {"memory_tokens": 60_000, "used_tokens": 12_000, "slots": 2}
    fleet = Fleet(*agents("a", slots_used=1, **few))
    for name, tokens in (("old", 9_000), ("new", 3_000)):
        fleet.serve(a_ticket(name, tokens, hints=Hints(name)))
    request = a_ticket("third", 100, hints=Hints("third"))
    assert fleet.term(request, "a", "eviction_s") == 0.0
    fleet.views = agents("a", slots_used=2, **few)
    whole_s = fleet.term(a_ticket("x", 9_000), "a", "prefill_s")
    assert fleet.term(request, "a", "eviction_s") == pytest.approx(whole_s)
    again = a_ticket("again", 3_100, hints=Hints("new"))
    assert fleet.term(again, "a", "eviction_s") == 0.0
    fleet.views = agents("a", **(few | {"slots": 0}))
    assert fleet.term(request, "a", "eviction_s") == 0.0


def test_a_full_cache_s_loss_is_a_read_where_it_has_a_disk() -> None:
    memory = Fleet(*agents("a", memory_tokens=10_000, used_tokens=10_000))
    disk = Fleet(*agents("a", memory_tokens=10_000, used_tokens=10_000, disk_tokens=10**6))
    for fleet in (memory, disk):
        fleet.serve(a_ticket("1", 9_000, hints=Hints("s")))
    request = a_ticket("2", 5_000)
    lost_s = memory.term(request, "a", "eviction_s")
    assert 0.0 < disk.term(request, "a", "eviction_s") < lost_s / 10


def test_a_session_stays_where_it_is_warm_unless_another_node_is_clearly_better() -> None:
    fleet = Fleet(node_view("a"), node_view("b"))
    home = fleet.serve(a_ticket("1", 3_000, hints=Hints("s"))).node_id
    other = "b" if home == "a" else "a"
    fleet.prefixes.add(home, chain(7, 1), 400)
    fleet.lease(a_ticket("2", 1_500, pinned_node_id=home))
    request = a_ticket("3", 2_000, of=7, hints=Hints("s"))
    assert fleet.term(request, other, "migration_s") > 0.0
    assert fleet.chosen(request) == home
    assert fleet.chosen(a_ticket("3", 2_000, of=7)) == other


@pytest.mark.parametrize(
    ("prompt_bytes", "least_s"), [(500, 0.7), (4_000, 1.0), (6_000, 1.5), (20_000, 2.0)]
)
def test_a_session_with_a_short_prompt_moves_for_a_smaller_advantage(
    prompt_bytes: int, least_s: float
) -> None:
    fleet = Fleet(node_view("a"), node_view("b"))
    home = fleet.serve(a_ticket("1", prompt_bytes, of=7)).node_id
    fleet.prefixes.add(home, chain(7, max(1, prompt_bytes // 1_000)), prompt_bytes)
    other = "b" if home == "a" else "a"
    request = a_ticket("2", prompt_bytes, of=7)
    prompt_s = fleet.term(request, other, "prefill_s")
    own_s = max(0.7, min(2.0, prompt_s / 10))
    assert fleet.term(request, other, "migration_s") == pytest.approx(own_s)
    assert fleet.term(request, other, "migration_s") == pytest.approx(least_s, rel=0.3)


def test_a_session_without_a_hint_is_known_by_its_chain() -> None:
    fleet = Fleet(node_view("a"), node_view("b"))
    home = fleet.serve(a_ticket("1", 3_000, of=7)).node_id
    fleet.prefixes.add(home, chain(7, 1), 400)
    other = "b" if home == "a" else "a"
    assert fleet.term(a_ticket("2", 3_500, of=7), other, "migration_s") > 0.0


def test_a_child_starts_where_its_parent_is() -> None:
    fleet = Fleet(node_view("a"), node_view("b"))
    home = fleet.serve(a_ticket("1", 3_000, of=7, hints=Hints("parent"))).node_id
    fleet.prefixes.add(home, chain(8, 1), 300)
    other = "b" if home == "a" else "a"
    child = a_ticket("2", 400, of=8, hints=Hints("child", parent="parent"))
    assert fleet.term(child, other, "migration_s") > 0.0


def test_a_session_is_bound_only_once_it_was_served() -> None:
    fleet = Fleet(node_view("a"), node_view("b"))
    lease = fleet.lease(a_ticket("1", 3_000, of=7, hints=Hints("s")))
    fleet.prefixes.add(lease.node_id, chain(7, 1), 400)
    other = "b" if lease.node_id == "a" else "a"
    fleet.done(lease)
    fleet.judge(lease, failed=True)
    assert fleet.term(a_ticket("2", 500, of=7, hints=Hints("s")), other, "migration_s") == 0.0


def test_a_cold_first_prompt_is_no_measure_of_a_session_s_turns() -> None:
    fleet = Fleet(*agents("a"))
    fleet.serve(a_ticket("1", 10_000, hints=Hints("s")), prefill_s=10_000 * TOKEN_S)
    assert 0.0 < fleet.term(a_ticket("2", 100), "a", "contention_s") < 1.0


def test_sessions_spread_over_equal_nodes() -> None:
    fleet = Fleet(*agents("a", "b", "c", "d"))
    homes = [
        fleet.serve(
            a_ticket(f"{n}", 3_000, hints=Hints(f"s{n}")), prefill_s=3_000 * TOKEN_S
        ).node_id
        for n in range(8)
    ]
    assert sorted(homes) == sorted("abcdabcd")


def test_a_prefix_is_kept_together_where_prefill_is_fast_too() -> None:
    fleet = Fleet(*agents("a", "b"))
    for number in range(10):
        for name in "ab":
            seen = a_ticket(f"{name}{number}", 1_000, hints=Hints(name), pinned_node_id=name)
            fleet.serve(seen, prefill_s=0.01)
    request = a_ticket("1", 2_000)
    assert request.chain is not None
    fleet.prefixes.add("b", request.chain, 1_000)
    assert fleet.term(request, "a", "prefill_s") < TIE_S
    assert fleet.chosen(request) == "b"
    few = TIE_TOKENS // 2
    fleet.prefixes.add("b", request.chain, few)
    assert fleet.chosen(request) == "a"


def test_a_pinned_request_goes_to_its_node_however_busy_that_is() -> None:
    fleet = Fleet(*(node_view(name) for name in "abc"))
    for number in range(7):
        fleet.lease(ticket(f"{number}", pinned_node_id="b"))
    lease = fleet.lease(ticket("r", pinned_node_id="b"))
    assert lease.node_id == "b"
    assert rejected(fleet.scheduler.on_failed(lease, fleet.moment, Failure.ERROR_RESPONSE))


def test_a_pinned_request_is_tried_again_on_its_node_alone() -> None:
    fleet = Fleet(*(node_view(name) for name in "ab"))
    lease = fleet.lease(ticket("r", pinned_node_id="b"))
    again = granted(fleet.scheduler.on_failed(lease, fleet.moment, Failure.BROKEN))
    assert (again.node_id, again.attempt) == ("b", 2)
    rejected(fleet.scheduler.on_failed(again, fleet.moment, Failure.BROKEN))


def test_load_counts_from_the_grant_on() -> None:
    fleet = Fleet(*(node_view(name) for name in "abc"))
    leases = [fleet.lease(ticket(str(n))) for n in range(6)]
    assert sorted(lease.node_id for lease in leases) == ["a", "a", "b", "b", "c", "c"]


def test_a_request_of_another_model_keeps_the_node_s_one_gpu_busy() -> None:
    a = node_view("a", model_status("x"), model_status("m"))
    fleet = Fleet(a, node_view("b", model_status("m")))
    fleet.lease(a_ticket("1", 9_000, model="x"))
    assert fleet.term(a_ticket("2"), "a", "queue_s") > 20.0
    assert fleet.chosen(a_ticket("2")) == "b"


def test_ties_go_to_the_least_recently_used_even_at_the_same_instant() -> None:
    fleet = Fleet(*(node_view(name) for name in "abc"))
    served = []
    for number in range(9):
        lease = fleet.lease(ticket(str(number)))
        fleet.done(lease)
        served.append(lease.node_id)
    assert served == list("abcabcabc")


@pytest.mark.parametrize("state", [ModelState.ON_DISK, ModelState.LOADING, ModelState.DRAINING])
def test_a_model_that_is_not_resident_costs_its_load(state: ModelState) -> None:
    model = model_status(state=state, weight_bytes=int(5 * LOAD_BYTES_PER_S))
    assert Fleet(node_view("a", model)).term(a_ticket("1"), "a", "load_s") == LOAD_FIXED_S + 5


def test_a_load_that_a_lease_waits_for_already_is_not_counted_twice() -> None:
    fleet = Fleet(node_view("a", model_status(state=ModelState.ON_DISK)))
    fleet.lease(a_ticket("1"))
    fleet.views = (node_view("a", model_status(state=ModelState.LOADING)),)
    assert fleet.term(a_ticket("2"), "a", "load_s") == 0.0
    assert fleet.term(a_ticket("2"), "a", "queue_s") >= LOAD_FIXED_S


def test_a_failed_load_is_the_last_resort_and_not_ruled_out() -> None:
    failed = node_view("a", model_status(state=ModelState.FAILED))
    good = node_view("b", model_status(state=ModelState.ON_DISK, weight_bytes=10**11))
    assert Fleet(failed, good).lease(ticket("1")).node_id == "b"
    assert Fleet(failed).lease(ticket("2")).node_id == "a"
    assert FAILED_LOAD_S > LOAD_FIXED_S


def test_rates_are_learned_from_a_node_s_accounts() -> None:
    fleet = Fleet(*agents("a"))
    before_s = fleet.term(a_ticket("x", 2_000), "a", "prefill_s")
    for number in range(20):
        fleet.serve(a_ticket(f"{number}", 2_000), prefill_s=before_s / 4)
    assert fleet.term(a_ticket("x", 2_000), "a", "prefill_s") == pytest.approx(
        before_s / 4, rel=0.1
    )


def test_a_node_without_accounts_teaches_by_its_first_content() -> None:
    fleet = Fleet(node_view("a"))
    before_s = fleet.term(a_ticket("x", 2_000), "a", "prefill_s")
    for number in range(20):
        lease = fleet.lease(a_ticket(f"{number}", 2_000))
        fleet.now_s += before_s / 4
        fleet.first(lease)
        fleet.done(lease, served=True)
    assert fleet.term(a_ticket("x", 2_000), "a", "prefill_s") == pytest.approx(
        before_s / 4, rel=0.1
    )


@pytest.mark.parametrize("stream", [True, False])
def test_a_node_without_accounts_teaches_how_long_its_answers_take(stream: bool) -> None:
    fleet = Fleet(node_view("a"))
    for number in range(20):
        lease = fleet.lease(a_ticket(f"{number}", 2_000, stream=stream))
        if stream:
            fleet.first(lease)
        fleet.now_s += 0.4
        fleet.first(lease)
        fleet.done(lease, served=True)
    fleet.first(fleet.lease(a_ticket("beside", 2_000)))
    slow_s = fleet.term(a_ticket("x", 2_000), "a", "decode_interference_s")
    assert slow_s == pytest.approx(1.5 * 0.05 * 0.4, rel=0.1)


def test_a_failed_request_goes_to_another_node_once() -> None:
    fleet = Fleet(*(node_view(name) for name in "abc"))
    first = fleet.lease(ticket())
    second = granted(fleet.scheduler.on_failed(first, fleet.moment, Failure.ERROR_RESPONSE))
    assert second.node_id != first.node_id
    assert second.attempt == MAX_ATTEMPTS
    rejection = rejected(fleet.scheduler.on_failed(second, fleet.moment, Failure.ERROR_RESPONSE))
    assert rejection.kind is RejectKind.NO_NODE
    assert "a and b failed it, one after the other" in rejection.reason
    assert "`router nodes`" in rejection.reason
    assert open_leases(fleet.scheduler) == 0


def test_a_broken_connection_is_tried_again_on_the_same_node_where_no_other_is_left() -> None:
    fleet = Fleet(node_view("a"), node_view("b", reachable=False))
    first = fleet.lease(ticket())
    second = granted(fleet.scheduler.on_failed(first, fleet.moment, Failure.BROKEN))
    assert (second.node_id, second.attempt) == ("a", 2)
    rejected(fleet.scheduler.on_failed(second, fleet.moment, Failure.BROKEN))


def test_a_node_that_refused_is_not_tried_again() -> None:
    fleet = Fleet(node_view("a"))
    actions = fleet.scheduler.on_failed(fleet.lease(ticket()), fleet.moment, Failure.ERROR_RESPONSE)
    assert "a failed it, and no other node can serve it" in rejected(actions).reason


def test_a_node_that_fails_at_once_does_not_draw_all_requests() -> None:
    fleet = Fleet(node_view("a"))
    fleet.done(fleet.lease(ticket("1")), failed=True)
    fleet.views = (*fleet.views, node_view("b"))
    fleet.lease(a_ticket("2", 5_000, pinned_node_id="b"))
    fleet.now_s = 0.1
    assert fleet.lease(ticket("3")).node_id == "b"
    fleet.now_s = FIRST_OPEN_S
    assert fleet.lease(ticket("4")).node_id == "a"


def test_a_verdict_blames_or_clears_as_the_end_itself_does() -> None:
    fleet = Fleet(node_view("a"))
    lease = fleet.lease(ticket())
    fleet.done(lease)
    fleet.judge(lease, failed=True)
    assert fleet.term(ticket("x"), "a", "failure_penalty_s") == FAILURE_PENALTY_S
    fleet.judge(lease)
    assert fleet.term(ticket("x"), "a", "failure_penalty_s") == 0.0


def test_a_verdict_on_a_node_that_is_forgotten_is_nothing() -> None:
    fleet = Fleet(node_view("a"))
    lease = fleet.lease(a_ticket("1"))
    fleet.done(lease)
    fleet.scheduler.on_node_removed("a")
    for failed in (True, False):
        fleet.judge(lease, failed=failed, usage=usage_record(lease, 100))
    assert fleet.term(ticket("x"), "a", "failure_penalty_s") == 0.0


def test_a_lease_cannot_end_twice() -> None:
    fleet = Fleet(node_view("a"))
    lease = fleet.lease(ticket())
    fleet.done(lease, served=True)
    with pytest.raises(KeyError):
        fleet.done(lease, served=True)
    assert fleet.scheduler.in_flight("a") == 0


@pytest.mark.parametrize("busy", [False, True])
def test_a_load_costs_what_the_models_that_leave_for_it_have_warm(busy: bool) -> None:
    resident = cached_model("m", weight_bytes=10)
    waiting = model_status("other", state=ModelState.ON_DISK, weight_bytes=10)
    full = node_view("a", resident, waiting)
    assert full.status is not None
    status = msgspec.structs.replace(full.status, memory_budget_bytes=10, memory_leased_bytes=10)
    fleet = Fleet(replace(full, status=status))
    fleet.serve(a_ticket("1", 9_000), prefill_s=20.0)
    active = msgspec.structs.replace(resident, active_requests=int(busy))
    status = msgspec.structs.replace(status, models=(active, waiting))
    fleet.views = (replace(full, status=status),)
    request = a_ticket("2", 1_000, model="other")
    assert fleet.term(request, "a", "eviction_s") > 5.0
    roomy = msgspec.structs.replace(status, memory_budget_bytes=20)
    fleet.views = (replace(full, status=roomy),)
    assert fleet.term(request, "a", "eviction_s") == 0.0


def test_a_load_costs_the_sessions_of_the_model_that_the_node_would_unload() -> None:
    waiting = model_status("other", state=ModelState.ON_DISK, weight_bytes=10)
    view = node_view("a", cached_model("m", weight_bytes=10), waiting)
    assert view.status is not None
    fleet = Fleet(view)
    fleet.serve(a_ticket("1", 9_000), prefill_s=20.0)
    # Of both, "m" has been idle for longer, and the node would unload what costs it less.
    costly = cached_model("m", weight_bytes=10, unload_cost_s=30.0, since_unix_s=1.0)
    cheap = model_status("spare", weight_bytes=10, unload_cost_s=1.0, since_unix_s=2.0)
    full = msgspec.structs.replace(
        view.status,
        memory_budget_bytes=20,
        memory_leased_bytes=20,
        models=(costly, cheap, waiting),
    )
    fleet.views = (replace(view, status=full),)
    assert fleet.term(a_ticket("2", 1_000, model="other"), "a", "eviction_s") == 0.0


def test_a_removed_node_is_forgotten_but_for_its_leases() -> None:
    fleet = Fleet(node_view("a"))
    lease = fleet.lease(a_ticket("1", 2_000))
    fleet.scheduler.on_node_removed("a")
    assert fleet.scheduler.in_flight("a") == 1
    fleet.done(lease)
    fleet.scheduler.on_node_removed("a")
    assert fleet.scheduler.in_flight("a") == 0


def test_a_node_that_has_started_anew_has_nothing_ahead_and_nothing_warm() -> None:
    fleet = Fleet(*agents("a", memory_tokens=10_000, used_tokens=10_000))
    fleet.serve(a_ticket("1", 9_000, hints=Hints("s")))
    fleet.lease(a_ticket("2", 9_000))
    assert fleet.term(a_ticket("3", 5_000), "a", "queue_s") > 1.0
    status = fleet.views[0].status
    assert status is not None
    anew = replace(fleet.views[0], status=msgspec.structs.replace(status, instance_id="i2"))
    fleet.views = (anew,)
    fleet.scheduler.on_fleet(fleet.moment)
    assert fleet.term(a_ticket("3", 5_000), "a", "queue_s") == 0.0
    assert fleet.term(a_ticket("3", 5_000), "a", "eviction_s") == 0.0
    assert fleet.scheduler.in_flight("a") == 1


def test_of_equal_foreign_servers_the_one_with_fewer_live_sessions_is_sent_the_next() -> None:
    fleet = Fleet(*(node_view(name) for name in "ab"))
    for name, node_id in (("1", "a"), ("2", "a"), ("3", "b")):
        fleet.done(fleet.lease(a_ticket(name, 1_000, pinned_node_id=node_id)), served=True)
    fleet.now_s += 1.0
    assert fleet.chosen(a_ticket("4", 100)) == "b"


def test_a_session_of_small_prompts_that_add_nothing_crowds_nobody() -> None:
    fleet = Fleet(*agents("a"))
    for number in range(10):
        fleet.now_s += 0.5
        request = a_ticket("same", 100, hints=Hints("s"))
        request = replace(request, request_id=str(number), arrived_s=fleet.now_s)
        fleet.serve(request, prefill_s=0.05)
    contention_s = fleet.term(a_ticket("other", 1_000), "a", "contention_s")
    # At most 100 tokens a turn and two turns a second, at some 0.5 ms a token.
    assert 0.0 < contention_s < 0.1


def test_a_node_that_makes_no_progress_with_the_model_is_the_last_resort() -> None:
    stuck, other = agents("a", "b")
    fleet = Fleet(replace(stuck, stalled=frozenset({"m"})), other)
    assert {fleet.serve(a_ticket(f"{number}")).node_id for number in range(4)} == {"b"}
    alone = Fleet(replace(stuck, stalled=frozenset({"m"})))
    assert alone.lease(a_ticket("1")).node_id == "a"
