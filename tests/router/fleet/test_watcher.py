"""The watcher against scripted nodes on real sockets."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace

import msgspec
import pytest
import pytest_asyncio

from node.protocol.chain.prefix import Head
from node.protocol.messages import (
    OLDEST_PROTOCOL_VERSION,
    PROTOCOL_VERSION,
    Began,
    BrokenModel,
    ModelState,
    PrefixGone,
    PrefixSnapshot,
    StatusEvent,
    Stored,
    encode_event,
)
from node.protocol.versions import SPOKEN
from router.coverage import NOT_COVERED, Coverage
from router.errors import RouterError
from router.fleet import watcher as watcher_module
from router.fleet.fleet import Fleet
from router.fleet.prefix_index import PrefixIndex
from router.fleet.watcher import Watcher
from router.records.ledger import Ledger
from router.types import NodeView
from router.upstream.foreign_nodes import FOREIGN_ROWS
from tests.router.conftest import (
    FINISHED,
    ORIGINS,
    WAIT_S,
    Request,
    ScriptedNode,
    StartNode,
    lease,
    model_status,
    node_record,
    node_status,
    proven,
    silent,
    ticket,
)
from tests.router.fleet.test_prefix_index import CHAIN, delta, entries, snapshot
from tests.router.records.test_ledger import Reports
from tests.router.upstream.conftest import RawNode, answers

PROVEN = proven(FINISHED, "id-a")


class WatchedFleet(Fleet):
    """A fleet that wakes the test at each of its changes."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = asyncio.Event()
        self.listen(self.changed.set)


@dataclass
class World:
    fleet: WatchedFleet
    reports: Reports
    ledger: Ledger
    prefixes: PrefixIndex
    watcher: Watcher

    def coverage(self) -> Coverage:
        return self.prefixes.coverage("id-a", CHAIN)

    async def until_covered(self, positions: int) -> None:
        async with asyncio.timeout(WAIT_S):
            while self.coverage().positions != positions:
                await asyncio.sleep(0)

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
    fleet, reports, prefixes = WatchedFleet(), Reports(), PrefixIndex()
    ledger = Ledger(ORIGINS, reports)
    watcher = Watcher(fleet, ledger, prefixes)
    yield World(fleet, reports, ledger, prefixes, watcher)
    await asyncio.wait_for(watcher.close(), WAIT_S)


async def test_the_first_status_of_an_agent_makes_it_reachable(
    world: World, start_node: StartNode
) -> None:
    view = await world.watch(await start_node(silent))
    assert view.reachable and view.status == node_status()
    client = world.watcher.client("id-a")
    assert client is not None and client.url == view.url
    assert world.watcher.client("id-x") is None


async def test_accounts_reach_the_ledger(world: World, start_node: StartNode) -> None:
    foreign = msgspec.structs.replace(PROVEN, seq=8, origin="router-2/k", request_id="x")
    last = StatusEvent(node_status(model_status("later")))
    node = await start_node(
        silent, first_events=(StatusEvent(node_status()), PROVEN, foreign, last)
    )
    await world.watch(node)
    await world.until(lambda view: view.status == last.status)
    (row,) = world.ledger.pop_rows()
    assert (row.node_id, row.instance_id, row.seq) == ("id-a", "i1", 7)


async def test_the_end_of_a_prefill_reaches_the_ledger(world: World, start_node: StartNode) -> None:
    granted, last = lease(node_id="id-a"), StatusEvent(node_status(model_status("later")))
    world.ledger.opened(ticket(), granted, "a", "i1", reported=True)
    began = Began("r", "router-1/key-1")
    node = await start_node(silent, first_events=(StatusEvent(node_status()), began, last))
    await world.watch(node)
    await world.until(lambda view: view.status == last.status)
    assert [each.ticket_id for each in world.reports.prefilled] == ["r"]


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
async def test_a_node_that_cannot_be_followed_shows_the_reason_and_is_tried_again(
    world: World, body: bytes, status: str, words: str
) -> None:
    node = RawNode(answers(body, status))
    await node.start()
    view = await world.watch(node)
    view = await world.until(lambda view: "not responded yet" not in str(view.error))
    assert not view.reachable and words in str(view.error)
    node.script, before = ScriptedNode._serve.__get__(node), len(node.requests)
    await world.until(lambda view: view.reachable)
    assert len(node.requests) > before
    await node.stop()


