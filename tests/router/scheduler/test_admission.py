"""Which requests wait, which is granted next, and which are rejected."""

from __future__ import annotations

from math import inf

import pytest
from msgspec.structs import replace

from node.protocol.paths import PATH_COUNT_TOKENS
from router.scheduler.admission import SCAN_INTERVAL_S
from router.scheduler.queue import AdmissionLimits
from router.scheduler.queue_scan import SCAN_TICKETS
from router.scheduler.rejects import MAX_RETRY_AFTER_S, RETRY_AFTER_S
from router.types import (
    Action,
    Caller,
    Failure,
    Grant,
    Hints,
    Priority,
    Queued,
    Reject,
    RejectKind,
    Ticket,
)
from tests.router.conftest import model_status, node_view
from tests.router.leases import open_leases
from tests.router.scheduler.fleet import (
    TOKEN_S,
    Fleet,
    a_ticket,
    agents,
    cached_model,
    chain,
    granted,
    queued,
    rejected,
    usage_record,
)


def by(key: str, ticket: Ticket) -> Ticket:
    return replace(ticket, caller=Caller(key, key, frozenset({"inference"}), key))


def names(actions: list[Action]) -> list[str]:
    return [action.lease.ticket_id for action in actions if isinstance(action, Grant)]


def drain(fleet: Fleet, lease_actions: list[Action]) -> list[str]:
    """Serves what is granted until nothing is, one after the other."""
    order = []
    actions = list(lease_actions)
    while actions:
        action = actions.pop(0)
        if isinstance(action, Grant):
            order.append(action.lease.ticket_id)
            actions += fleet.first(action.lease)
            actions += fleet.done(action.lease)
    return order


def test_a_node_that_prefills_makes_others_wait_here() -> None:
    fleet = Fleet(*agents("a"))
    lease = fleet.lease(a_ticket("1", 5_000))
    action = queued(fleet.submit(a_ticket("2", 1_000)))
    assert action.position == 1
    assert action.wait_s > 10.0
    assert queued(fleet.submit(a_ticket("3", 5_000))).position == 2
    assert names(fleet.first(lease)) == ["2"]
    assert len(fleet.scheduler._admission) == 1


def test_the_next_is_sent_shortly_before_a_prefill_ends() -> None:
    fleet = Fleet(*agents("a"))
    fleet.lease(a_ticket("1", 5_000))
    queued(fleet.submit(a_ticket("2", 1_000)))
    ends_s = fleet.term(a_ticket("x"), "a", "queue_s")
    wakes_s = fleet.scheduler.wake_s()
    assert wakes_s is not None
    fleet.now_s = ends_s - 1.0
    assert fleet.scheduler.on_time(fleet.moment) == []
    wakes_s = fleet.scheduler.wake_s()
    assert wakes_s is not None
    assert ends_s - 1.0 < wakes_s < ends_s
    fleet.now_s = wakes_s + 0.001
    assert names(fleet.scheduler.on_time(fleet.moment)) == ["2"]
    assert fleet.scheduler.wake_s() is None


def test_a_node_that_reports_no_cache_gets_as_many_as_its_max_rows() -> None:
    fleet = Fleet(node_view("a", model_status(max_rows=3)))
    leases = [fleet.lease(a_ticket(f"{number}", 5_000)) for number in range(3)]
    queued(fleet.submit(a_ticket("x", 100)))
    assert names(fleet.first(leases[0])) == []
    assert names(fleet.done(leases[0], served=True)) == ["x"]


def test_of_two_equal_nodes_a_waiting_request_is_sent_to_the_one_with_a_free_row() -> None:
    fleet = Fleet(*(node_view(name, model_status(max_rows=1)) for name in "ab"))
    for number in range(40):
        fleet.done(fleet.lease(a_ticket(f"quick {number}")), served=True)
    leases = {lease.node_id: lease for lease in (fleet.lease(a_ticket(each)) for each in "12")}
    for number in range(3):
        queued(fleet.submit(a_ticket(f"waits {number}")))
    for node_id in "bbb":
        (lease,) = (
            each.lease
            for each in fleet.done(leases[node_id], served=True)
            if isinstance(each, Grant)
        )
        assert lease.node_id == node_id
        leases[node_id] = lease


