"""Tests the load of a node: this router's leases, and the sequences of others that it reports."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from node.protocol.paths import PATH_COUNT_TOKENS
from router.scheduler.node_state import LINGER_S
from router.scheduler.rates import PRIOR_SERVICE_S
from router.types import Action
from tests.router.conftest import node_status, node_view
from tests.router.scheduler.fleet import Fleet, a_ticket, agents, cached_model, granted, queued


class ReportingFleet(Fleet):
    """A fleet of one node, whose statuses a test reports."""

    def __init__(self, max_rows: int = 4) -> None:
        super().__init__()
        self.max_rows = max_rows
        self.report(0)

    def report(self, active: int, instance_id: str = "i1") -> list[Action]:
        model = cached_model(active_requests=active, max_rows=self.max_rows)
        status = node_status(model, node_id="a", instance_id=instance_id)
        self.views = (replace(node_view("a"), status=status),)
        return self.scheduler.on_fleet(self.moment)

    def queue_s(self) -> float:
        return self.term(a_ticket("x"), "a", "queue_s")


def test_sequences_of_others_count_once_two_statuses_have_reported_them() -> None:
    fleet = ReportingFleet(max_rows=4)
    fleet.report(5)
    assert fleet.queue_s() == 0.0
    fleet.report(5)
    assert fleet.queue_s() == pytest.approx(2 * PRIOR_SERVICE_S / 4)
    assert fleet.term(a_ticket("x"), "a", "decode_interference_s") > 0.0
    fleet.report(3)
    assert fleet.queue_s() == 0.0


def test_what_the_routers_own_leases_explain_is_no_sequence_of_others() -> None:
    fleet = ReportingFleet(max_rows=2)
    leases = [fleet.lease(a_ticket(name, path=PATH_COUNT_TOKENS)) for name in "12"]
    for _ in range(3):
        fleet.report(2)
    for lease in leases:
        fleet.done(lease)
    assert fleet.queue_s() == 0.0


def test_a_status_that_lags_behind_an_end_reports_no_others() -> None:
    fleet = ReportingFleet(max_rows=2)
    for number in range(8):
        lease = fleet.lease(a_ticket(f"{number}"))
        fleet.first(lease)
        fleet.done(lease)
        fleet.report(1)
        assert fleet.queue_s() == 0.0
        fleet.report(0)


def test_a_status_that_lags_behind_a_beginning_hides_no_others_for_long() -> None:
    fleet = ReportingFleet(max_rows=2)
    fleet.report(2)
    lease = fleet.lease(a_ticket("own"))
    fleet.report(2)
    fleet.first(lease)
    assert fleet.queue_s() == pytest.approx(PRIOR_SERVICE_S / 2)
    for _ in range(2):
        fleet.report(3)
    assert fleet.queue_s() == pytest.approx(2 * PRIOR_SERVICE_S / 2)


def test_where_others_take_all_rows_one_request_is_sent_and_no_more() -> None:
    fleet = ReportingFleet(max_rows=4)
    for _ in range(2):
        fleet.report(9)
    lease = granted(fleet.submit(a_ticket("1")))
    fleet.first(lease)
    queued(fleet.submit(a_ticket("2")))
    assert granted(fleet.report(1)).ticket_id == "2"


def test_another_instance_has_no_sequences_of_others() -> None:
    fleet = ReportingFleet(max_rows=2)
    for _ in range(2):
        fleet.report(6)
    assert fleet.queue_s() > 0.0
    fleet.report(6, instance_id="i2")
    assert fleet.queue_s() == 0.0


def test_the_next_turn_goes_to_its_session_s_node_before_that_has_reported_its_cache() -> None:
    fleet = Fleet(*agents("a", "b"))
    first = fleet.lease(a_ticket("1", tokens=20_000, of=7))
    fleet.first(first)
    fleet.done(first)
    following = a_ticket("2", tokens=20_400, of=7)
    assert fleet.term(following, first.node_id, "cached_tokens") == pytest.approx(17_000, rel=0.01)
    assert fleet.chosen(following) == first.node_id
    fleet.now_s = LINGER_S
    assert fleet.term(following, first.node_id, "cached_tokens") == 0


def test_nothing_is_expected_of_a_request_that_was_not_prefilled_or_failed() -> None:
    fleet = Fleet(*agents("a"))
    left = fleet.lease(a_ticket("1", tokens=20_000, of=7))
    fleet.done(left)
    assert fleet.term(a_ticket("2", tokens=20_400, of=7), "a", "cached_tokens") == 0
    failed = fleet.lease(a_ticket("3", tokens=20_000, of=8))
    fleet.first(failed)
    fleet.done(failed, failed=True)
    assert fleet.term(a_ticket("4", tokens=20_400, of=8), "a", "cached_tokens") == 0
