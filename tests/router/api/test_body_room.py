"""Bodies are read while there is room for them, for each key a share."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator

import pytest

from node.protocol.bounds import MAX_BODY_BYTES
from node.protocol.json_size import MAX_CONTAINERS
from node.protocol.messages import StatusEvent
from router.api import body_room, inference
from router.api.body_room import BodyRoom
from serving.fair_shares import FairShares
from tests.router.conftest import (
    WAIT_S,
    RawCaller,
    Request,
    RunningRouter,
    ScriptedNode,
    StartNode,
    model_status,
    node_status,
)

ROOM_BYTES = 4000
LARGE = "x" * 1000
SMALL_BYTES = 500


@pytest.fixture(autouse=True)
def little_room() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(body_room, "MAX_OPEN_BYTES", ROOM_BYTES)
        patch.setattr(inference, "SMALL_BYTES", SMALL_BYTES)
        yield


class Node:
    """One that withholds each response until it is released."""

    def __init__(self, node: ScriptedNode, received: asyncio.Queue[str], go: asyncio.Event) -> None:
        self.node, self.received, self.go = node, received, go


async def a_node(router: RunningRouter, start_node: StartNode) -> Node:
    received: asyncio.Queue[str] = asyncio.Queue()
    go = asyncio.Event()

    async def withhold(request: Request) -> None:
        received.put_nowait(json.loads(request.body)["user"])
        await go.wait()
        await request.answer(b"{}")

    status = StatusEvent(node_status(model_status("m", max_rows=99)))
    node = await start_node(withhold, first_events=(status,))
    await router.add(node)
    return Node(node, received, go)


async def call(router: RunningRouter, key: str, user: str, text: str = LARGE) -> RawCaller:
    body = {"model": "m", "user": user, "messages": [{"role": "user", "content": text}]}
    return await router.post(body, authorization=f"Bearer {key}")


async def test_a_key_whose_share_is_full_waits_and_others_do_not(
    router: RunningRouter, start_node: StartNode
) -> None:
    node, other = await a_node(router, start_node), router.new_key("inference")
    async with asyncio.timeout(WAIT_S):
        first = await call(router, router.key, "first")
        assert await node.received.get() == "first"
        waiting = await call(router, router.key, "waiting", LARGE * 2)
        others = await call(router, other, "other")
        assert await node.received.get() == "other"
        small = await call(router, router.key, "small", "x")
        assert await node.received.get() == "small"
        node.go.set()
        assert await node.received.get() == "waiting"
        assert [await each.head() for each in (first, waiting, others, small)] == [200] * 4


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_one_that_waits_too_long_is_rejected_with_retry_after(
    router: RunningRouter, start_node: StartNode, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(body_room, "WAIT_S", 0.01)
    node = await a_node(router, start_node)
    first = await call(router, router.key, "first", LARGE * 2)
    assert await node.received.get() == "first"
    body = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": LARGE * 2}]}
    refused = await router.post(body, path)
    assert await refused.head() == 429
    assert int(refused.headers["retry-after"]) > 0
    error = json.loads(await refused.body())["error"]
    assert error["type"] == "rate_limit_error"
    assert error["message"].startswith("Too many of your requests wait")
    node.go.set()
    assert await first.head() == 200


async def test_reserved_room_is_released_however_a_request_ends(
    router: RunningRouter, start_node: StartNode
) -> None:
    node = await a_node(router, start_node)
    node.go.set()
    for _ in range(ROOM_BYTES // len(LARGE) + 1):
        for body, status in (
            (b"{" + LARGE.encode(), 400),
            ({"model": "none", "messages": LARGE}, 404),
            ({"model": "m", "user": "u", "messages": [{"role": "user", "content": LARGE}]}, 200),
        ):
            assert await (await router.post(body)).head() == status
        left = await router.post(b"x", content_length=str(ROOM_BYTES))
        left.writer.close()
    await router.idle()


async def test_a_body_without_a_length_counts_as_the_longest_until_it_is_there(
    router: RunningRouter, start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    take = FairShares.acquire

    async def recording(self: FairShares, caller: str, size: int):  # type: ignore[no-untyped-def]
        taken.append(size)
        share = await take(self, caller, size)
        monkeypatch.setattr(share, "resize", lambda size: taken.append(size))
        return share

    monkeypatch.setattr(FairShares, "acquire", recording)
    node = await a_node(router, start_node)
    node.go.set()
    body = json.dumps({"model": "m", "user": "u", "messages": []}).encode()
    caller = await router.send(
        "POST",
        "/v1/chat/completions",
        b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body),
        authorization=f"Bearer {router.key}",
        transfer_encoding="chunked",
    )
    assert await caller.head() == 200
    await router.idle()
    assert taken[:2] == [MAX_BODY_BYTES, len(body)]


@pytest.mark.parametrize("threshold", [0, 1 << 30])
async def test_a_body_of_too_many_values_is_refused_before_anything_is_made_of_it(
    router: RunningRouter, monkeypatch: pytest.MonkeyPatch, threshold: int
) -> None:
    monkeypatch.setattr(body_room, "_THREAD_BYTES", threshold)
    body = b'{"model":"m","messages":[' + b",".join([b"[]"] * MAX_CONTAINERS) + b"]}"
    refused = await router.post(body)
    assert await refused.head() == 413
    assert (await refused.error())["code"] == "body_too_large"


async def test_large_bodies_of_a_key_are_read_a_few_at_a_time() -> None:
    room, go, begun = BodyRoom(), threading.Event(), threading.Semaphore(0)

    def work() -> int:
        begun.release()
        assert go.wait(WAIT_S)
        return 5

    one = [asyncio.create_task(room.in_thread("a", work)) for _ in range(4)]
    other = asyncio.create_task(room.in_thread("b", work))
    async with asyncio.timeout(WAIT_S):
        for _ in range(body_room.THREADS):
            assert await asyncio.to_thread(begun.acquire, timeout=WAIT_S)
        assert not begun.acquire(blocking=False)
        go.set()
        assert await asyncio.gather(*one, other) == [5] * 5