@pytest.mark.parametrize(
    ("version", "older"),
    [(OLDEST_PROTOCOL_VERSION - 1, "node"), (PROTOCOL_VERSION + 1, "router")],
)
async def test_an_agent_of_another_protocol_is_not_reachable_and_the_older_side_is_named(
    world: World, start_node: StartNode, version: int, older: str
) -> None:
    status = node_status(protocol=version)
    node = await start_node(silent, first_events=(StatusEvent(status),))
    await world.watch(node)
    mismatch = f"speaks version {version} of the node protocol, this router {SPOKEN}. "
    view = await world.until(lambda view: mismatch in str(view.error))
    assert not view.reachable and f"on the {older}'s machine" in str(view.error)


async def test_a_model_in_a_state_that_only_newer_versions_have_is_left_out(
    world: World, start_node: StartNode, caplog: pytest.LogCaptureFixture
) -> None:
    status = node_status(model_status("m"), model_status("n", state=ModelState.UNKNOWN))
    await world.watch(await start_node(silent, first_events=(StatusEvent(status),)))
    view = await world.until(lambda view: view.reachable)
    assert view.status is not None
    assert [each.name for each in view.status.models] == ["m"]
    assert "a state that this router does not know of n" in caplog.text


async def test_another_agent_at_the_address_is_not_the_node_that_was_added(
    world: World, start_node: StartNode
) -> None:
    stranger = StatusEvent(node_status(node_id="id-of-another"))
    view = await world.watch(await start_node(silent, first_events=(stranger,)))
    assert not view.reachable and view.status is None
    assert view.error is not None
    assert "Another node agent responds" in view.error
    assert "`router remove-node a`" in view.error


@pytest.mark.parametrize("broken", [False, True])
async def test_a_node_whose_models_cannot_be_shown_is_ignored(
    world: World, start_node: StartNode, broken: bool
) -> None:
    name = "m\x1b[2J"
    status = node_status(*([] if broken else [model_status(name)]))
    if broken:
        status = msgspec.structs.replace(status, broken=(BrokenModel(name, "It lacks a file."),))
    view = await world.watch(await start_node(silent, first_events=(StatusEvent(status),)))
    assert not view.reachable and view.status is None
    assert "a model whose name cannot be shown" in str(view.error)


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
    node = await start_node(silent, first_events=(StatusEvent(node_status()), PROVEN, last))
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
        "node a is connected",
        "node a is lost",
        "node a is connected",
    ]


async def test_a_restarted_agent_is_followed_from_its_beginning(
    world: World, start_node: StartNode
) -> None:
    node = await start_node(silent, first_events=(StatusEvent(node_status()), PROVEN))
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
    assert (model.name, model.state, model.max_rows) == ("a", "ready", FOREIGN_ROWS)
    models[0] = b'{"data":[{"id":"a"},{"id":"b"}]}'
    await world.until(lambda view: bool(view.status and len(view.status.models) == 2))
    models[0] = b"<html>"
    await world.until(lambda view: not view.reachable and "list models" in str(view.error))
    models[0] = b'{"data":[]}'
    await world.until(lambda view: view.reachable)


