"""Requests that wake the node that they need, as their callers see it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from node.protocol.messages import StatusEvent
from router.fleet import waker as waker_module
from tests.router.conftest import (
    RunningRouter,
    ScriptedNode,
    StartNode,
    model_status,
    node_status,
)
from tests.router.dispatch.test_relay import DONE, STREAM, stream
from tests.router.dispatch.test_relay_failing import until

MAC = "a0:b1:c2:d3:e4:f5"


async def a_sleeper(
    router: RunningRouter, start_node: StartNode, *, wakes: bool = True
) -> ScriptedNode:
    status = msgspec.structs.replace(node_status(model_status("m"), node_id="id-a"), macs=(MAC,))
    node = await start_node(stream, first_events=(StatusEvent(status),))
    await router.add(node, wakes=wakes)
    await until(lambda: router.core.fleet.snapshot[0].reachable)
    await node.stop()
    await until(lambda: router.core.fleet.snapshot[0].silent_since_s is not None)
    return node


async def test_a_stream_waits_with_comments_until_its_node_is_awake(
    router: RunningRouter, start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await a_sleeper(router, start_node)
    loop, sent = asyncio.get_running_loop(), asyncio.Event()

    def send(macs: Sequence[str], _addresses: Sequence[str]) -> None:
        assert list(macs) == [MAC]
        loop.call_soon_threadsafe(sent.set)

    monkeypatch.setattr(router.core.waker, "_send", send)
    caller = await router.post(STREAM)
    async with asyncio.timeout(20):
        await sent.wait()
        await node.start()
    body = await caller.body()
    assert caller.status == 200 and body.endswith(DONE)
    await until(lambda: not router.core.waker.is_waking("id-a"))


async def test_one_that_cannot_be_woken_is_an_error_and_the_next_request_does_not_wait(
    router: RunningRouter, start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await a_sleeper(router, start_node)
    monkeypatch.setattr(waker_module, "AGAIN_S", 0.01)
    monkeypatch.setattr(waker_module, "MOST_S", 0.05)
    sent: list[Sequence[str]] = []
    monkeypatch.setattr(router.core.waker, "_send", lambda macs, _to: sent.append(macs))
    for _ in range(2):
        caller = await router.post({**STREAM, "stream": False})
        body = await caller.body()
        assert caller.status == 503 and b"It cannot be reached." in body
    assert len(sent) == 5


async def test_nobody_is_woken_unasked(
    router: RunningRouter, start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await a_sleeper(router, start_node, wakes=False)
    sent: list[Sequence[str]] = []
    monkeypatch.setattr(router.core.waker, "_send", lambda macs, _to: sent.append(macs))
    caller = await router.post(STREAM)
    await caller.body()
    assert caller.status == 503 and sent == []
