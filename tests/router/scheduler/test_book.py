"""What a node carries: this router's leases, and the rows of others that it tells of."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from router.scheduler.rates import PRIOR_SERVICE_S
from router.types import PATH_COUNT_TOKENS, Action
from tests.router.conftest import node_status, node_view
from tests.router.scheduler.fleet import Fleet, asking, cached_model, granted, queued


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
    assert fleet.term(asking("x"), "a", "slowdown_s") > 0.0
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