async def test_what_a_server_lists_later_waits_until_it_is_accepted(
    world: World, start_node: StartNode, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mlx_fleet.nodes")
    models = [b'{"data":[{"id":"a"}]}']

    async def script(request: Request) -> None:
        await request.answer(models[0])

    node = await start_node(script)
    record = node_record(node.url, kind="openai", accepted=("a",))
    await asyncio.wait_for(world.watcher.watch(record), WAIT_S)
    models[0] = b'{"data":[{"id":"a"},{"id":"local"},{"id":"later"}]}'
    view = await world.until(lambda view: view.unaccepted == ("local", "later"))
    assert view.model_names() == world.fleet.models == {"a"}
    world.watcher.accept(replace(record, accepted=("a", "later")))
    (view,) = world.fleet.snapshot
    assert view.model_names() == {"a", "later"}
    assert view.unaccepted == ("local",)
    before = len(node.requests)
    async with asyncio.timeout(WAIT_S):
        while len(node.requests) < before + 3:
            await asyncio.sleep(0.001)
    assert world.fleet.models == {"a", "later"}
    assert [line for line in caplog.messages if "wait" in line] == [
        "node a lists models that await acceptance; `router nodes` shows them"
    ]


async def test_a_server_whose_list_is_none_is_not_silent_and_one_that_sends_nothing_is(
    world: World, start_node: StartNode
) -> None:
    models: list[bytes | None] = [b'{"data":[{"id":"a"}]}']

    async def script(request: Request) -> None:
        if models[0] is None:
            request.drop()
        else:
            await request.answer(models[0])

    view = await world.watch(await start_node(script), kind="openai")
    assert view.silent_since_s is None
    models[0] = None
    view = await world.until(lambda view: view.silent_since_s is not None)
    assert not view.reachable
    models[0] = b"<html>"
    view = await world.until(lambda view: view.silent_since_s is None)
    assert not view.reachable and "list models" in str(view.error)
    models[0] = None
    await world.until(lambda view: view.silent_since_s is not None)
    models[0] = b'{"data":[]}'
    view = await world.until(lambda view: view.reachable)
    assert view.silent_since_s is None


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


async def test_a_wait_for_the_first_status_ends_with_the_watch(
    world: World, start_node: StartNode
) -> None:
    node = await start_node(silent, first_events=())
    waiting = asyncio.create_task(world.watcher.watch(node_record(node.url)))
    async with asyncio.timeout(WAIT_S):
        while not node.requests:
            await asyncio.sleep(0)
    await asyncio.wait_for(world.watcher.unwatch("id-a"), WAIT_S)
    await asyncio.wait_for(waiting, WAIT_S)


async def test_a_fault_of_a_listener_is_logged_and_the_node_watched_on(
    world: World, start_node: StartNode, caplog: pytest.LogCaptureFixture
) -> None:
    faults = ["at its first word", "at its loss"]

    def fail() -> None:
        view = world.fleet.node("id-a")
        if faults and view is not None and view.error != "The node has not responded yet.":
            raise RuntimeError(faults.pop(0))

    world.fleet.listen(fail)
    node = await start_node(silent)
    await world.watch(node)
    view = await world.until(lambda view: not view.reachable)
    assert "log" in str(view.error)
    await world.until(lambda view: view.reachable)
    assert len(node.requests) == 2
    logged = [str(record.exc_info[1]) for record in caplog.records if record.exc_info]
    assert logged == ["at its first word", "at its loss"]


# --- prefixes ---

UP = StatusEvent(node_status())


async def test_prefixes_reach_the_index(world: World, start_node: StartNode) -> None:
    node = await start_node(silent, first_events=(UP, snapshot(entries((1, 2)))))
    await world.watch(node)
    await world.until_covered(2)
    await node.tell(delta(1, entries((1, 2, 3))))
    await world.until_covered(3)
    await node.tell(Stored("resp_id-a-1", "router-1/k", 2**64 - 1, 2, 3))
    await node.tell(Stored("resp_id-a-2", "router-2/k", 4, 5, 6))
    await node.tell(Stored("resp_id-b-3", "router-1/k", 4, 5, 6))
    await node.tell(PrefixGone("m", 1))
    await world.until_covered(0)
    assert world.prefixes.head("resp_id-a-1") == Head(2**64 - 1, 2, 3)
    assert world.prefixes.head("resp_id-a-2") is None
    assert world.prefixes.head("resp_id-b-3") is None


async def test_after_a_missing_change_the_stream_begins_anew_and_the_node_stays(
    world: World, start_node: StartNode, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mlx_fleet.nodes")
    gap = delta(2, entries((1, 2, 3)))
    node = await start_node(silent, first_events=(UP, snapshot(entries((1, 2))), gap))
    await world.watch(node)
    node.first_events = (UP, snapshot(entries((1, 2, 3, 4)), seq=2))
    await world.until_covered(4)
    assert world.fleet.snapshot[0].reachable
    assert [request.target for request in node.requests] == [
        "/fleet/events?instance=&after=0",
        "/fleet/events?instance=i1&after=0",
    ]
    await node.requests[0].wait_gone()
    assert caplog.messages[1:] == ["node a: a change of its prefixes is missing"]


async def test_a_lost_nodes_prefixes_are_forgotten_and_reported_again(
    world: World, start_node: StartNode
) -> None:
    node = await start_node(silent, first_events=(UP, snapshot(entries((1, 2)))))
    await world.watch(node)
    await world.until_covered(2)
    node.first_events = (UP,)
    node.requests[0].drop()
    await world.until(lambda view: not view.reachable)
    await world.until_covered(0)
    await world.until(lambda view: view.reachable)
    await node.tell(snapshot(entries((1,))))
    await world.until_covered(1)


async def test_another_instance_of_the_agent_has_none_of_the_firsts_prefixes(
    world: World, start_node: StartNode
) -> None:
    cached = snapshot(entries((1, 2)), epoch=9)
    restarted = StatusEvent(node_status(instance_id="i2"))
    node = await start_node(silent, first_events=(UP, cached))
    await world.watch(node)
    await world.until_covered(2)
    await node.tell(restarted)
    await world.until_covered(0)
    await node.tell(snapshot(entries((1,)), epoch=1))
    await world.until_covered(1)


async def test_a_restarted_router_learns_all_prefixes_anew(
    world: World, start_node: StartNode
) -> None:
    node = await start_node(silent, first_events=(UP, snapshot(entries((1, 2)))))
    prefixes = PrefixIndex()
    for index in (world.prefixes, prefixes):
        watcher = Watcher(WatchedFleet(), Ledger(ORIGINS), index)
        watcher.start(node_record(node.url))
        async with asyncio.timeout(WAIT_S):
            while index.coverage("id-a", CHAIN).positions != 2:
                await asyncio.sleep(0)
        await watcher.close()


async def test_prefixes_that_are_none_are_no_event(world: World, start_node: StartNode) -> None:
    node = await start_node(silent, first_events=(UP, PrefixSnapshot("m", 1, 0, 0, 1, b"12345")))
    await world.watch(node)
    view = await world.until(lambda view: view.error is not None and not view.reachable)
    assert "prefixes" in str(view.error)


async def test_an_unwatched_nodes_prefixes_are_forgotten(
    world: World, start_node: StartNode
) -> None:
    await world.watch(await start_node(silent, first_events=(UP, snapshot(entries((1, 2))))))
    await world.until_covered(2)
    await asyncio.wait_for(world.watcher.unwatch("id-a"), WAIT_S)
    assert world.coverage() == NOT_COVERED


async def test_guesses_at_a_foreign_server_end_with_its_loss(
    world: World, start_node: StartNode
) -> None:
    body = [b'{"data":[{"id":"a"}]}']

    async def script(request: Request) -> None:
        await request.answer(body[0])

    await world.watch(await start_node(script), kind="openai")
    world.prefixes.on_served("id-a", CHAIN, 100)
    body[0] = b"<html>"
    await world.until_covered(0)


async def test_others_get_the_loop_between_two_pieces(world: World, start_node: StartNode) -> None:
    pieces = [snapshot(entries((part + 1,)), part=(part, 20)) for part in range(20)]
    node = await start_node(silent, first_events=(UP,))
    await world.watch(node)
    lines = b"".join(encode_event(piece) + b"\n" for piece in pieces)
    await node.requests[0].chunk(lines)
    seen: set[int] = set()
    async with asyncio.timeout(WAIT_S):
        while 20 not in seen:
            seen.add(world.prefixes.entries_by_node().get("id-a", 0))
            await asyncio.sleep(0)
    assert seen >= set(range(1, 21))


async def test_after_a_sleep_nothing_is_believed_and_all_is_requested_anew(
    world: World, start_node: StartNode, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mlx_fleet.nodes")
    node = await start_node(silent, first_events=(StatusEvent(node_status()), PROVEN))
    await world.watch(node)
    client = world.watcher.client("id-a")
    assert client is not None
    session = client.control._channel.open_session
    seen: list[tuple[bool, str | None]] = []
    world.fleet.listen(
        lambda: seen.extend((view.reachable, view.error) for view in world.fleet.snapshot)
    )
    await asyncio.wait_for(world.watcher.on_wake(), WAIT_S)
    assert seen[0] == (False, watcher_module.SLEPT)
    await world.until(lambda view: view.reachable)
    assert session.closed and client is world.watcher.client("id-a")
    assert [request.target for request in node.requests] == [
        "/fleet/events?instance=&after=0",
        "/fleet/events?instance=i1&after=7",
    ]
    assert node.connections == 2


async def test_a_node_that_is_gone_after_a_sleep_is_known_to_be_at_once(
    world: World, start_node: StartNode
) -> None:
    node = await start_node(silent, first_events=(UP, snapshot(entries((1, 2)))))
    await world.watch(node)
    await world.until_covered(2)
    assert node._server is not None
    # As a host that has left: what was connected does not end.
    node._server.close()
    await asyncio.wait_for(world.watcher.on_wake(), WAIT_S)
    assert world.coverage() == NOT_COVERED
    assert not world.fleet.snapshot[0].reachable


async def test_a_node_that_is_removed_at_the_end_of_a_sleep_is_not_watched_again(
    world: World, start_node: StartNode
) -> None:
    node = await start_node(silent, first_events=(UP,))
    await world.watch(node)
    waking = asyncio.create_task(world.watcher.on_wake())
    await asyncio.sleep(0)
    await asyncio.wait_for(world.watcher.unwatch("id-a"), WAIT_S)
    await asyncio.wait_for(waking, WAIT_S)
    assert world.fleet.snapshot == ()
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "a"]


def bearers(node: ScriptedNode) -> list[str]:
    return [dict(request.headers)["authorization"] for request in node.requests]


async def test_a_new_token_is_used_from_the_next_call_on_and_the_stream_goes_on(
    world: World, start_node: StartNode
) -> None:
    node = await start_node(answers(b"{}", "500 Internal Server Error"))
    await world.watch(node)
    await world.watcher.update(node_record(node.url, token="newer"))
    assert len(node.requests) == 1
    client = world.watcher.client("id-a")
    assert client is not None
    with pytest.raises(RouterError):
        await client.control.status()
    assert bearers(node) == ["Bearer secret", "Bearer newer"]
    assert world.fleet.snapshot[0].reachable


async def test_a_node_that_has_moved_is_followed_at_its_new_address(
    world: World, start_node: StartNode
) -> None:
    old, new = await start_node(silent), await start_node(silent)
    await world.watch(old)
    await world.watcher.update(node_record(new.url))
    await world.until(lambda view: view.url == new.url and view.reachable)
    assert new.requests
    client = world.watcher.client("id-a")
    assert client is not None and client.url == new.url
    await world.watcher.update(node_record(old.url, name="unknown"))