def test_an_agent_s_report_ends_the_prefill_of_an_answer_in_one_piece() -> None:
    fleet = Fleet(*agents("a", max_rows=16))
    leases = [fleet.lease(a_ticket("0", 10_000, stream=False))]
    for number in range(1, 16):
        queued(fleet.submit(a_ticket(f"{number}", 10_000, stream=False)))
    fleet.now_s = 0.1
    while len(leases) < 16:
        leases.append(granted(fleet.first(leases[-1])))
    assert open_leases(fleet.scheduler) == 16
    assert names(fleet.first(leases[0])) == []


def test_a_foreign_server_s_answer_in_one_piece_is_prefilled_when_it_was_expected() -> None:
    for kind, is_over in (("openai", True), ("agent", False)):
        (view,) = agents("a")
        fleet = Fleet(replace(view, kind=kind))
        fleet.lease(a_ticket("1", 1_000, stream=False))
        fleet.now_s = 1.5 * fleet.term(a_ticket("2", 1_000), "a", "prefill_s")
        fleet.lease(a_ticket("2", 1_000, stream=False))
        before_s = fleet.term(a_ticket("3"), "a", "queue_s")
        fleet.now_s += 0.5
        after_s = fleet.term(a_ticket("3"), "a", "queue_s")
        assert before_s - after_s == pytest.approx(0.5 if is_over else 0.0)


def test_a_stream_that_stays_silent_for_long_does_not_keep_others_for_ever() -> None:
    fleet = Fleet(*agents("a"))
    for number in range(3):
        fleet.submit(a_ticket(f"{number}", 1_000))
    for _ in range(40):
        fleet.now_s += SCAN_INTERVAL_S
        fleet.scheduler.on_time(fleet.moment)
    assert len(fleet.scheduler._admission) == 0


def test_while_a_prefill_is_overdue_the_queue_is_scanned_no_more_than_usual() -> None:
    fleet = Fleet(*agents("a"))
    work_s = fleet.term(a_ticket("1", 4_000), "a", "prefill_s")
    fleet.lease(a_ticket("1", 4_000))
    fleet.now_s = work_s - 0.2
    fleet.lease(a_ticket("2", 100))
    queued(fleet.submit(a_ticket("3", 1_000)))
    wakes_s: list[float] = []
    while len(fleet.scheduler._admission):
        wake_s = fleet.scheduler.wake_s()
        assert wake_s is not None
        assert wake_s > fleet.now_s
        fleet.now_s = wake_s
        wakes_s.append(wake_s)
        fleet.scheduler.on_time(fleet.moment)
    overdue = [each for each in wakes_s if each > work_s]
    assert overdue[-1] == pytest.approx(2 * work_s + 1.0, abs=0.3)
    assert len(overdue) <= (work_s + 1.0) / SCAN_INTERVAL_S + 3


def test_what_was_left_by_all_is_offered_to_new_requests_though_many_wait_before() -> None:
    fleet = Fleet(*agents("a", "b", "c"))
    for name in "ab":
        fleet.prefixes.add(name, chain(ord(name), 1), 60_000)
    leases = [fleet.lease(a_ticket(name, 5_000, pinned_node_id=name)) for name in "ab"]
    for number in range(2 * SCAN_TICKETS):
        queued(fleet.submit(a_ticket(f"{number}", 60_100, of=ord("a"))))
    assert fleet.scheduler.in_flight("c") == 0
    fleet.now_s += 2 * SCAN_INTERVAL_S
    assert looks(fleet) == {}
    assert granted(fleet.submit(a_ticket("cold", 3_000))).node_id == "c"
    assert leases


def looks(fleet: Fleet) -> dict[str, str]:
    """Has the queue looked at for a tenth of a second, whenever that is due; who began where."""
    begun: dict[str, str] = {}
    until_s, wake_s = fleet.now_s + 0.1, fleet.now_s
    while wake_s < until_s:
        fleet.now_s = wake_s
        for action in fleet.scheduler.on_time(fleet.moment):
            assert isinstance(action, Grant)
            begun[action.lease.ticket_id] = action.lease.node_id
        wake_s = fleet.scheduler.wake_s() or until_s
    return begun


