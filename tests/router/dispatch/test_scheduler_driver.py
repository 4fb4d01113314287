from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from router.dispatch.scheduler_driver import SchedulerDriver
from router.errors import DeadlineExceeded, NoNodeReady, QueueFull
from router.fleet.fleet import Fleet
from router.fleet.predictions import Predictions
from router.fleet.prefix_index import PrefixIndex
from router.records.decisions import Decisions
from router.records.metrics import Metrics
from router.scheduler.queue import AdmissionLimits
from router.scheduler.scheduler import Scheduler
from router.types import Failure, Lease
from tests.router.conftest import WAIT_S, model_status, node_record, node_status, ticket
from tests.router.leases import open_leases


class World:
    """A node that serves one request at a time."""

    def __init__(self, max_waiting: int = 8) -> None:
        self.fleet = Fleet()
        index, metrics = PrefixIndex(), Metrics(str)
        scheduler = Scheduler(index, AdmissionLimits(max_waiting))
        self.placing = SchedulerDriver(
            scheduler, self.fleet, Decisions(), metrics, Predictions(index, metrics)
        )
        self.tasks: list[asyncio.Task[Lease]] = []
        self.report_status("a")

    def report_status(self, name: str) -> None:
        self.fleet.add(node_record("http://x", name))
        self.fleet.on_status("id-" + name, node_status(model_status("m", max_rows=1)))

    async def place(self, request_id: str, **fields: Any) -> asyncio.Task[Lease]:
        """A task that has either been granted a lease or waits in the queue."""
        task = asyncio.create_task(self.placing.place(ticket(request_id, **fields)))
        self.tasks.append(task)
        while not task.done() and self.placing.traffic.queued(request_id) is None:
            await asyncio.sleep(0)
        return task

    async def lease(self, task: asyncio.Task[Lease]) -> Lease:
        return await asyncio.wait_for(asyncio.shield(task), WAIT_S)


@pytest_asyncio.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    for task in made.tasks:
        task.cancel()
    await asyncio.gather(*made.tasks, return_exceptions=True)


async def test_a_request_waits_until_its_node_is_free_and_then_gets_its_lease(
    world: World,
) -> None:
    first = await world.lease(await world.place("1"))
    second = await world.place("2")
    standing = world.placing.traffic.queued("2")
    assert standing is not None
    assert standing.position == 1
    assert world.placing.traffic.queue_lengths() == [(("m", "default"), 1.0)]
    world.placing.on_done(first, served=True)
    assert (await world.lease(second)).ticket_id == "2"
    assert world.placing.traffic.queued("2") is None
    assert open_leases(world.placing.traffic) == 1


async def test_a_caller_that_leaves_the_queue_is_forgotten(world: World) -> None:
    first = await world.lease(await world.place("1"))
    second = await world.place("2")
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    assert world.placing.traffic.queue_lengths() == []
    world.placing.on_done(first, served=True)
    assert open_leases(world.placing.traffic) == 0


async def test_a_lease_granted_to_a_cancelled_task_is_released(world: World) -> None:
    first = await world.lease(await world.place("1"))
    second = await world.place("2")
    world.placing.on_done(first, served=True)
    # Granted, but its task has not run since.
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    assert open_leases(world.placing.traffic) == 0


async def test_a_lease_granted_after_its_caller_left_is_released(world: World) -> None:
    first = await world.lease(await world.place("1"))
    second = await world.place("2")
    second.cancel()
    # Its task has not run since, so that the scheduler does not know.
    world.placing.on_done(first, served=True)
    with pytest.raises(asyncio.CancelledError):
        await second
    assert open_leases(world.placing.traffic) == 0
    assert (await world.lease(await world.place("3"))).ticket_id == "3"


async def test_callers_that_leave_all_at_once_are_forgotten_however_many() -> None:
    world = World(max_waiting=512)
    first = await world.lease(await world.place("1"))
    others = [await world.place(str(number)) for number in range(2, 402)]
    for each in others:
        each.cancel()
    world.placing.on_done(first, served=True)
    assert open_leases(world.placing.traffic) == 0
    assert world.placing.traffic.queue_lengths() == []
    await asyncio.gather(*others, return_exceptions=True)


async def test_what_a_caller_that_has_just_left_gives_back_serves_the_next_request(
    world: World,
) -> None:
    first = await world.lease(await world.place("1"))
    second = await world.place("2")
    second.cancel()
    again = world.placing.place_again(ticket("1"), first, Failure.BROKEN)
    lease = await asyncio.wait_for(again, WAIT_S)
    assert (lease.ticket_id, lease.attempt) == ("1", 2)
    assert open_leases(world.placing.traffic) == 1


async def test_a_new_node_is_sent_waiting_requests(world: World) -> None:
    await world.place("1")
    second = await world.place("2")
    world.report_status("b")
    assert (await world.lease(second)).node_id == "id-b"


async def test_a_request_that_waits_for_a_node_that_goes_is_rejected(world: World) -> None:
    await world.place("1")
    second = await world.place("2")
    world.fleet.lost("id-a", "Gone.")
    with pytest.raises(NoNodeReady):
        await world.lease(second)


async def test_a_deadline_that_passes_in_the_queue_ends_the_wait(world: World) -> None:
    await world.place("1")
    second = await world.place("2", deadline_s=time.monotonic() + 1.5)
    assert world.placing.traffic.queued("2") is not None
    with pytest.raises(DeadlineExceeded):
        await world.lease(second)
    assert world.placing.traffic.queue_lengths() == []


async def test_a_full_queue_reports_the_position_that_one_would_have_had() -> None:
    world = World(max_waiting=1)
    await world.place("1")
    second = await world.place("2")
    third = await world.place("3")
    with pytest.raises(QueueFull) as raised:
        await world.lease(third)
    assert raised.value.position == 2
    assert raised.value.estimated_wait_s
    assert raised.value.retry_after_s
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)


async def test_a_retry_waits_in_the_queue_too(world: World) -> None:
    first = await world.lease(await world.place("1"))
    world.report_status("b")
    await world.place("2")
    failed = world.placing.place_again(ticket("1"), first, Failure.ERROR_RESPONSE)
    again = asyncio.create_task(failed)
    world.tasks.append(again)
    while world.placing.traffic.queued("1") is None:
        await asyncio.sleep(0)
    other = await world.lease(world.tasks[1])
    world.placing.on_done(other, served=True)
    lease = await world.lease(again)
    assert (lease.node_id, lease.attempt) == ("id-b", 2)
