"""Reports 1 to 6: callers that leave, in processes."""

from __future__ import annotations

import asyncio
import contextlib
import math
from typing import Any

import pytest

from tests.fakes import AT_ONCE_S
from tests.faults.rig import (
    WAIT_S,
    Call,
    Fleet,
    left_unplaced,
    sockets,
    until,
    usage_reason,
)
from tests.router.conftest import Request, RunningRouter, StartNode
from tests.router.dispatch.test_relay import HELLO

LONG: dict[str, Any] = {"max_tokens": 100_000}


@pytest.fixture
def fleet(shared: Fleet) -> Fleet:
    for name in shared.agents:
        shared.forget(name)
    return shared


async def seen(fleet: Fleet, name: str) -> dict[str, Any]:
    """The only request that a node has."""
    (record,) = await until(lambda: fleet.records(name))
    assert isinstance(record, dict)
    return record


async def leave_and_measure(fleet: Fleet, name: str, call: Call) -> dict[str, Any]:
    """Leaves; the node must notice it in time, and end its work. Its record of the request."""
    await seen(fleet, name)
    left_s = call.leave()
    await until(lambda: fleet.records(name)[0]["client_left_monotonic_s"])
    (record,) = fleet.records(name)
    assert isinstance(record, dict)
    assert record["client_left_monotonic_s"] - left_s < AT_ONCE_S
    await until(lambda: fleet.active(name) == 0)
    assert await usage_reason(fleet.front, record["request_id"]) == "cancelled"
    return record


async def test_fault_01_a_stream_client_that_leaves_stops_the_backend(fleet: Fleet) -> None:
    call = await fleet.post("swift", stream=True, **LONG)
    await call.caller.head()
    assert await call.caller.chunk()
    record = await leave_and_measure(fleet, "swift", call)
    # Nothing more is written to who is not there.
    assert fleet.records("swift")[0]["response_bytes"] == record["response_bytes"]


async def test_fault_02_a_whole_answer_s_client_that_leaves_frees_its_place(fleet: Fleet) -> None:
    call = await fleet.post("swift", **LONG)
    await until(lambda: fleet.active("swift") == 1)
    await leave_and_measure(fleet, "swift", call)


@pytest.mark.parametrize("stream", [True, False])
async def test_fault_03_a_client_that_leaves_before_the_first_token_is_seen(
    fleet: Fleet, stream: bool
) -> None:
    call = await fleet.post("late", stream=stream)
    await until(lambda: fleet.active("late") == 1)
    await leave_and_measure(fleet, "late", call)


async def test_a_client_that_leaves_before_the_head_of_the_answer_is_seen(fleet: Fleet) -> None:
    fleet.agents["swift"].put("/scripted", {"headers_delay_s": 60.0})
    await leave_and_measure(fleet, "swift", await fleet.post("swift", stream=True))


async def test_a_client_that_leaves_while_its_model_loads_is_seen(fleet: Fleet) -> None:
    await leave_and_measure(fleet, "heavy", await fleet.post("heavy", stream=True))


async def test_a_client_that_leaves_the_queue_is_gone_from_it(fleet: Fleet) -> None:
    before = left_unplaced(fleet.front)
    holders = [await fleet.post("swift", stream=True, **LONG) for _ in range(2)]
    for holder in holders:
        await holder.caller.head()
    waiting = await fleet.post("swift", stream=True)
    # As long as the two go on, a third one that arrives at the node would be a fault of the router.
    behind = await fleet.post("swift", stream=True)
    await until(lambda: queued(fleet) == 2)
    waiting.leave()
    await until(lambda: queued(fleet) == 1, AT_ONCE_S)
    for holder in holders:
        holder.leave()
    await behind.caller.body()
    behind.leave()
    assert len(fleet.records("swift")) == 3
    await until(lambda: left_unplaced(fleet.front) == before + 1)


def queued(fleet: Fleet) -> float:
    """Requests in the router's queue."""
    lines = [line for line in fleet.metrics().splitlines() if "queue_length{" in line]
    return math.fsum(float(line.rpartition(" ")[2]) for line in lines)


# --- report 4 ---


PATHS: dict[str, dict[str, object]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}]},
    "/v1/completions": {"prompt": "hello"},
    "/v1/responses": {"input": "hello"},
    "/v1/messages": {"max_tokens": 9, "messages": [{"role": "user", "content": "hello"}]},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "hello"}]},
}


@pytest.mark.parametrize("path", PATHS)
async def test_fault_04_a_disconnect_is_seen_on_every_path(
    router: RunningRouter, start_node: StartNode, path: str
) -> None:
    loop = asyncio.get_running_loop()
    gone_s: asyncio.Queue[float] = asyncio.Queue()
    begun = asyncio.Event()

    async def script(request: Request) -> None:
        begun.set()
        await request.wait_gone()
        gone_s.put_nowait(loop.time())

    await router.add(await start_node(script))
    for stream in (True, False):
        begun.clear()
        caller = await router.post({"model": "m", "stream": stream, **PATHS[path]}, path)
        await asyncio.wait_for(begun.wait(), WAIT_S)
        left_s = loop.time()
        caller.leave()
        assert await asyncio.wait_for(gone_s.get(), WAIT_S) - left_s < AT_ONCE_S
    await router.idle()


# --- reports 5 and 6 ---


async def baseline(fleet: Fleet) -> int:
    """Connections of the router between requests."""
    status, _ = await fleet.answer("swift", max_tokens=1)
    assert status == 200
    return sockets(fleet.front.running.pid)


async def test_fault_05_connections_are_back_at_their_number_after_clients_that_left_at_once(
    fleet: Fleet,
) -> None:
    before = await baseline(fleet)
    for number in range(40):
        call = await fleet.post(("swift", "late")[number % 2], stream=number % 4 < 2, **LONG)
        if number % 3 == 0:
            call.caller.writer.transport.abort()
        call.leave()
    await until(lambda: fleet.active("swift") + fleet.active("late") == 0)
    await until(lambda: sockets(fleet.front.running.pid) <= before)
    assert (await fleet.answer("swift", max_tokens=1))[0] == 200


async def test_fault_06_every_model_answers_after_many_streams_that_were_left(
    fleet: Fleet,
) -> None:
    before = await baseline(fleet)

    async def leave_after_content() -> None:
        call = await fleet.post("swift", stream=True, **LONG)
        await call.caller.head()
        assert await call.caller.chunk()
        call.leave()

    for _ in range(10):
        await asyncio.gather(*(leave_after_content() for _ in range(4)))
    async with asyncio.timeout(WAIT_S):
        assert (await fleet.answer("swift", max_tokens=3))[0] == 200
        call = await fleet.post("late", stream=True)
        await until(lambda: fleet.active("late") == 1)
        call.leave()
    await until(lambda: fleet.active("late") == 0)
    await until(lambda: sockets(fleet.front.running.pid) <= before)


async def test_a_caller_that_stops_reading_and_leaves_keeps_nothing_open(
    router: RunningRouter, start_node: StartNode
) -> None:
    async def flood(request: Request) -> None:
        await request.begin_stream()
        with contextlib.suppress(OSError):
            while not request.gone.is_set():
                await request.chunk(HELLO * 200)

    node = await start_node(flood)
    await router.add(node)
    for _ in range(5):
        caller = await router.post({"model": "m", "stream": True})
        await caller.head()
        caller.writer.transport.abort()
        await asyncio.wait_for(router.idle(), WAIT_S)
    await until(lambda: all(each.gone.is_set() for each in node.requests[1:]))