@pytest.mark.parametrize("before", [SCAN_TICKETS - 1, SCAN_TICKETS, 3 * SCAN_TICKETS])
def test_what_the_first_leave_goes_to_those_behind_them_before_new_requests(
    before: int,
) -> None:
    fleet = Fleet(*agents("a", "b", memory_tokens=10_000_000))
    busy = {name: fleet.lease(a_ticket(name, 3_000, pinned_node_id=name)) for name in "ab"}
    for number in range(before):
        warm = a_ticket(f"{number}", 60_000, of=500 + number)
        assert warm.chain is not None
        fleet.prefixes.add("a", warm.chain, 59_900)
        queued(fleet.submit(warm))
    queued(fleet.submit(a_ticket("cold", 20_000)))
    fleet.now_s = 3.0
    begun = names(fleet.first(busy["b"]))
    if before > SCAN_TICKETS:
        queued(fleet.submit(a_ticket("new", 30_000)))
    assert (begun, looks(fleet)) in ((["cold"], {}), ([], {"cold": "b"}))


def test_what_becomes_free_while_the_queue_is_scanned_is_offered_to_all() -> None:
    fleet = Fleet(*agents("a", "b", "c", memory_tokens=10_000_000))
    busy = {name: fleet.lease(a_ticket(name, 3_000, pinned_node_id=name)) for name in "abc"}
    for number in range(3 * SCAN_TICKETS):
        warm = a_ticket(f"{number}", 60_000, of=500 + number)
        assert warm.chain is not None
        fleet.prefixes.add("c" if number == SCAN_TICKETS else "a", warm.chain, 59_900)
        queued(fleet.submit(warm))
    fleet.now_s = 3.0
    assert names(fleet.first(busy["b"])) == []
    assert names(fleet.first(busy["c"])) == []
    assert looks(fleet) == {f"{SCAN_TICKETS}": "c"}


def test_a_waiting_request_is_sent_to_another_node_when_that_is_better_by_now() -> None:
    fleet = Fleet(*agents("a", "b"))
    fleet.prefixes.add("a", chain(7, 1), 9_000)
    fleet.lease(a_ticket("1", 3_000, pinned_node_id="a"))
    fleet.lease(a_ticket("2", 30_000, pinned_node_id="b"))
    queued(fleet.submit(a_ticket("3", 10_000, of=7)))
    fleet.prefixes.cached.clear()
    fleet.now_s = 2.0
    fleet.views = agents("a", "b", "c")
    assert names(fleet.scheduler.on_fleet(fleet.moment)) == ["3"]


def test_a_request_waits_for_its_warm_node_though_another_is_idle() -> None:
    fleet = Fleet(*agents("a", "b"))
    fleet.prefixes.add("a", chain(7, 1), 30_000)
    fleet.lease(a_ticket("1", 1_000, pinned_node_id="a"))
    queued(fleet.submit(a_ticket("2", 30_100, of=7)))
    assert fleet.scheduler.in_flight("b") == 0


def test_least_work_goes_first() -> None:
    fleet = Fleet(*agents("a"))
    lease = fleet.lease(a_ticket("0", 5_000))
    for name, tokens in (("large", 9_000), ("small", 500), ("middle", 3_000)):
        fleet.submit(a_ticket(name, tokens))
    assert drain(fleet, fleet.first(lease)) == ["small", "middle", "large"]


def test_a_request_that_has_waited_long_is_not_passed_for_ever() -> None:
    fleet = Fleet(*agents("a"))
    leases = [fleet.lease(a_ticket("0", 5_000))]
    fleet.submit(a_ticket("large", 9_000))
    passed = 0
    while leases and leases[0].ticket_id != "large":
        passed += 1
        fleet.now_s += 2.0
        ticket = a_ticket(f"n{passed}", 600, arrived_s=fleet.now_s)
        lease = leases.pop(0)
        actions = [*fleet.submit(ticket), *fleet.first(lease), *fleet.done(lease)]
        leases += [action.lease for action in actions if isinstance(action, Grant)]
    assert passed == 15


