from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from node.protocol.messages import Began, FinishReason
from registry.records import ResidencyRecord
from router.dispatch.dispatcher import Dispatcher, DispatchRecords, NotSent
from router.dispatch.scheduler_driver import SchedulerDriver
from router.errors import DeadlineExceeded, NoNodeReady, UnknownModel
from router.fleet.fleet import Fleet
from router.fleet.predictions import Predictions
from router.fleet.prefix_index import PrefixIndex
from router.fleet.watcher import Watcher
from router.records.decisions import Decisions
from router.records.ledger import Ledger
from router.records.metrics import Metrics
from router.records.outcomes import (
    OUTCOME_CANCELLED,
    OUTCOME_NODE_FAILED,
    OUTCOME_REFUSED,
    OUTCOME_SERVED,
)
from router.routing.paid_budgets import Budgets
from router.scheduler.scheduler import Scheduler
from router.types import Failure
from router.upstream.http_failures import UpstreamBroken
from tests.fakes import FakeClock
from tests.router.conftest import (
    FINISHED,
    ORIGINS,
    WAIT_S,
    Request,
    StartNode,
    lease,
    model_status,
    node_record,
    node_status,
    proven,
    silent,
    ticket,
)
from tests.router.leases import open_leases


class World:
    def __init__(self, fleet: Fleet | None = None) -> None:
        self.fleet = fleet or Fleet()
        self.prefixes = PrefixIndex()
        self.clock = FakeClock()
        metrics, decisions = Metrics(str), Decisions()
        self.metrics, self.decisions = metrics, decisions
        predictions = Predictions(self.prefixes, metrics)
        self.placing = SchedulerDriver(
            Scheduler(self.prefixes), self.fleet, decisions, metrics, predictions, self.clock
        )
        budgets = Budgets(self.fleet, {}, self.clock, metrics.charged)
        self.ledger = Ledger(ORIGINS, self.placing, budgets.charge)
        self.watcher = Watcher(self.fleet, self.ledger, self.prefixes)
        records = DispatchRecords(self.prefixes, decisions, metrics)
        self.dispatcher = Dispatcher(self.fleet, self.watcher, self.ledger, self.placing, records)

    def add(self, name: str) -> None:
        """A node that has reported its status and that nobody can connect to."""
        self.fleet.add(node_record("http://x", name))
        self.fleet.on_status("id-" + name, node_status(model_status("m")))


def first_contents(world: World) -> float | None:
    """Returns the number of first contents that the metrics have counted; None before the first."""
    start = 'mlx_fleet_ttft_seconds_count{model="m",node="id-a"} '
    lines = world.metrics.text().decode().splitlines()
    return next((float(line.removeprefix(start)) for line in lines if line.startswith(start)), None)


@pytest_asyncio.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    await asyncio.wait_for(made.watcher.close(), WAIT_S)


async def test_a_model_that_no_node_has_is_unknown(world: World) -> None:
    with pytest.raises(UnknownModel, match="router models"):
        await world.dispatcher.place(ticket())


async def test_a_model_whose_nodes_are_away_has_no_node_ready(world: World) -> None:
    world.add("a")
    world.fleet.lost("id-a", "Gone.")
    with pytest.raises(NoNodeReady, match="router nodes") as raised:
        await world.dispatcher.place(ticket())
    assert raised.value.retry_after_s
    assert open_leases(world.dispatcher.traffic) == 0


