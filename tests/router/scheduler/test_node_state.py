"""What a node carries: this router's leases, and the rows of others that it tells of."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from node.protocol.paths import PATH_COUNT_TOKENS
from router.scheduler.node_state import LINGER_S
from router.scheduler.rates import PRIOR_SERVICE_S
from router.types import Action
from tests.router.conftest import node_status, node_view
from tests.router.scheduler.fleet import Fleet, agents, asking, cached_model, granted, queued


class Told(Fleet):
    """A fleet of one node, whose statuses a test tells."""

    def __init__(self, max_rows: int = 4) -> None:
        super().__init__()
        self.max_rows = max_rows
        self.tell(0)

    def tell(self, active: int, instance_id: str = "i1") -> list[Action]:
        model = cached_model(active_requests=active, max_rows=self.max_rows)
        status = node_status(model, node_id="a", instance_id=instance_id)
        self.views = (replace(node_view("a"), status=status),)
        return self.scheduler.on_fleet(self.moment)

    def queue_s(self) -> float:
        return self.term(asking("x"), "a", "queue_s")


def test_rows_of_others_count_once_two_statuses_have_told_of_them() -> None:
    fleet = Told(max_rows=4)
    fleet.tell(5)
    assert fleet.queue_s() == 0.0
    fleet.tell(5)
    assert fleet.queue_s() == pytest.approx(2 * PRIOR_SERVICE_S / 4)
    assert fleet.term(asking("x"), "a", "decode_interference_s") > 0.0
    fleet.tell(3)
    assert fleet.queue_s() == 0.0


def test_what_the_routers_own_leases_explain_is_no_row_of_others() -> None:
    fleet = Told(max_rows=2)
    leases = [fleet.lease(asking(name, path=PATH_COUNT_TOKENS)) for name in "12"]
    for _ in range(3):
        fleet.tell(2)
    for lease in leases:
        fleet.done(lease)
    assert fleet.queue_s() == 0.0


def test_a_status_that_lags_behind_an_end_tells_of_no_others() -> None:
    fleet = Told(max_rows=2)
    for number in range(8):
        lease = fleet.lease(asking(f"{number}"))
        fleet.first(lease)
        fleet.done(lease)
        fleet.tell(1)
        assert fleet.queue_s() == 0.0
        fleet.tell(0)


def test_a_status_that_lags_behind_a_beginning_hides_no_others_for_long() -> None:
    fleet = Told(max_rows=2)
    fleet.tell(2)
    lease = fleet.lease(asking("own"))
    fleet.tell(2)
    fleet.first(lease)
    assert fleet.queue_s() == pytest.approx(PRIOR_SERVICE_S / 2)
    for _ in range(2):
        fleet.tell(3)
    assert fleet.queue_s() == pytest.approx(2 * PRIOR_SERVICE_S / 2)


def test_where_others_take_all_rows_one_request_is_sent_and_no_more() -> None:
    fleet = Told(max_rows=4)
    for _ in range(2):
        fleet.tell(9)
    lease = granted(fleet.ask(asking("1")))
    fleet.first(lease)
    queued(fleet.ask(asking("2")))
    assert granted(fleet.tell(1)).ticket_id == "2"


def test_another_instance_has_no_rows_of_others() -> None:
    fleet = Told(max_rows=2)
    for _ in range(2):
        fleet.tell(6)
    assert fleet.queue_s() > 0.0
    fleet.tell(6, instance_id="i2")
    assert fleet.queue_s() == 0.0


def test_the_next_turn_goes_to_its_session_s_node_before_that_has_told_what_it_keeps() -> None:
    fleet = Fleet(*agents("a", "b"))
    first = fleet.lease(asking("1", tokens=20_000, of=7))
    fleet.first(first)
    fleet.done(first)
    following = asking("2", tokens=20_400, of=7)
    assert fleet.term(following, first.node_id, "cached_tokens") == pytest.approx(17_000, rel=0.01)
    assert fleet.chosen(following) == first.node_id
    fleet.now_s = LINGER_S
    assert fleet.term(following, first.node_id, "cached_tokens") == 0


def test_nothing_is_expected_of_a_request_that_was_not_prefilled_or_failed() -> None:
    fleet = Fleet(*agents("a"))
    left = fleet.lease(asking("1", tokens=20_000, of=7))
    fleet.done(left)
    assert fleet.term(asking("2", tokens=20_400, of=7), "a", "cached_tokens") == 0
    failed = fleet.lease(asking("3", tokens=20_000, of=8))
    fleet.first(failed)
    fleet.done(failed, failed=True)
    assert fleet.term(asking("4", tokens=20_400, of=8), "a", "cached_tokens") == 0