def test_classes_go_one_after_the_other() -> None:
    fleet = Fleet(*agents("a"))
    lease = fleet.lease(a_ticket("0", 5_000))
    fleet.submit(a_ticket("batch", 500, priority=Priority.BATCH))
    fleet.submit(a_ticket("default", 1_000))
    fleet.submit(a_ticket("interactive", 9_000, priority=Priority.INTERACTIVE))
    assert drain(fleet, fleet.first(lease)) == ["interactive", "default", "batch"]


def test_requests_that_have_waited_long_get_a_third_of_the_work_whatever_their_class() -> None:
    fleet = Fleet(*agents("a"), limits=AdmissionLimits(promote_after_s=30.0))
    lease = fleet.lease(a_ticket("0", 90_000))
    for number in range(3):
        fleet.submit(a_ticket(f"b{number}", 1_000, priority=Priority.BATCH))
    fleet.now_s = 30.0
    for number in range(6):
        interactive = a_ticket(f"i{number}", 1_000, priority=Priority.INTERACTIVE, arrived_s=30.0)
        fleet.submit(interactive)
    order = drain(fleet, fleet.first(lease))
    assert order == ["b0", "i0", "i1", "b1", "i2", "i3", "b2", "i4", "i5"]


def test_nobody_is_promoted_before_its_time() -> None:
    fleet = Fleet(*agents("a"), limits=AdmissionLimits(promote_after_s=30.0))
    lease = fleet.lease(a_ticket("0", 90_000))
    fleet.submit(a_ticket("batch", 1_000, priority=Priority.BATCH))
    fleet.now_s = 29.0
    for name in ("first", "second"):
        fleet.submit(a_ticket(name, 1_000, priority=Priority.INTERACTIVE, arrived_s=29.0))
    assert drain(fleet, fleet.first(lease)) == ["first", "second", "batch"]


def test_a_large_prompt_is_not_passed_by_small_ones_for_longer_than_that() -> None:
    fleet = Fleet(*agents("a"), limits=AdmissionLimits(promote_after_s=30.0))
    lease = fleet.lease(a_ticket("0", 90_000))
    for name in ("large", "huge"):
        fleet.submit(a_ticket(name, 40_000 if name == "huge" else 4_000))
    fleet.now_s = 30.0
    for number in range(10):
        fleet.submit(a_ticket(f"s{number}", 1_000, arrived_s=30.0))
    order = drain(fleet, fleet.first(lease))
    assert order[0] == "large"
    assert order.index("huge") == 9
    assert order[10:] == ["s8", "s9"]


def test_a_request_for_a_busy_node_is_not_promoted_in_place_of_those_that_can_begin() -> None:
    fleet = Fleet(*agents("a", "b"), limits=AdmissionLimits(promote_after_s=30.0))
    fleet.lease(a_ticket("busy", 90_000, pinned_node_id="a"))
    lease = fleet.lease(a_ticket("0", 90_000, pinned_node_id="b"))
    fleet.submit(a_ticket("for a", 1_000, pinned_node_id="a", priority=Priority.BATCH))
    fleet.submit(a_ticket("for b", 1_000, pinned_node_id="b", priority=Priority.BATCH))
    fleet.now_s = 30.0
    fleet.submit(a_ticket("fresh", 1_000, priority=Priority.INTERACTIVE, arrived_s=30.0))
    assert drain(fleet, fleet.first(lease)) == ["for b", "fresh"]


def test_a_key_with_many_requests_waits_behind_one_with_few() -> None:
    fleet = Fleet(*agents("a"))
    lease = fleet.lease(a_ticket("0", 5_000))
    for number in range(5):
        fleet.submit(by("much", a_ticket(f"m{number}", 1_000)))
    fleet.submit(by("little", a_ticket("l", 1_500)))
    assert drain(fleet, fleet.first(lease)).index("l") <= 2


def test_a_full_queue_rejects_the_next_with_its_position() -> None:
    fleet = Fleet(*agents("a"), limits=AdmissionLimits(max_waiting=2))
    fleet.lease(a_ticket("0", 5_000))
    for number in range(2):
        queued(fleet.submit(a_ticket(f"{number}", 1_000)))
    rejection = rejected(fleet.submit(a_ticket("x", 2_000)))
    assert (rejection.kind, rejection.position) == (RejectKind.QUEUE_FULL, 3)
    assert rejection.wait_s > 0.0
    assert rejection.retry_after_s is not None
    assert RETRY_AFTER_S <= rejection.retry_after_s <= MAX_RETRY_AFTER_S
    assert len(fleet.scheduler._admission) == 2


