"""Nodes that are there and do not go on, on real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from node.protocol.messages import ModelState, StatusEvent
from router.fleet import watcher as watcher_module
from router.upstream.control_channel import ControlChannel
from tests.router.conftest import (
    WAIT_S,
    AddNode,
    Request,
    RunningRouter,
    StartNode,
    model_status,
    node_status,
    running_router,
)
from tests.router.dispatch.test_relay import (
    DONE,
    HELLO,
    STREAM,
    WHOLE,
    in_band_error,
    request_counts,
    stream,
    whole,
)
from tests.router.dispatch.test_relay_foreign import serving

STALL_S, BEGIN_S = 0.5, 0.6
"""Time for a busy machine to report progress."""


@pytest_asyncio.fixture
async def strict(tmp_path: Path) -> AsyncIterator[RunningRouter]:
    """A router that soon leaves what does not go on."""
    limits: dict[str, Any] = {
        "stall_s": STALL_S,
        "load_timeout_s": BEGIN_S,
        "first_token_timeout_s": BEGIN_S,
    }
    async with running_router(tmp_path, stream_keepalive_s=0.05, **limits) as running:
        yield running


async def silent(request: Request) -> None:
    await request.wait_gone()


async def chatty(request: Request) -> None:
    """Comments are no progress."""
    await request.begin_stream()
    while not request.gone.is_set():
        await request.chunk(b": keep-alive\n\n")
        await asyncio.wait((asyncio.create_task(request.gone.wait()),), timeout=0.05)


async def hello_and_no_more(request: Request) -> None:
    await request.begin_stream()
    await request.chunk(HELLO)
    await request.wait_gone()


def stalls(router: RunningRouter) -> str:
    text = router.core.metrics.text().decode()
    return "".join(line for line in text.splitlines() if line.startswith("mlx_fleet_stalls_total{"))


@pytest.mark.parametrize("script", [silent, chatty])
async def test_before_content_another_node_is_tried(
    strict: RunningRouter, add_node: AddNode, script: Any
) -> None:
    stalled = await add_node(strict, "a", script)
    caller = await strict.post(STREAM)
    async with asyncio.timeout(WAIT_S):
        while request_counts(stalled) != [1]:
            await asyncio.sleep(0)
    other = await add_node(strict, "b", stream)
    assert (await caller.body()).endswith(HELLO + DONE)
    assert request_counts(stalled, other) == [1, 1]
    assert stalls(strict) == 'mlx_fleet_stalls_total{model="m",node="a"} 1.0'
    assert (
        'model_state{model="m",node="a",state="stalled"} 1.0' in strict.core.metrics.text().decode()
    )
    await stalled.tell(StatusEvent(node_status(model_status("m", work_tokens=1), node_id="id-a")))
    async with asyncio.timeout(WAIT_S):
        while strict.core.fleet.snapshot[0].stalled:
            await asyncio.sleep(0)


async def test_an_answer_in_one_piece_is_left_too(strict: RunningRouter, add_node: AddNode) -> None:
    stalled = await add_node(strict, "a", silent)
    caller = await strict.post(WHOLE)
    async with asyncio.timeout(WAIT_S):
        while request_counts(stalled) != [1]:
            await asyncio.sleep(0)
    await add_node(strict, "b", whole)
    assert await caller.head() == 200
    assert caller.headers["x-fleet-node"] == "b"


async def test_a_node_that_makes_tokens_for_others_is_waited_for(
    strict: RunningRouter, add_node: AddNode
) -> None:
    go = asyncio.Event()

    async def slow(request: Request) -> None:
        await go.wait()
        await stream(request)

    node = await add_node(strict, "a", slow)
    caller = await strict.post(STREAM)
    await caller.head()
    for tokens in range(1, 10):
        await caller.chunk()  # each comment arrives after a quarter of the limit at least
        status = node_status(model_status("m", work_tokens=tokens), node_id="id-a")
        await node.tell(StatusEvent(status))
    go.set()
    assert (await caller.body()).endswith(HELLO + DONE)
    assert (request_counts(node), stalls(strict)) == ([1], "")


@pytest.mark.parametrize("kind", ["agent", "openai"])
async def test_after_content_a_stall_never_looks_finished(
    strict: RunningRouter, start_node: StartNode, kind: str
) -> None:
    node = await start_node(serving(hello_and_no_more))
    await strict.add(node, kind=kind)
    caller = await strict.post(STREAM)
    await caller.head()
    while HELLO not in await caller.chunk():
        pass
    error = await in_band_error(caller)
    assert error["code"] == "node_failed"
    assert error["message"] == "The node a has sent nothing more of its response for 0.5 s."
    await strict.idle()
    assert request_counts(node) == [1]
    await node.requests[-1].wait_gone()


async def test_a_server_that_never_begins_times_out(
    strict: RunningRouter, start_node: StartNode
) -> None:
    await strict.add(await start_node(serving(silent)), kind="openai")
    caller = await strict.post(WHOLE)
    error = await caller.error()
    assert (caller.status, error["code"]) == (502, "node_failed")
    assert error["message"] == "The node a has not begun to respond for 0.6 s."


@pytest.mark.parametrize("body", [WHOLE, STREAM])
async def test_a_server_that_is_stopped_is_left_for_another_long_before_its_first_token_is_due(
    tmp_path: Path,
    start_node: StartNode,
    monkeypatch: pytest.MonkeyPatch,
    body: dict[str, object],
) -> None:
    monkeypatch.setattr(watcher_module, "FOREIGN_POLL_S", 0.01)
    monkeypatch.setattr(ControlChannel.control, "__defaults__", (None, 0.2))
    stopped = asyncio.Event()
    lists = serving(silent)

    async def script(request: Request) -> None:
        # As SIGSTOP does: the system takes connections, and nobody answers.
        await (silent if stopped.is_set() else lists)(request)

    async with running_router(tmp_path, stall_s=STALL_S, first_token_timeout_s=900.0) as router:
        node = await start_node(script)
        await router.add(node, "a", kind="openai")
        caller = await router.post(body)
        async with asyncio.timeout(WAIT_S):
            while request_counts(node) != [1]:
                await asyncio.sleep(0)
        stopped.set()
        other = await start_node(serving(stream if body is STREAM else whole))
        await router.add(other, "b", kind="openai")
        async with asyncio.timeout(WAIT_S):
            assert await caller.head() == 200
            assert caller.headers["x-fleet-node"] == "b"
        assert request_counts(node, other) == [1, 1]


async def test_a_load_is_waited_for_while_it_goes_on(
    strict: RunningRouter, start_node: StartNode
) -> None:
    go = asyncio.Event()

    async def slow(request: Request) -> None:
        await go.wait()
        await stream(request)

    def status(progress: float) -> StatusEvent:
        loading = model_status("m", state=ModelState.LOADING, progress=progress)
        return StatusEvent(node_status(loading, node_id="id-a"))

    node = await start_node(slow, first_events=(status(0.0),))
    await strict.add(node)
    caller = await strict.post(STREAM)
    await caller.head()
    assert await caller.chunk() == b": loading m 0 %\n\n"
    for percent in range(10, 100, 10):
        await node.tell(status(percent / 100))
        while await caller.chunk() != b": loading m %d %%\n\n" % percent:
            pass
    go.set()
    seen = await caller.body()
    assert seen.endswith(HELLO + DONE)
    assert stalls(strict) == ""
