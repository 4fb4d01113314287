"""The view of requests that run on nodes or wait for one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from node.protocol.messages import ModelState
from router.client.framing import Loading
from router.dispatch.scheduler_driver import SchedulerDriver
from router.dispatch.traffic import Traffic
from router.fleet.fleet import Fleet
from router.fleet.predictions import Predictions
from router.fleet.prefix_index import PrefixIndex
from router.records.decisions import Decisions
from router.records.metrics import Metrics
from router.scheduler.scheduler import Scheduler
from router.types import Lease, Queued, Target, Ticket
from tests.fakes import FakeClock
from tests.router.conftest import model_status, node_record, node_status, ticket
from tests.router.leases import open_leases


class World:
    """Nodes whose model `m` serves one request at a time, and tickets for them."""

    def __init__(self) -> None:
        self.fleet = Fleet()
        index, metrics = PrefixIndex(), Metrics(str)
        predictions = Predictions(index, metrics)
        self.driver = SchedulerDriver(
            Scheduler(index), self.fleet, Decisions(), metrics, predictions, FakeClock()
        )
        self.waiting: list[asyncio.Task[Lease]] = []

    @property
    def traffic(self) -> Traffic:
        return self.driver.traffic

    def add(self, name: str, **fields: Any) -> None:
        self.fleet.add(node_record("http://x", name))
        self.report(name, **fields)

    def report(self, name: str, **fields: Any) -> None:
        model = model_status("m", **{"max_rows": 1} | fields)
        self.fleet.on_status(f"id-{name}", node_status(model))

    async def queue(self, queued: Ticket) -> Queued:
        """Queues a ticket that no node can take; returns its place."""
        self.waiting.append(asyncio.create_task(self.driver.place(queued)))
        await asyncio.sleep(0)
        place = self.traffic.queued(queued.request_id)
        assert place is not None
        return place


async def test_the_age_of_the_oldest_waiting_ticket_is_counted_by_model_and_class(
    world: World,
) -> None:
    world.add("a")
    await world.driver.place(ticket("1"))
    assert world.traffic.oldest_waits() == {}
    for name, arrived_s in (("old", 993.0), ("new", 998.0)):
        await world.queue(ticket(name, arrived_s=arrived_s))
    assert world.traffic.oldest_waits() == {("m", "default"): 7.0}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    for task in made.waiting:
        task.cancel()
    await asyncio.gather(*made.waiting, return_exceptions=True)


async def test_a_request_on_a_node_waits_for_that_node_s_load(world: World) -> None:
    world.add("a")
    lease = await world.driver.place(ticket())
    assert world.traffic.waits_for(ticket(), lease) is None
    world.add("b", state=ModelState.LOADING, progress=0.25)
    assert world.traffic.waits_for(ticket(), lease) is None
    world.report("a", state=ModelState.LOADING, progress=0.25)
    assert world.traffic.waits_for(ticket(), lease) == Loading("m", 0.25)


async def test_a_request_in_the_queue_waits_for_any_node_s_load(world: World) -> None:
    world.add("a")
    lease = await world.driver.place(ticket("1"))
    place = await world.queue(ticket("2"))
    assert place.position == 1
    assert world.traffic.waits_for(ticket("2"), None) == place
    world.report("a", state=ModelState.LOADING)
    assert world.traffic.waits_for(ticket("2"), lease) == Loading("m", None)


async def test_leases_are_counted_by_node_until_they_end(world: World) -> None:
    world.add("a")
    world.add("b")
    lease = await world.driver.place(ticket())
    other = {"id-a": "id-b", "id-b": "id-a"}[lease.node_id]
    assert open_leases(world.traffic) == world.traffic.in_flight(lease.node_id) == 1
    assert world.traffic.leases_by_node() == {lease.node_id: 1, other: 0}
    world.driver.on_done(lease, served=True)
    assert open_leases(world.traffic) == world.traffic.in_flight(lease.node_id) == 0
    assert world.traffic.leases_by_node() == {lease.node_id: 0, other: 0}


async def test_the_queue_is_counted_by_model_and_class(world: World) -> None:
    assert world.traffic.queue_lengths() == []
    assert world.traffic.queued_models() == frozenset()
    world.add("a")
    await world.driver.place(ticket("1"))
    await world.queue(ticket("2"))
    await world.queue(ticket("3"))
    name = ticket().priority.name.lower()
    assert world.traffic.queue_lengths() == [(("m", name), 2.0)]
    assert world.traffic.queued_models() == frozenset(("m",))
    assert world.traffic.queued("1") is None


async def test_requests_for_a_target_are_those_on_its_nodes_and_those_that_wait(
    world: World,
) -> None:
    world.add("a")
    await world.driver.place(ticket("1"))
    await world.queue(ticket("2"))
    await world.queue(ticket("3", pinned_node_id="id-a"))
    counts = [
        (Target("m"), 3),
        (Target("m", node_id="id-a"), 2),
        (Target("m", node_id="id-b"), 0),
        (Target("m", is_paid=True), 0),
        (Target("other"), 0),
    ]
    for target, count in counts:
        assert world.traffic.in_flight_on(target) == count, target


async def test_an_explanation_changes_nothing(world: World) -> None:
    world.add("a")
    decision = world.traffic.explain(ticket())
    assert (decision.node_id, decision.model) == ("id-a", "m")
    assert open_leases(world.traffic) == 0


async def test_breakers_are_shown_while_they_are_not_closed_and_their_node_is_known(
    world: World,
) -> None:
    world.add("a")
    assert world.traffic.breakers() == []
    for number in range(8):
        lease = await world.driver.place(ticket(str(number)))
        world.driver.on_done(lease, served=False, failed=True)
        if world.traffic.breakers():
            break
    (breaker,) = world.traffic.breakers()
    assert (breaker.node_id, breaker.model) == ("id-a", "m")
    assert world.traffic.breaker_states() == [(("a", "m", breaker.state.value), 1.0)]
    world.fleet.remove("id-a")
    assert world.traffic.breaker_states() == []