def test_a_lower_limit_rejects_the_next_and_keeps_those_that_wait() -> None:
    fleet = Fleet(*agents("a"))
    fleet.lease(a_ticket("0", 5_000))
    for number in range(3):
        queued(fleet.submit(a_ticket(f"{number}", 1_000)))
    fleet.scheduler.set_limits(AdmissionLimits(max_waiting=2))
    assert rejected(fleet.submit(a_ticket("x", 2_000))).kind is RejectKind.QUEUE_FULL
    assert len(fleet.scheduler._admission) == 3
    fleet.scheduler.set_limits(AdmissionLimits(max_waiting=9))
    queued(fleet.submit(a_ticket("y", 2_000)))


def test_in_a_full_queue_the_key_with_most_makes_room_for_another() -> None:
    fleet = Fleet(*agents("a"), limits=AdmissionLimits(max_waiting=3))
    fleet.lease(a_ticket("0", 5_000))
    for number in range(3):
        queued(fleet.submit(by("much", a_ticket(f"m{number}", 1_000 + 100 * number))))
    admitted, evicted = fleet.submit(by("little", a_ticket("l", 9_000)))
    assert isinstance(admitted, Queued)
    assert isinstance(evicted, Reject)
    assert (evicted.ticket_id, evicted.kind) == ("m2", RejectKind.QUEUE_FULL)


def test_a_full_queue_of_one_model_is_no_matter_of_another() -> None:
    both = node_view("a", *(model_status(name, max_rows=1) for name in "mx"))
    fleet = Fleet(both, limits=AdmissionLimits(max_waiting=1))
    fleet.lease(a_ticket("0"))
    queued(fleet.submit(a_ticket("1")))
    rejected(fleet.submit(a_ticket("2")))
    granted(fleet.submit(a_ticket("3", model="x")))


def test_a_request_that_leaves_the_queue_causes_no_more_actions() -> None:
    fleet = Fleet(*agents("a"))
    lease = fleet.lease(a_ticket("0", 5_000))
    queued(fleet.submit(a_ticket("1", 1_000)))
    fleet.scheduler.on_disconnect("1")
    assert len(fleet.scheduler._admission) == 0
    assert fleet.first(lease) == []
    assert fleet.scheduler.wake_s() is None


def test_a_deadline_that_passes_in_the_queue_ends_the_wait() -> None:
    fleet = Fleet(*agents("a"))
    fleet.lease(a_ticket("0", 5_000))
    queued(fleet.submit(a_ticket("1", 1_000, deadline_s=18.0)))
    fleet.lease(a_ticket("2", 0, path=PATH_COUNT_TOKENS))
    fleet.now_s = 18.0
    wakes_s = fleet.scheduler.wake_s()
    assert wakes_s is not None
    assert wakes_s <= 18.0
    rejection = rejected(fleet.scheduler.on_time(fleet.moment))
    assert (rejection.ticket_id, rejection.kind) == ("1", RejectKind.DEADLINE)


def test_a_request_whose_wait_passes_its_deadline_by_far_is_rejected_at_once() -> None:
    fleet = Fleet(*agents("a"))
    fleet.lease(a_ticket("0", 50_000))
    rejection = rejected(fleet.submit(a_ticket("1", 1_000, deadline_s=5.0)))
    assert (rejection.kind, rejection.position) == (RejectKind.DEADLINE, 1)
    assert rejection.wait_s > 50.0
    fleet.now_s = 6.0
    assert rejected(fleet.submit(a_ticket("2", deadline_s=5.0))).kind is RejectKind.DEADLINE


def test_a_request_that_waits_for_a_model_that_no_node_has_any_more_is_rejected() -> None:
    fleet = Fleet(*agents("a"))
    fleet.lease(a_ticket("0", 5_000))
    queued(fleet.submit(a_ticket("1", 1_000)))
    fleet.views = (node_view("a", reachable=False),)
    rejection = rejected(fleet.scheduler.on_fleet(fleet.moment))
    assert (rejection.ticket_id, rejection.kind) == ("1", RejectKind.NO_NODE)


