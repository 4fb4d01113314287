"""Callers that leave, readers that do not read, and a thousand requests that leave no trace."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
from pathlib import Path
from typing import Any

import pytest

from node.protocol.messages import StatusEvent
from serving.http.timeouts import ClientTimeouts
from tests.fakes import AT_ONCE_S
from tests.router.conftest import (
    CHAT,
    WAIT_S,
    AddNode,
    RawCaller,
    Request,
    RunningRouter,
    Script,
    ScriptedNode,
    StartNode,
    answer_bytes,
    model_status,
    node_status,
    running_router,
)
from tests.router.dispatch.test_relay import HELLO, STREAM, WHOLE, drop, hang, stream, whole
from tests.router.leases import open_leases


async def head_only(request: Request) -> None:
    await request.begin_stream()
    await request.wait_gone()


async def comment_only(request: Request) -> None:
    await request.begin_stream()
    await request.chunk(b": keep-alive\n\n")
    await request.wait_gone()


async def mid_stream(request: Request) -> None:
    await request.begin_stream()
    await request.chunk(HELLO)
    await request.wait_gone()


async def endless(request: Request) -> None:
    await request.begin_stream()
    while not request.gone.is_set():
        await request.chunk(HELLO)
        await asyncio.sleep(0)  # the same loop runs router and caller


async def half_answer(request: Request) -> None:
    await request.write(answer_bytes(b"{}" * 50)[:-50])
    await request.wait_gone()


PHASES: list[Any] = [
    pytest.param(STREAM, hang, id="stream before the node's head"),
    pytest.param(STREAM, head_only, id="stream before its first byte"),
    pytest.param(STREAM, comment_only, id="stream after a comment"),
    pytest.param(STREAM, mid_stream, id="mid-stream"),
    pytest.param(STREAM, endless, id="in a burst"),
    pytest.param(WHOLE, hang, id="whole answer before the node's head"),
    pytest.param(WHOLE, half_answer, id="whole answer, half received"),
]


class Ending:
    """A node's script that records when its caller is gone."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.begun = asyncio.Event()
        self.gone_s = 0.0

    async def __call__(self, request: Request) -> None:
        running = asyncio.create_task(self._run(request))
        self.begun.set()
        await request.wait_gone()
        self.gone_s = asyncio.get_running_loop().time()
        await running

    async def _run(self, request: Request) -> None:
        with contextlib.suppress(OSError):
            await self._script(request)


async def leave_and_measure(router: RunningRouter, ending: Ending, caller: RawCaller) -> None:
    loop = asyncio.get_running_loop()
    left_s = loop.time()
    caller.leave()
    await router.idle()
    async with asyncio.timeout(WAIT_S):
        while not ending.gone_s:
            await asyncio.sleep(0)
    assert ending.gone_s - left_s < AT_ONCE_S
    assert open_leases(router.core.traffic) == 0
    assert router.core.traffic.in_flight("id-a") == 0


@pytest.mark.parametrize(("body", "script"), PHASES)
async def test_a_caller_that_leaves_ends_the_node_s_work(
    router: RunningRouter, start_node: StartNode, body: dict[str, object], script: Script
) -> None:
    ending = Ending(script)
    await router.add(await start_node(ending))
    caller = await router.post(body)
    await asyncio.wait_for(ending.begun.wait(), WAIT_S)
    if script in (comment_only, mid_stream, endless):
        await caller.head()
        assert await caller.chunk()
    await leave_and_measure(router, ending, caller)


@pytest.mark.parametrize("script", [hang, head_only, mid_stream])
async def test_a_caller_that_leaves_during_filled_silence_ends_the_node_s_work(
    impatient: RunningRouter, start_node: StartNode, script: Script
) -> None:
    ending = Ending(script)
    await impatient.add(await start_node(ending))
    caller = await impatient.post(STREAM)
    await caller.head()
    assert await caller.chunk()
    await leave_and_measure(impatient, ending, caller)


async def test_a_caller_that_leaves_during_a_retry_ends_it(
    router: RunningRouter, start_node: StartNode
) -> None:
    ending = Ending(hang)
    scripts: list[Script] = [drop, ending]

    async def script(request: Request) -> None:
        await scripts.pop(0)(request)

    await router.add(await start_node(script))
    caller = await router.post(STREAM)
    await asyncio.wait_for(ending.begun.wait(), WAIT_S)
    await leave_and_measure(router, ending, caller)


async def test_a_caller_that_resets_the_connection_ends_the_node_s_work(
    router: RunningRouter, start_node: StartNode
) -> None:
    ending = Ending(mid_stream)
    await router.add(await start_node(ending))
    caller = await router.post(STREAM)
    await caller.head()
    caller.writer.transport.abort()
    await leave_and_measure(router, ending, caller)


