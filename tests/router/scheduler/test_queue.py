"""Who is promoted over whom, and which deadlines are kept."""

from __future__ import annotations

import pytest

from router.scheduler.node_state import NodeBooks
from router.scheduler.placement import Placement
from router.scheduler.queue import MAX_STALE_DEADLINES, AdmissionLimits, FairQueue, WaitingTicket
from router.scheduler.rates import Rates
from router.scheduler.sessions import Sessions
from router.types import Action, Grant, Lease, Priority
from tests.router.conftest import node_view
from tests.router.scheduler.fleet import Fleet, Prefixes, a_ticket, cached_model


@pytest.mark.parametrize("batch_model", ["x", "y"])
def test_a_third_of_the_work_is_for_the_promoted_whichever_model_others_request(
    batch_model: str,
) -> None:
    """One node that is never idle: each second a prompt of a second ends, and an interactive one
    comes."""
    fleet = Fleet(node_view("a", cached_model("x"), cached_model("y")))
    live: list[Lease] = []
    begun_s: list[float] = []

    def take(actions: list[Action]) -> None:
        leases = [action.lease for action in actions if isinstance(action, Grant)]
        live.extend(leases)
        begun_s.extend(fleet.now_s for each in leases if each.ticket_id.startswith("batch"))

    def submit(name: str, model: str, priority: Priority) -> None:
        take(
            fleet.submit(a_ticket(name, 300, model=model, priority=priority, arrived_s=fleet.now_s))
        )

    for number in range(3):
        submit(f"{number}", "x", Priority.INTERACTIVE)
    for number in range(5):
        submit(f"batch {number}", batch_model, Priority.BATCH)
    for second in range(1, 60):
        fleet.now_s = float(second)
        lease = live.pop(0)
        take(fleet.first(lease))
        take(fleet.done(lease))
        submit(f"at {second}", "x", Priority.INTERACTIVE)
    assert begun_s == [30.0, 33.0, 36.0, 39.0, 42.0]


def test_tickets_that_wait_are_promoted_by_the_new_limit() -> None:
    fleet = Fleet(node_view("a", cached_model("x")))
    lease = fleet.lease(a_ticket("0", 300, model="x"))
    fleet.submit(a_ticket("large", 3_000, model="x", priority=Priority.BATCH))
    fleet.submit(a_ticket("small", 300, model="x", priority=Priority.INTERACTIVE))
    fleet.scheduler.set_limits(AdmissionLimits(promote_after_s=5.0))
    fleet.now_s = 6.0
    granted = [each for each in fleet.first(lease) if isinstance(each, Grant)]
    assert granted[0].lease.ticket_id == "large"


def test_deadlines_of_those_that_left_do_not_gather() -> None:
    placement = Placement(Prefixes(), Rates(), NodeBooks(), Sessions())
    queue = FairQueue(AdmissionLimits())
    for number in range(1_000):
        ticket = a_ticket(f"{number}", deadline_s=1_000.0 - number)
        queue.add(WaitingTicket(placement.estimate(ticket, 0.0), 0.0, 1.0))
        if number % 100:
            queue.remove(ticket.request_id)
    assert len(queue) == 10
    assert len(queue._deadlines) <= 2 * len(queue) + MAX_STALE_DEADLINES
    assert queue.next_deadline_s() == 100.0
    assert [each.estimate.ticket.request_id for each in queue.overdue(200.0)] == ["900", "800"]
    for number in range(0, 1_000, 100):
        queue.remove(f"{number}")
    queue.add(WaitingTicket(placement.estimate(a_ticket("last", deadline_s=5.0), 0.0), 0.0, 1.0))
    assert len(queue._deadlines) == 1
