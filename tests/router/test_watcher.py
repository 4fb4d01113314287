"""The watcher against scripted nodes on real sockets."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import msgspec
import pytest
import pytest_asyncio

from node.protocol.messages import StatusEvent
from router import watcher as watcher_module
from router.fleet import Fleet
from router.ledger import Ledger
from router.types import NodeView
from router.watcher import Watcher
from tests.router.conftest import (
    WAIT_S,
    Request,
    ScriptedNode,
    StartNode,
    model_status,
    node_record,
    node_status,
    silent,
)
from tests.router.test_ledger import FINISHED
from tests.router.test_node_client import _Raw, answers


class WatchedFleet(Fleet):
    """A fleet that wakes the test at each of its changes."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = asyncio.Event()

    def _set(self, view: NodeView) -> None:
        super()._set(view)
        self.changed.set()


@dataclass
class World:
    fleet: WatchedFleet
    ledger: Ledger
    watcher: Watcher

    async def until(self, ready: Callable[[NodeView], bool]) -> NodeView:
        async with asyncio.timeout(WAIT_S):
            while True:
                (view,) = self.fleet.snapshot
                if ready(view):
                    return view
                self.fleet.changed.clear()
                await self.fleet.changed.wait()

    async def watch(self, node: ScriptedNode, kind: str = "agent") -> NodeView:
        await asyncio.wait_for(self.watcher.watch(node_record(node.url, kind=kind)), WAIT_S)
        return self.fleet.snapshot[0]


@pytest_asyncio.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(watcher_module, "FIRST_BACKOFF_S", 0.01)
    monkeypatch.setattr(watcher_module, "FOREIGN_POLL_S", 0.01)
    fleet, ledger = WatchedFleet(), Ledger("router-1")
    watcher = Watcher(fleet, ledger)
    yield World(fleet, ledger, watcher)
    await asyncio.wait_for(watcher.close(), WAIT_S)


async def test_the_first_word_of_an_agent_makes_it_reachable(
    world: World, start_node: StartNode
) -> None:
    view = await world.watch(await start_node(silent))
    assert view.reachable and view.status == node_status()
    client = world.watcher.client("id-a")
    assert client is not None and client.url == view.url
    assert world.watcher.client("id-x") is None


async def test_accounts_reach_the_ledger(world: World, start_node: StartNode) -> None:
    foreign = msgspec.structs.replace(FINISHED, seq=8, origin="router-2/k", request_id="x")
    last = StatusEvent(node_status(model_status("later")))
    node = await start_node(
        silent, first_events=(StatusEvent(node_status()), FINISHED, foreign, last)
    )
    await world.watch(node)
    await world.until(lambda view: view.status == last.status)
    (row,) = world.ledger.take_rows()
    assert (row.node_id, row.instance_id, row.seq) == ("id-a", "i1", 7)


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"", "401 Unauthorized", "refused the token"),
        (b'{"message":"I speak 2."}', "426 Upgrade Required", "I speak 2."),
        (b"<html>", "404 Not Found", "is it a node agent"),
        (b"<html>\n", "200 OK", "not one"),
        (b"x" * (2 << 20), "200 OK", "not one"),
        (b"", "200 OK", "closed its event stream"),
    ],
)
async def test_a_node_that_cannot_be_followed_says_why_and_is_tried_again(
    world: World, body: bytes, status: str, words: str
) -> None:
    node = _Raw(answers(body, status))
    await node.start()
    view = await world.watch(node)
    view = await world.until(lambda view: "not answered yet" not in str(view.error))
    assert not view.reachable and words in str(view.error)
    node.script, asked = ScriptedNode._serve.__get__(node), len(node.requests)
    await world.until(lambda view: view.reachable)
    assert len(node.requests) > asked
    await node.stop()


async def test_an_agent_of_another_protocol_is_not_reachable(
    world: World, start_node: StartNode
) -> None:
    node = await start_node(silent, first_events=(StatusEvent(node_status(protocol=9)),))
    await world.watch(node)
    view = await world.until(lambda view: "protocol 9" in str(view.error))
    assert not view.reachable