def test_a_lost_node_s_waiting_request_is_rejected_also_where_it_returned_meanwhile() -> None:
    fleet = Fleet(*agents("a"))
    lost = (node_view("a", reachable=False),)
    fleet.lease(a_ticket("0", 5_000))
    queued(fleet.submit(a_ticket("1", 1_000)))
    for name, views in (("1", lost), ("", agents("a")), ("2", lost)):
        fleet.views = views
        rejected_ids = [
            each.ticket_id
            for each in fleet.scheduler.on_fleet(fleet.moment)
            if isinstance(each, Reject)
        ]
        assert rejected_ids == ([name] if name else [])
        if not name:
            queued(fleet.submit(a_ticket("2", 1_000)))


def test_a_count_of_tokens_waits_for_nobody() -> None:
    fleet = Fleet(*agents("a"))
    fleet.lease(a_ticket("0", 50_000))
    queued(fleet.submit(a_ticket("1", 1_000)))
    granted(fleet.submit(a_ticket("2", 1_000, path=PATH_COUNT_TOKENS)))


def test_a_retry_waits_in_the_queue_like_others() -> None:
    fleet = Fleet(*agents("a", "b"))
    first = fleet.lease(a_ticket("1", 5_000, pinned_node_id="a"))
    fleet.lease(a_ticket("2", 5_000, pinned_node_id="b"))
    retried = fleet.lease(a_ticket("3", 0, path=PATH_COUNT_TOKENS))
    granted(fleet.scheduler.on_failed(retried, fleet.moment, Failure.ERROR_RESPONSE))
    actions = fleet.scheduler.on_failed(first, fleet.moment, Failure.BROKEN)
    assert granted(actions).attempt == 2


def test_a_decision_names_every_node_and_why_one_was_chosen() -> None:
    fleet = Fleet(*agents("a"), node_view("b", reachable=False), node_view("c", model_status("x")))
    (action,) = fleet.submit(a_ticket("1", 1_000))
    assert isinstance(action, Grant)
    assert [terms.node_id for terms in action.decision.nodes] == ["a", "b", "c"]
    assert action.decision.nodes[1].excluded == "It cannot be reached."
    assert action.decision.nodes[2].excluded == "It does not have the model."
    assert action.decision.reason == "a is the only node that can serve it."
    assert action.decision.chosen is action.decision.nodes[0]


def test_where_no_node_can_serve_it_the_reason_names_each_node_s() -> None:
    fleet = Fleet(node_view("b", reachable=False), node_view("c", model_status("x")))
    explained = fleet.scheduler.explain(a_ticket("1"), fleet.moment)
    assert explained.node_id == ""
    assert explained.reason == (
        "No node can serve it. b: It cannot be reached. c: It does not have the model. "
        "`router nodes` shows more."
    )
    fleet.views = ()
    explained = fleet.scheduler.explain(a_ticket("1"), fleet.moment)
    assert explained.reason == "The fleet has no node; `router add-node` adds one."


def test_explaining_changes_nothing() -> None:
    fleet = Fleet(*agents("a"))
    fleet.lease(a_ticket("1", 1_000))
    queue_s = fleet.term(a_ticket("x"), "a", "queue_s")
    fleet.now_s = 1_000.0
    assert fleet.term(a_ticket("x"), "a", "queue_s") == 0.0
    fleet.now_s = 0.0
    assert fleet.term(a_ticket("x"), "a", "queue_s") == queue_s > 0.0


def test_a_reason_names_the_term_that_made_the_difference() -> None:
    fleet = Fleet(*agents("a", "b"))
    fleet.prefixes.add("a", chain(7, 1), 9_000)
    explained = fleet.scheduler.explain(a_ticket("1", 10_000, of=7), fleet.moment)
    assert explained.node_id == "a"
    assert "most of the difference for its uncached tokens" in explained.reason


def test_those_for_whom_nothing_is_free_block_nobody() -> None:
    fleet = Fleet(node_view("a", cached_model("x")), node_view("b", cached_model("m")))
    fleet.lease(a_ticket("big", 9_000, model="x"))
    for number in range(SCAN_TICKETS + 6):
        queued(fleet.submit(a_ticket(f"x{number}", 100, model="x")))
    assert granted(fleet.submit(a_ticket("m", 1_000, model="m"))).node_id == "b"