async def test_a_node_that_was_removed_before_the_request_went_out_has_failed(
    world: World,
) -> None:
    world.add("a")
    lease = await world.dispatcher.place(ticket())
    world.fleet.remove("id-a")
    with pytest.raises(NotSent, match="removed from the fleet"):
        world.dispatcher.prepare(ticket(), lease)
    assert world.dispatcher.node_name(lease) == "id-a"
    assert await world.dispatcher.place_again(ticket(), lease, Failure.UNSENT) is None
    assert open_leases(world.dispatcher.traffic) == 0
    world.ledger.close_all()
    assert world.ledger.waiting_rows == 0
    world.dispatcher.forget_node("id-a")


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_a_router_without_files_blames_no_node(
    world: World, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    error = OSError(number, "Too many open files")
    for _ in range(100):
        failure = world.dispatcher.node_failed(lease(), error)
        assert isinstance(failure, NotSent)
        assert "as many files open as it may" in failure.message
    assert len(caplog.messages) == 1


@pytest.mark.parametrize(
    ("error", "how"),
    [
        (UpstreamBroken("The node has stopped responding."), " (The node has stopped responding)"),
        (OSError(errno.ECONNRESET, "10.0.0.7 did it"), " (Connection reset by peer)"),
        (ConnectionResetError(), ""),
        (RuntimeError("10.0.0.7 did it"), ""),
    ],
)
def test_a_broken_connection_is_reported_in_words_and_without_addresses(
    world: World, error: Exception, how: str
) -> None:
    failure = world.dispatcher.node_failed(lease(), error)
    name = world.dispatcher.node_name(lease())
    assert failure.message == f"The connection to the node {name} broke{how}."


async def test_a_lease_ends_in_scheduler_and_ledger(world: World) -> None:
    world.add("a")
    lease = await world.dispatcher.place(ticket())
    assert lease.granted_s == world.clock.now_s
    assert (world.dispatcher.traffic.in_flight("id-a"), open_leases(world.dispatcher.traffic)) == (
        1,
        1,
    )
    world.ledger.opened(ticket(), lease, "a", "i1", reported=False)
    world.dispatcher.done(ticket(lease.ticket_id), lease, OUTCOME_SERVED)
    assert (world.dispatcher.traffic.in_flight("id-a"), open_leases(world.dispatcher.traffic)) == (
        0,
        0,
    )
    assert [row.reason for row in world.ledger.pop_rows()] == [OUTCOME_SERVED]


async def test_a_node_that_was_added_again_keeps_what_was_learned_of_it_since(
    world: World, start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten: list[str] = []
    monkeypatch.setattr(world.placing, "on_node_removed", forgotten.append)
    record = node_record((await start_node(silent)).url, "a")
    for is_back in (True, False):
        await world.watcher.watch(record)
        lease = await world.dispatcher.place(ticket(f"{is_back}"))
        await world.watcher.unwatch("id-a")
        world.dispatcher.forget_node("id-a")
        if is_back:
            await world.watcher.watch(record)
        world.dispatcher.done(ticket(lease.ticket_id), lease, OUTCOME_CANCELLED)
        assert not world.watcher.awaits_release("id-a")
        assert forgotten == ["id-a"] * (1 if is_back else 2)
        forgotten.clear()
        await world.watcher.unwatch("id-a")
        world.watcher.release("id-a")


async def test_a_node_that_failed_a_request_is_passed_over_for_a_while(world: World) -> None:
    world.add("a")
    world.add("b")
    lease = await world.dispatcher.place(ticket("1"))
    world.dispatcher.done(ticket(lease.ticket_id), lease, OUTCOME_NODE_FAILED)
    for number in range(2, 5):
        other = await world.dispatcher.place(ticket(str(number)))
        assert other.node_id != lease.node_id
    world.clock.advance(60.0)
    assert (await world.dispatcher.place(ticket("5"))).node_id == lease.node_id


@pytest.mark.parametrize("stream", [True, False])
async def test_the_first_content_of_each_answer_is_counted_once(world: World, stream: bool) -> None:
    world.add("a")
    request = ticket("1", stream=stream)
    lease = await world.dispatcher.place(request)
    world.ledger.opened(request, lease, "a", "i1", reported=True)
    world.ledger.on_began("id-a", "i1", Began("1", FINISHED.origin))
    if stream:
        world.dispatcher.on_first_content(request, lease)
    assert first_contents(world) == (1.0 if stream else None)
    world.dispatcher.done(request, lease, OUTCOME_SERVED)
    finished = proven(msgspec.structs.replace(FINISHED, request_id="1"), "id-a")
    world.ledger.on_finished("id-a", "i1", finished)
    assert first_contents(world) == 1.0
    decided = world.decisions.find("1")
    assert decided is not None and decided.attempts[0].ttft_s is not None


async def test_a_node_s_accounts_are_received_before_the_next_request_is_placed(
    world: World,
) -> None:
    world.add("a")
    world.add("b")
    lease = await world.dispatcher.place(ticket("1"))
    world.ledger.opened(ticket("1"), lease, "a", "i1", reported=True)
    world.dispatcher.done(ticket(lease.ticket_id), lease, OUTCOME_SERVED)
    finished = msgspec.structs.replace(FINISHED, request_id="1", reason=FinishReason.ERROR)
    world.ledger.on_finished(lease.node_id, "i1", proven(finished, lease.node_id))
    for number in range(2, 5):
        assert (await world.dispatcher.place(ticket(str(number)))).node_id != lease.node_id


async def test_a_model_of_a_node_that_has_not_reported_since_the_start_has_no_node_ready() -> None:
    world = World(Fleet([ResidencyRecord("id-a", "m", "ready", 1, 0.0)]))
    world.fleet.add(node_record("http://x"))
    assert world.fleet.models == {"m"}
    with pytest.raises(NoNodeReady):
        await world.dispatcher.place(ticket())


async def test_a_node_that_started_anew_meanwhile_is_not_sent_the_request(
    world: World, start_node: StartNode
) -> None:
    async def never(_request: Request) -> None:
        raise AssertionError

    node = await start_node(never)
    await asyncio.wait_for(world.watcher.watch(node_record(node.url)), WAIT_S)
    lease = await world.dispatcher.place(ticket())
    world.fleet.on_status("id-a", node_status(model_status("m"), instance_id="i2"))
    with pytest.raises(NotSent, match="has restarted"):
        world.dispatcher.prepare(ticket(), lease)
    again = await world.dispatcher.place_again(ticket(), lease, Failure.UNSENT)
    assert again is not None
    assert (again.instance_id, again.attempt) == ("i2", 1)
    world.dispatcher.done(ticket(), again, OUTCOME_SERVED)
    assert open_leases(world.dispatcher.traffic) == 0


async def test_a_retry_that_is_too_late_for_its_deadline_is_rejected_for_it(world: World) -> None:
    world.add("a")
    late = ticket(deadline_s=world.clock.now_s + 1.0)
    lease = await world.dispatcher.place(late)
    world.clock.advance(2.0)
    with pytest.raises(DeadlineExceeded):
        await world.dispatcher.place_again(late, lease, Failure.BROKEN)
    assert open_leases(world.dispatcher.traffic) == 0


async def test_a_node_that_does_not_accept_the_connection_has_failed(
    world: World, start_node: StartNode
) -> None:
    async def never(_request: Request) -> None:
        raise AssertionError

    node = await start_node(never)
    await asyncio.wait_for(world.watcher.watch(node_record(node.url)), WAIT_S)
    lease = await world.dispatcher.place(ticket())
    assert node._server is not None
    node._server.close()
    foreign = world.dispatcher.prepare(ticket(), lease)
    with pytest.raises(OSError) as broke:
        await world.dispatcher.open(ticket(), lease, foreign)
    failure = world.dispatcher.node_failed(lease, broke.value)
    assert "connection to the node a broke" in failure.message
    world.ledger.close_all()
    assert world.ledger.waiting_rows == 1


# --- callers that leave while no node has their request ---


def full(world: World) -> None:
    """A node with one place."""
    world.fleet.add(node_record("http://x", "a"))
    world.fleet.on_status("id-a", node_status(model_status("m", max_rows=1)))


async def leave(world: World, waiting: asyncio.Task[Any], request_id: str) -> None:
    while world.dispatcher.traffic.queued(request_id) is None:
        assert not waiting.done()
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_request_that_leaves_the_queue_has_a_usage_record_without_a_node(
    world: World,
) -> None:
    full(world)
    lease = await world.dispatcher.place(ticket("1"))
    await leave(world, asyncio.create_task(world.dispatcher.place(ticket("2"))), "2")
    (row,) = world.ledger.pop_rows()
    assert (row.request_id, row.node_id, row.reason) == ("2", "", OUTCOME_CANCELLED)
    world.dispatcher.done(ticket("1"), lease, OUTCOME_CANCELLED)


async def test_a_request_that_leaves_the_queue_after_a_failure_has_a_usage_record_for_that_too(
    world: World,
) -> None:
    full(world)
    first = await world.dispatcher.place(ticket("1"))
    world.ledger.opened(ticket("1"), first, "a", "i1", reported=False)
    world.fleet.add(node_record("http://x", "b"))
    world.fleet.on_status("id-b", node_status(model_status("m", max_rows=1)))
    second = await world.dispatcher.place(ticket("2"))
    assert second.node_id == "id-b"
    again = world.dispatcher.place_again(ticket("1"), first, Failure.ERROR_RESPONSE)
    await leave(world, asyncio.create_task(again), "1")
    records = [(row.request_id, row.node_id, row.reason) for row in world.ledger.pop_rows()]
    assert records == [("1", "id-a", OUTCOME_REFUSED), ("1", "", OUTCOME_CANCELLED)]
    world.dispatcher.done(ticket("2"), second, OUTCOME_CANCELLED)
