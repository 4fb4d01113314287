"""Requests that wait in the router for their node, as their callers see it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from node.protocol.headers import HEADER_ORIGIN, HEADER_REQUEST_ID, HEADER_SALT
from node.protocol.messages import Began, CacheStatus, StatusEvent
from registry.records import KeyRecord
from router.auth import new_key
from tests.fakes import AT_ONCE_S
from tests.router.conftest import (
    CHAT,
    WAIT_S,
    RawCaller,
    Request,
    RunningRouter,
    ScriptedNode,
    StartNode,
    model_status,
    node_status,
    running_router,
)
from tests.router.dispatch.test_relay import DONE, HELLO, STREAM, WHOLE, in_band_error

MESSAGES = "/v1/messages"


class Turns:
    """The script of a node whose answers are each released by the test."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        """The `user` of each request, in their order of arrival."""
        self._turns = asyncio.Semaphore(0)

    def next(self) -> None:
        self._turns.release()

    async def __call__(self, request: Request) -> None:
        self.begun.append(json.loads(request.body).get("user", ""))
        turn = asyncio.create_task(self._turns.acquire())
        gone = asyncio.create_task(request.gone.wait())
        await asyncio.wait((turn, gone), return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        if not turn.done():
            turn.cancel()
        elif json.loads(request.body).get("stream"):
            await request.begin_stream()
            await request.chunk(HELLO + DONE)
            await request.end_stream()
        else:
            await request.answer(b'{"ok":true}', x_fleet_cached_tokens="7")


@pytest_asyncio.fixture
async def small(tmp_path: Path) -> AsyncIterator[RunningRouter]:
    """A router in which one request may wait."""
    async with running_router(tmp_path, queue_limit=1) as running:
        yield running


@pytest_asyncio.fixture
async def turns() -> Turns:
    return Turns()


async def one_row(
    router: RunningRouter, start_node: StartNode, script: Turns, name: str = "a"
) -> ScriptedNode:
    """A node that serves one request at a time."""
    status = node_status(model_status("m", max_rows=1), node_id="id-" + name)
    node = await start_node(script, first_events=(StatusEvent(status),))
    await router.add(node, name)
    return node


def add_key(router: RunningRouter, **fields: Any) -> str:
    """A key of another class, or with a salt."""
    key, prefix, digest = new_key()
    record = KeyRecord("k2", "bea", prefix, digest, ("inference",), 0.0, None, None, **fields)
    router.core.keys.add(record)
    return key


async def listed(router: RunningRouter) -> list[dict[str, Any]]:
    caller = await router.send("GET", "/v1/requests", x_api_key=router.key)
    return list(json.loads(await caller.body())["data"])


def waiting(router: RunningRouter) -> int:
    """Returns the number of requests that wait for a node."""
    lines = router.core.metrics.text().decode().splitlines()
    counts = [line for line in lines if line.startswith("mlx_fleet_queue_length{")]
    return sum(int(float(line.rpartition(" ")[2])) for line in counts)


async def until_waiting(router: RunningRouter, count: int, within_s: float = WAIT_S) -> None:
    async with asyncio.timeout(within_s):
        while waiting(router) != count:
            await asyncio.sleep(0)


async def first_and_waiting(
    router: RunningRouter, turns: Turns, body: dict[str, Any], path: str = CHAT, **headers: str
) -> tuple[RawCaller, RawCaller]:
    """A request that its node serves, and one that waits for it."""
    first = await router.post(WHOLE)
    async with asyncio.timeout(WAIT_S):
        while not turns.begun:
            await asyncio.sleep(0)
    second = await router.post(body, path, **headers)
    await until_waiting(router, 1)
    return first, second


async def until_idle(router: RunningRouter, turns: Turns, *callers: RawCaller) -> None:
    for _ in callers:
        turns.next()
    for caller in callers:
        await caller.body()


# --- beginning ---


async def test_answers_in_one_piece_are_all_begun_as_soon_as_their_node_can(
    router: RunningRouter, start_node: StartNode
) -> None:
    """However long the router believes that each of them prefills."""
    all_begun = asyncio.Barrier(16)

    async def begin(request: Request) -> None:
        request_id, origin = request.header(HEADER_REQUEST_ID), request.header(HEADER_ORIGIN)
        assert request_id is not None and origin is not None
        await node.tell(Began(request_id, origin))
        async with all_begun:
            await request.answer(b"{}")

    slow = model_status(
        "m", weight_bytes=10**13, max_rows=16, cache=CacheStatus(10**12, 0, bytes_per_token=1)
    )
    node = await start_node(begin, first_events=(StatusEvent(node_status(slow)),))
    await router.add(node)
    body = {"model": "m", "messages": [{"role": "user", "content": "x" * 100_000}]}
    async with asyncio.timeout(WAIT_S):
        callers = [await router.post(body) for _ in range(16)]
        assert [await caller.head() for caller in callers] == [200] * 16


# --- waiting ---


async def test_a_stream_that_waits_reports_its_position(
    impatient: RunningRouter, start_node: StartNode, turns: Turns
) -> None:
    await one_row(impatient, start_node, turns)
    first, second = await first_and_waiting(impatient, turns, STREAM)
    assert await second.head() == 200
    comment = await second.chunk()
    assert comment.startswith(b": waiting, position 1, about ") and comment.endswith(b" s\n\n")
    shown = (await listed(impatient))[1]
    assert (shown["state"], shown["position"], shown["node"]) == ("queued", 1, None)
    await until_idle(impatient, turns, first)
    turns.next()
    rest = await second.body()
    assert b": fleet node=a model=m" in rest
    assert rest.endswith(HELLO + DONE)
    assert waiting(impatient) == 0


async def test_a_message_stream_that_waits_is_filled_with_pings(
    impatient: RunningRouter, start_node: StartNode, turns: Turns
) -> None:
    await one_row(impatient, start_node, turns)
    first, second = await first_and_waiting(impatient, turns, STREAM, MESSAGES)
    assert await second.head() == 200
    filler = await second.chunk()
    assert filler.startswith(b": waiting, position 1, about ")
    assert filler.endswith(b' s\n\nevent: ping\ndata: {"type": "ping"}\n\n')
    await until_idle(impatient, turns, first)
    turns.next()
    await second.body()


async def test_the_wait_is_reported_with_the_answer(
    router: RunningRouter, start_node: StartNode, turns: Turns
) -> None:
    await one_row(router, start_node, turns)
    first, second = await first_and_waiting(router, turns, WHOLE)
    await until_idle(router, turns, first, second)
    waited_ms = float(second.headers["x-fleet-queue-ms"])
    assert waited_ms > float(first.headers["x-fleet-queue-ms"])
    assert second.headers["x-fleet-node"] == "a"


async def test_a_worse_class_waits_behind_a_better_one(
    router: RunningRouter, start_node: StartNode, turns: Turns
) -> None:
    await one_row(router, start_node, turns)
    first, batch = await first_and_waiting(
        router, turns, WHOLE | {"user": "batch"}, x_fleet_priority="batch"
    )
    better = await router.post(WHOLE | {"user": "default"})
    await until_waiting(router, 2)
    assert [each["priority"] for each in await listed(router)] == ["default", "batch", "default"]
    await until_idle(router, turns, first, batch, better)
    assert turns.begun == ["", "default", "batch"]


async def test_a_caller_that_leaves_the_queue_is_gone_at_once(
    router: RunningRouter, start_node: StartNode, turns: Turns
) -> None:
    await one_row(router, start_node, turns)
    first, second = await first_and_waiting(router, turns, WHOLE)
    second.leave()
    await until_waiting(router, 0, AT_ONCE_S)
    await until_idle(router, turns, first)
    assert len(turns.begun) == 1


async def test_a_request_that_waits_can_be_cancelled(
    router: RunningRouter, start_node: StartNode, turns: Turns
) -> None:
    await one_row(router, start_node, turns)
    first, second = await first_and_waiting(router, turns, WHOLE)
    shown = (await listed(router))[1]
    await router.send("DELETE", f"/v1/requests/{shown['id']}", x_api_key=router.key)
    assert (await second.error())["code"] == "request_cancelled"
    await until_idle(router, turns, first)
    assert len(turns.begun) == 1


# --- rejected ---


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
async def test_a_full_queue_is_429_with_the_position_that_one_would_have_had(
    small: RunningRouter, start_node: StartNode, turns: Turns, path: str
) -> None:
    await one_row(small, start_node, turns)
    first, second = await first_and_waiting(small, turns, WHOLE)
    third = await small.post(WHOLE, path)
    error = json.loads(await third.body())["error"]
    assert third.status == 429
    assert error["type"] == "rate_limit_error"
    assert error["position"] == 2
    assert error["estimated_wait_s"] >= 0
    assert int(third.headers["retry-after"]) >= 1
    await until_idle(small, turns, first, second)


async def test_a_deadline_that_passes_in_the_queue_is_504(
    router: RunningRouter, start_node: StartNode, turns: Turns
) -> None:
    await one_row(router, start_node, turns)
    first = await router.post(WHOLE)
    late = await router.post(WHOLE, x_fleet_deadline_s="0.05")
    error = json.loads(await late.body())["error"]
    assert (late.status, error["code"]) == (504, "deadline_exceeded")
    await until_idle(router, turns, first)
    assert len(turns.begun) == 1


async def test_a_deadline_that_passes_after_the_head_is_an_event_of_the_stream(
    impatient: RunningRouter, start_node: StartNode, turns: Turns
) -> None:
    await one_row(impatient, start_node, turns)
    first, second = await first_and_waiting(impatient, turns, STREAM, x_fleet_deadline_s="1.5")
    assert await second.head() == 200
    assert (await in_band_error(second))["code"] == "deadline_exceeded"
    await until_idle(impatient, turns, first)


async def test_a_rejection_after_a_wait_reports_the_position(
    router: RunningRouter, start_node: StartNode, turns: Turns
) -> None:
    await one_row(router, start_node, turns)
    first, second = await first_and_waiting(router, turns, WHOLE)
    router.core.fleet.lost("id-a", "Gone.")
    error = json.loads(await second.body())["error"]
    assert second.status == 503
    assert error["position"] == 1
    assert error["estimated_wait_s"] >= 0
    await until_idle(router, turns, first)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"x_fleet_priority": "urgent"}, 400),
        ({"x_fleet_priority": "interactive"}, 403),
        ({"x_fleet_deadline_s": "0"}, 400),
        ({"x_fleet_deadline_s": "soon"}, 400),
    ],
)
async def test_a_header_that_asks_for_what_cannot_be_is_refused_by_its_name(
    router: RunningRouter,
    start_node: StartNode,
    turns: Turns,
    headers: dict[str, str],
    status: int,
) -> None:
    await one_row(router, start_node, turns)
    caller = await router.post(WHOLE, **headers)
    error = await caller.error()
    assert caller.status == status
    assert next(iter(headers)).replace("_", "-") in error["message"]
    assert turns.begun == []


# --- what an answer reports of its placement ---


async def test_an_answer_reports_the_decision_for_its_node_where_that_is_requested(
    router: RunningRouter, start_node: StartNode, turns: Turns
) -> None:
    await one_row(router, start_node, turns)
    plain = await router.post(WHOLE)
    await until_idle(router, turns, plain)
    explained = await router.post(WHOLE, x_fleet_decision="1")
    await until_idle(router, turns, explained)
    assert "x-fleet-decision" not in plain.headers
    assert explained.headers["x-fleet-decision"].startswith("node=a; ")
    assert "prefill=" in explained.headers["x-fleet-decision"]


async def test_cached_tokens_are_reported_as_predicted_and_as_the_node_counted_them(
    router: RunningRouter, start_node: StartNode, turns: Turns
) -> None:
    await one_row(router, start_node, turns)
    caller = await router.post(WHOLE)
    await until_idle(router, turns, caller)
    assert caller.headers["x-fleet-cached-tokens"] == "0/7"


# --- what a key may, and whom it shares prefixes with ---


async def test_a_key_s_class_is_that_of_its_requests_and_the_best_they_may_request(
    router: RunningRouter, start_node: StartNode, turns: Turns
) -> None:
    await one_row(router, start_node, turns)
    bearer = f"Bearer {add_key(router, priority='interactive')}"
    first, batch = await first_and_waiting(
        router, turns, WHOLE | {"user": "batch"}, x_fleet_priority="batch", authorization=bearer
    )
    better = await router.post(WHOLE | {"user": "best"}, authorization=bearer)
    await until_waiting(router, 2)
    await until_idle(router, turns, first, batch, better)
    assert turns.begun == ["", "best", "batch"]


async def test_the_salt_of_a_key_reaches_its_node_and_no_other_key_s_requests_have_one(
    router: RunningRouter, start_node: StartNode, turns: Turns
) -> None:
    node = await one_row(router, start_node, turns)
    bearer = f"Bearer {add_key(router, salt='pepper')}"
    forged = {"x_fleet_salt": "forged"}
    for headers in (forged, forged | {"authorization": bearer}):
        await until_idle(router, turns, await router.post(WHOLE, **headers))
    sent = [each.header(HEADER_SALT) for each in node.requests if each.target == CHAT]
    assert sent == [None, "pepper"]


async def test_a_request_that_was_rejected_or_left_is_counted_without_a_node(
    small: RunningRouter, start_node: StartNode, turns: Turns
) -> None:
    await one_row(small, start_node, turns)
    first, second = await first_and_waiting(small, turns, WHOLE)
    await (await small.post(WHOLE)).body()
    second.leave()
    await until_waiting(small, 0)
    await until_idle(small, turns, first)
    await small.idle()
    text = small.core.metrics.text().decode()
    for node, outcome in (("", "queue_full"), ("", "cancelled"), ("a", "served")):
        labels = f'model="m",node="{node}",outcome="{outcome}"'
        assert f"mlx_fleet_requests_total{{{labels}}} 1.0" in text