async def test_nobody_at_the_address_ends_the_wait_for_the_first_word(
    world: World, start_node: StartNode
) -> None:
    node = await start_node(silent)
    await node.stop()
    view = await world.watch(node)
    assert not view.reachable and "cannot be reached" in str(view.error)


async def test_a_lost_agent_is_followed_again_from_the_last_account(
    world: World, start_node: StartNode, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mlx_fleet.nodes")
    last = StatusEvent(node_status(model_status("later")))
    node = await start_node(silent, first_events=(StatusEvent(node_status()), FINISHED, last))
    await world.watch(node)
    await world.until(lambda view: view.status == last.status)
    node.requests[0].drop()
    await world.until(lambda view: not view.reachable)
    await world.until(lambda view: view.reachable)
    targets = [request.target for request in node.requests]
    assert targets == [
        "/fleet/events?instance=&after=0",
        "/fleet/events?instance=i1&after=7",
    ]
    assert [message.split(":")[0] for message in caplog.messages] == [
        "node a is there",
        "node a is lost",
        "node a is there",
    ]


async def test_a_restarted_agent_is_followed_from_its_beginning(
    world: World, start_node: StartNode
) -> None:
    node = await start_node(silent, first_events=(StatusEvent(node_status()), FINISHED))
    await world.watch(node)
    node.first_events = (StatusEvent(node_status(instance_id="i2")),)
    node.requests[0].drop()
    await world.until(lambda view: bool(view.status and view.status.instance_id == "i2"))
    node.requests[-1].drop()
    await world.until(lambda view: not view.reachable)
    await world.until(lambda view: view.reachable)
    assert node.requests[-1].target == "/fleet/events?instance=i2&after=0"


async def test_a_foreign_server_is_polled_and_always_ready(
    world: World, start_node: StartNode
) -> None:
    models = [b'{"data":[{"id":"a"}]}']

    async def script(request: Request) -> None:
        await request.answer(models[0])

    view = await world.watch(await start_node(script), kind="openai")
    assert view.reachable and view.status is not None
    (model,) = view.status.models
    assert (model.name, model.state, model.max_rows) == ("a", "ready", watcher_module.FOREIGN_ROWS)
    models[0] = b'{"data":[{"id":"a"},{"id":"b"}]}'
    await world.until(lambda view: bool(view.status and len(view.status.models) == 2))
    models[0] = b"<html>"
    await world.until(lambda view: not view.reachable and "list models" in str(view.error))
    models[0] = b'{"data":[]}'
    await world.until(lambda view: view.reachable)


async def test_an_unwatched_node_is_gone_and_its_connection_closed(
    world: World, start_node: StartNode, caplog: pytest.LogCaptureFixture
) -> None:
    node = await start_node(silent)
    await world.watch(node)
    await asyncio.wait_for(world.watcher.unwatch("id-a"), WAIT_S)
    await node.requests[0].wait_gone()
    assert world.fleet.snapshot == ()
    assert world.watcher.client("id-a") is None
    await world.watcher.unwatch("id-a")
    assert caplog.messages == []


async def test_a_shutdown_does_not_report_its_nodes_as_lost(
    world: World, start_node: StartNode, caplog: pytest.LogCaptureFixture
) -> None:
    await world.watch(await start_node(silent))
    await asyncio.wait_for(world.watcher.close(), WAIT_S)
    assert caplog.messages == []


async def test_a_wait_for_the_first_word_ends_with_the_watch(
    world: World, start_node: StartNode
) -> None:
    node = await start_node(silent, first_events=())
    waiting = asyncio.create_task(world.watcher.watch(node_record(node.url)))
    async with asyncio.timeout(WAIT_S):
        while not node.requests:
            await asyncio.sleep(0)
    await asyncio.wait_for(world.watcher.unwatch("id-a"), WAIT_S)
    await asyncio.wait_for(waiting, WAIT_S)