async def test_a_caller_that_leaves_within_its_body_costs_nothing(
    router: RunningRouter, start_node: StartNode
) -> None:
    node = await start_node(whole)
    await router.add(node)
    caller = await router.send(
        "POST", CHAT, b'{"mod', authorization=f"Bearer {router.key}", content_length="100"
    )
    await caller.writer.drain()
    async with asyncio.timeout(WAIT_S):
        while not router.state.tasks:
            await asyncio.sleep(0)
    caller.leave()
    await router.idle()
    assert [each.target for each in node.requests if each.target == CHAT] == []


async def test_a_cancelled_request_is_accounted_for_as_cancelled(
    router: RunningRouter, start_node: StartNode
) -> None:
    async def foreign(request: Request) -> None:
        if request.target == "/v1/models":
            await request.answer(b'{"data":[{"id":"m"}]}')
        else:
            await mid_stream(request)

    await router.add(await start_node(foreign), kind="openai")
    caller = await router.post(STREAM)
    await caller.head()
    caller.leave()
    await router.idle()
    assert [row.reason for row in router.core.ledger.pop_rows()] == ["cancelled"]


async def test_a_reader_that_does_not_read_stops_the_node_s_writer(
    router: RunningRouter, start_node: StartNode
) -> None:
    written, stalled = 0, asyncio.Event()

    async def flood(request: Request) -> None:
        nonlocal written
        await request.begin_stream()
        request.writer.transport.set_write_buffer_limits(0)
        piece = b"data: " + b"x" * 16_000 + b"\n\n"
        try:
            while True:
                await asyncio.wait_for(request.chunk(piece), 0.5)
                written += len(piece)
        except TimeoutError:
            stalled.set()
        await request.wait_gone()

    await router.add(await start_node(flood))
    caller = await router.post(STREAM)
    await asyncio.wait_for(stalled.wait(), 30)
    # Four kernel buffers of some MiB each, and less than one MiB of the router's own.
    assert written < 24 << 20
    first = written
    caller.leave()
    await router.idle()
    assert written == first


async def test_both_sides_send_small_writes_at_once(
    router: RunningRouter, start_node: StartNode
) -> None:
    await router.add(await start_node(mid_stream))
    caller = await router.post(STREAM)
    await caller.head()
    (connection,) = router.state.connections
    sock = connection.transport.get_extra_info("socket")
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    caller.leave()
    await router.idle()


def live_relays() -> int:
    gc.collect()
    return sum(type(each).__name__ in ("Relay", "ClientResponse") for each in gc.get_objects())


async def test_a_thousand_requests_leave_no_trace(
    router: RunningRouter, start_node: StartNode
) -> None:
    async def script(request: Request) -> None:
        await (stream if b"true" in request.body else whole)(request)

    node: ScriptedNode = await start_node(script)
    await router.add(node)

    async def call(number: int) -> None:
        caller = await router.post(STREAM if number % 2 else WHOLE)
        await caller.body()
        assert caller.status == 200
        caller.leave()

    before = live_relays()
    for start in range(0, 1000, 10):
        await asyncio.gather(*(call(start + number) for number in range(10)))
    await router.idle()
    assert open_leases(router.core.traffic) == 0
    assert router.core.traffic.in_flight("id-a") == 0
    # One event stream, and as many connections as there were requests at once.
    assert node.connections <= 1 + 10
    assert live_relays() <= before
    # The node has not reported their usage; each waits for its record and for nothing else.
    assert router.core.ledger.waiting_rows == 0
    router.core.ledger.expire(asyncio.get_running_loop().time() + 60)
    assert router.core.ledger.waiting_rows == 1000


async def test_a_node_that_is_removed_finishes_what_it_serves(
    router: RunningRouter, start_node: StartNode
) -> None:
    go_on = asyncio.Event()

    async def script(request: Request) -> None:
        await request.begin_stream()
        await request.chunk(HELLO)
        await go_on.wait()
        await request.chunk(b"data: [DONE]\n\n")
        await request.end_stream()

    first = (StatusEvent(node_status(model_status("m"), node_id="id-a")),)
    node = await start_node(script, first_events=first)
    await router.add(node, "a")
    caller = await router.post(STREAM)
    await caller.head()
    assert await caller.chunk() == HELLO
    (view,) = router.core.fleet.snapshot
    await router.core.watcher.unwatch(view.node_id)
    router.core.dispatcher.forget_node(view.node_id)
    assert router.core.watcher.awaits_release(view.node_id)
    go_on.set()
    assert await caller.body() == b"data: [DONE]\n\n"
    await router.idle()
    assert not router.core.watcher.awaits_release(view.node_id)


async def test_a_caller_that_stops_reading_gives_its_node_back(
    tmp_path: Path, add_node: AddNode
) -> None:
    gone = asyncio.Event()

    async def endless(request: Request) -> None:
        await request.begin_stream()
        event = b"data: " + b"x" * 65_536 + b"\n\n"
        try:
            while not request.gone.is_set():
                await request.chunk(event)
        finally:
            gone.set()

    async with running_router(tmp_path, ClientTimeouts(unread_s=0.05)) as router:
        await add_node(router, "a", endless)
        await router.post(STREAM)
        await asyncio.wait_for(gone.wait(), WAIT_S)
        await router.idle()
        assert open_leases(router.core.traffic) == 0
