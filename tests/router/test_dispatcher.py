from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest
import pytest_asyncio

from node.protocol.messages import FinishReason
from registry.records import ResidencyRecord
from router.decisions import Decisions
from router.dispatcher import Dispatcher, Known
from router.errors import NodeFailed, NoNodeReady, UnknownModel
from router.fleet import Fleet
from router.ledger import OUTCOME_NODE_FAILED, OUTCOME_SERVED, Ledger
from router.metrics import Metrics
from router.placing import Placing
from router.predictions import Predictions
from router.prefix_index import PrefixIndex
from router.scheduler.scheduler import Scheduler
from router.watcher import Watcher
from tests.fakes import FakeClock
from tests.router.conftest import (
    WAIT_S,
    Request,
    StartNode,
    model_status,
    node_record,
    node_status,
    ticket,
)
from tests.router.test_ledger import FINISHED


class World:
    def __init__(self, fleet: Fleet | None = None) -> None:
        self.fleet = fleet or Fleet()
        self.ledger = Ledger("router-1")
        self.prefixes = PrefixIndex()
        self.watcher = Watcher(self.fleet, self.ledger, self.prefixes)
        self.clock = FakeClock()
        metrics, decisions = Metrics(str), Decisions()
        self.placing = Placing(Scheduler(self.prefixes), self.fleet, decisions, metrics, self.clock)
        known = Known(self.prefixes, Predictions(self.prefixes, metrics), decisions, metrics)
        self.dispatcher = Dispatcher(self.fleet, self.watcher, self.ledger, self.placing, known)

    def add(self, name: str) -> None:
        """A node that is heard of and that nobody can dial."""
        self.fleet.add(node_record("http://x", name))
        self.fleet.heard("id-" + name, node_status(model_status("m")))


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
    assert world.dispatcher.open_leases == 0


async def test_a_node_that_was_removed_before_the_request_went_out_has_failed(
    world: World,
) -> None:
    world.add("a")
    lease = await world.dispatcher.place(ticket())
    world.fleet.remove("id-a")
    with pytest.raises(NodeFailed, match="removed from the fleet"):
        await world.dispatcher.open(ticket(), lease)
    assert world.dispatcher.node_name(lease) == "id-a"
    assert await world.dispatcher.place_again(ticket(), lease, answered=False) is None
    assert world.dispatcher.open_leases == 0
    assert world.ledger.open_requests == 0
    world.dispatcher.forget("id-a")


async def test_a_lease_ends_in_scheduler_and_ledger(world: World) -> None:
    world.add("a")
    lease = await world.dispatcher.place(ticket())
    assert lease.granted_s == world.clock.now_s
    assert (world.dispatcher.in_flight("id-a"), world.dispatcher.open_leases) == (1, 1)
    world.ledger.opened(ticket(), lease, "a", "i1", reported=False)
    world.dispatcher.done(ticket(lease.ticket_id), lease, OUTCOME_SERVED)
    assert (world.dispatcher.in_flight("id-a"), world.dispatcher.open_leases) == (0, 0)
    assert [row.reason for row in world.ledger.take_rows()] == [OUTCOME_SERVED]


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


async def test_a_node_s_accounts_are_heard_before_the_next_request_is_placed(world: World) -> None:
    world.add("a")
    world.add("b")
    lease = await world.dispatcher.place(ticket("1"))
    world.ledger.opened(ticket("1"), lease, "a", "i1", reported=True)
    world.dispatcher.done(ticket(lease.ticket_id), lease, OUTCOME_SERVED)
    finished = msgspec.structs.replace(FINISHED, request_id="1", reason=FinishReason.ERROR)
    world.ledger.on_finished(lease.node_id, "i1", finished)
    for number in range(2, 5):
        assert (await world.dispatcher.place(ticket(str(number)))).node_id != lease.node_id


async def test_a_model_of_a_node_that_has_not_spoken_since_the_start_has_no_node_ready() -> None:
    world = World(Fleet((), [ResidencyRecord("id-a", "m", "ready", 1, 0.0)]))
    world.fleet.add(node_record("http://x"))
    assert world.fleet.resolve("m") == "m"
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
    world.fleet.heard("id-a", node_status(model_status("m"), instance_id="i2"))
    with pytest.raises(NodeFailed, match="started anew"):
        await world.dispatcher.open(ticket(), lease)
    again = await world.dispatcher.place_again(ticket(), lease, answered=False)
    assert again is not None
    assert (again.instance_id, again.attempt) == ("i2", 2)
    world.dispatcher.done(ticket(), again, OUTCOME_SERVED)
    assert world.dispatcher.open_leases == 0


async def test_a_node_that_does_not_take_the_connection_has_failed(
    world: World, start_node: StartNode
) -> None:
    async def never(_request: Request) -> None:
        raise AssertionError

    node = await start_node(never)
    await asyncio.wait_for(world.watcher.watch(node_record(node.url)), WAIT_S)
    lease = await world.dispatcher.place(ticket())
    assert node._server is not None
    node._server.close()
    with pytest.raises(NodeFailed, match="connection to the node a broke"):
        await world.dispatcher.open(ticket(), lease)
    assert world.ledger.open_requests == 1