def test_those_that_are_pinned_to_a_busy_node_block_nobody() -> None:
    fleet = Fleet(*agents("a", "b"))
    fleet.lease(a_ticket("big", 9_000, pinned_node_id="a"))
    for number in range(SCAN_TICKETS + 6):
        queued(fleet.submit(a_ticket(f"p{number}", 100, pinned_node_id="a")))
    assert granted(fleet.submit(a_ticket("m", 1_000))).node_id == "b"


def test_a_full_queue_evicts_the_last_of_a_worse_class_first() -> None:
    fleet = Fleet(*agents("a", max_rows=1), limits=AdmissionLimits(max_waiting=2))
    fleet.lease(a_ticket("0", 9_000))
    for name in ("1", "2"):
        queued(fleet.submit(a_ticket(name, 1_000, priority=Priority.BATCH)))
    admitted, evicted = fleet.submit(a_ticket("i", 1_000, priority=Priority.INTERACTIVE))
    assert queued([admitted]).position == 1
    assert (rejected([evicted]).ticket_id, rejected([evicted]).kind) == ("2", RejectKind.QUEUE_FULL)


def test_the_wait_is_that_for_the_node_that_it_waits_for() -> None:
    fleet = Fleet(*agents("a", "b"))
    fleet.lease(a_ticket("1", 9_000, pinned_node_id="a"))
    assert queued(fleet.submit(a_ticket("2", 1_000, pinned_node_id="a"))).wait_s > 10.0


def test_a_prompt_that_takes_much_longer_than_its_deadline_is_not_begun() -> None:
    fleet = Fleet(*agents("a"))
    fleet.serve(a_ticket("0", 1_000), prefill_s=1_000 * TOKEN_S)
    reject = rejected(fleet.submit(a_ticket("1", 20_000, deadline_s=1.0)))
    assert reject.kind is RejectKind.DEADLINE
    assert reject.wait_s > 10.0
    assert open_leases(fleet.scheduler) == 0


def test_an_idle_node_is_not_ruled_out_by_a_guess_of_its_speed() -> None:
    fleet = Fleet(*agents("a"))
    for number in range(5):
        lease = fleet.lease(a_ticket(f"{number}", 4_000, deadline_s=1.0 if not number else inf))
        if not number:
            assert rejected(fleet.submit(a_ticket("x", 4_000, deadline_s=1.0))).wait_s > 10.0
        fleet.first(lease)
        fleet.done(lease)
        fleet.judge(lease, usage=usage_record(lease, 4_000, prefill_s=0.1))
    granted(fleet.submit(a_ticket("y", 4_000, deadline_s=1.0)))


def test_a_long_queue_is_not_priced_at_each_event() -> None:
    fleet = Fleet(*agents("a", "b"))
    lease, _ = (fleet.lease(a_ticket(name, 5_000)) for name in "12")
    for number in range(4 * SCAN_TICKETS):
        queued(fleet.submit(a_ticket(f"waits {number}", 5_000)))
    lookups = fleet.prefixes.lookups
    assert fleet.scheduler.on_time(fleet.moment) == []
    assert fleet.prefixes.lookups == lookups
    assert len(fleet.first(lease)) == 1
    assert fleet.prefixes.lookups - lookups <= 2 * (SCAN_TICKETS + 1)


def test_what_nobody_wanted_is_offered_to_new_requests_and_not_looked_up_again() -> None:
    fleet = Fleet(*agents("a", "b"))
    warm = a_ticket("1", 20_000, hints=Hints("s"))
    assert fleet.serve(warm, prefill_s=20_000 * TOKEN_S).node_id == "a"
    assert warm.chain is not None
    fleet.prefixes.add("a", warm.chain, 20_000)
    busy = fleet.lease(a_ticket("2", 1_000, pinned_node_id="a"))
    queued(fleet.submit(replace(warm, request_id="3")))
    lookups = fleet.prefixes.lookups
    assert fleet.scheduler.on_time(fleet.moment) == []
    assert fleet.prefixes.lookups == lookups
    assert fleet.lease(a_ticket("4", 1_000)).node_id == "b"
    assert names(fleet.first(busy)) == ["3"]
