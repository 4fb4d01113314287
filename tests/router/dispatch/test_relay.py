"""The relay on real sockets: what a caller sees, byte by byte, whatever its node does."""

from __future__ import annotations

import asyncio
import json
import re

import pytest

from tests.router.conftest import (
    CHAT,
    AddNode,
    RawCaller,
    Request,
    RunningRouter,
    Script,
    ScriptedNode,
    answer_bytes,
)

STREAM = {"model": "m", "stream": True}
WHOLE = {"model": "m"}
HELLO = b'data: {"choices":[{"delta":{"content":"hello"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
FULL = b'{"error":{"message":"full","type":"server_error","param":null,"code":"queue_full"}}'


async def stream(request: Request) -> None:
    await request.begin_stream()
    await request.chunk(HELLO)
    await request.chunk(DONE)
    await request.end_stream()


async def whole(request: Request) -> None:
    await request.answer(b'{"object":"chat.completion"}')


async def hang(request: Request) -> None:
    await request.wait_gone()


async def drop(request: Request) -> None:
    request.drop()


def refuse(status: str, answer: bytes = FULL, **headers: str) -> Script:
    async def script(request: Request) -> None:
        await request.answer(answer, status, **headers)

    return script


def request_counts(*nodes: ScriptedNode) -> list[int]:
    """Returns the number of inference requests that reached each node."""
    return [sum(each.target == CHAT for each in node.requests) for node in nodes]


async def in_band_error(caller: RawCaller) -> dict[str, str]:
    """The last event of a stream that broke; there is no other event and no `[DONE]`."""
    rest = await caller.body()
    assert rest.endswith(b"\n\n") and rest.count(b"data:") == 1 and b"[DONE]" not in rest
    error = json.loads(rest[rest.index(b"data:") + 5 :])["error"]
    assert isinstance(error, dict)
    return error


# --- bytes pass untouched ---


async def test_a_stream_passes_byte_by_byte(router: RunningRouter, add_node: AddNode) -> None:
    pieces = [
        b": hi\n\n" + HELLO,
        b"da",
        b"ta: \xf0\x9f",
        b"\x98\x80\r\n\r\n",
        b"event: x\n\n",
        DONE,
    ]

    async def script(request: Request) -> None:
        await request.begin_stream()
        for piece in pieces:
            await request.chunk(piece)
        await request.end_stream()

    await add_node(router, "a", script)
    caller = await router.post(STREAM)
    assert await caller.body() == b"".join(pieces)
    assert caller.headers["content-type"] == "text/event-stream"
    assert caller.headers["x-fleet-node"] == "a"
    assert caller.headers["x-fleet-model"] == "m"
    assert re.fullmatch(
        r"req_id-a-[0-9a-f]{10}-[0-9a-f]{8}-[0-9a-f]{6}", caller.headers["x-request-id"]
    )
    assert float(caller.headers["x-fleet-queue-ms"]) >= 0


@pytest.mark.parametrize("status", ["200 OK", "400 Bad Request", "418 Teapot", "500 Oops"])
@pytest.mark.parametrize("body", [WHOLE, STREAM])
async def test_a_whole_answer_passes_with_status_and_type(
    router: RunningRouter, add_node: AddNode, status: str, body: dict[str, object]
) -> None:
    data = b'{ "a" : "\\u00e9", "b": 1.50 }\n'

    async def script(request: Request) -> None:
        await request.answer(data, status, content_type="application/x-odd", x_secret="1")

    node = await add_node(router, "a", script)
    other = await add_node(router, "b", script)
    caller = await router.post(body)
    assert await caller.body() == data
    assert caller.status == int(status.split()[0])
    assert caller.headers["content-type"] == "application/x-odd"
    assert "x-secret" not in caller.headers
    assert sum(request_counts(node, other)) == 1


async def test_the_node_s_framing_is_not_copied(router: RunningRouter, add_node: AddNode) -> None:
    async def chunked(request: Request) -> None:
        head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nset-cookie: a=b\r\n\r\n"
        await request.write(head + b"2\r\n{}\r\n0\r\n\r\n")

    await add_node(router, "a", chunked)
    caller = await router.post(WHOLE)
    assert await caller.body() == b"{}"
    assert "set-cookie" not in caller.headers
    assert ("content-length" in caller.headers) != ("transfer-encoding" in caller.headers)


async def test_a_stream_may_announce_a_length_and_not_keep_to_it(
    router: RunningRouter, add_node: AddNode
) -> None:
    async def script(request: Request) -> None:
        data = answer_bytes(HELLO + DONE, content_type="text/event-stream")
        await request.write(data[: -len(DONE)])
        request.writer.close()
        request.stay_open = False

    await add_node(router, "a", script)
    caller = await router.post(STREAM)
    assert await caller.head() == 200
    assert await caller.chunk() == HELLO
    assert (await in_band_error(caller))["code"] == "node_failed"


async def test_neither_key_nor_cookie_nor_other_headers_reach_the_node(
    router: RunningRouter, add_node: AddNode
) -> None:
    node = await add_node(router, "a", whole)
    caller = await router.post(
        WHOLE, cookie="c=1", x_api_key=router.key, x_odd="1", origin="http://e"
    )
    await caller.body()
    (request,) = [each for each in node.requests if each.target == CHAT]
    assert request.header("authorization") == "Bearer secret"
    names = {name.lower() for name, _ in request.headers}
    assert not names & {"cookie", "x-api-key", "x-odd", "origin", "transfer-encoding"}
    assert router.key not in str(request.headers)
    assert request.header("x-fleet-requested-model") == "m"
    assert request.header(
        "x-fleet-origin",
    ) == router.core.router_id + "/" + await key_id(router)


async def key_id(router: RunningRouter) -> str:
    return router.core.keys.check(router.key, "inference").key_id


# --- the head is withheld, failures before content are retried ---


async def test_the_head_is_withheld_until_the_first_event(
    router: RunningRouter, add_node: AddNode
) -> None:
    go = asyncio.Event()

    async def script(request: Request) -> None:
        await request.begin_stream()
        await request.chunk(b"data: ")
        await go.wait()
        await request.chunk(b"1\n\n")
        await request.end_stream()

    await add_node(router, "a", script)
    caller = await router.post(STREAM)
    first_byte = asyncio.create_task(caller.head())
    done, _ = await asyncio.wait((first_byte,), timeout=0.1)
    assert not done
    go.set()
    assert await first_byte == 200
    assert await caller.body() == b"data: 1\n\n"


@pytest.mark.parametrize("status", ["409 Conflict", "429 Busy", "503 Away"])
@pytest.mark.parametrize("body", [WHOLE, STREAM])
async def test_a_busy_node_s_request_goes_to_another_node(
    router: RunningRouter, add_node: AddNode, status: str, body: dict[str, object]
) -> None:
    busy = await add_node(router, "a", refuse(status, retry_after="7"))
    free = await add_node(router, "b", stream if body is STREAM else whole)
    caller = await router.post(body)
    assert await caller.head() == 200
    assert caller.headers["x-fleet-node"] == "b"
    assert "retry-after" not in caller.headers
    assert request_counts(busy, free) == [1, 1]


@pytest.mark.parametrize("body", [WHOLE, STREAM])
async def test_where_all_are_busy_the_last_answer_passes_with_its_retry_after(
    router: RunningRouter, add_node: AddNode, body: dict[str, object]
) -> None:
    nodes = [await add_node(router, name, refuse("503 Away", retry_after="7")) for name in "abc"]
    caller = await router.post(body)
    assert await caller.body() == FULL
    assert (caller.status, caller.headers["retry-after"]) == (503, "7")
    assert sorted(request_counts(*nodes)) == [0, 1, 1]


async def test_a_node_may_forbid_retries(router: RunningRouter, add_node: AddNode) -> None:
    nodes = [
        await add_node(router, name, refuse("409 Conflict", x_should_retry="false"))
        for name in "ab"
    ]
    caller = await router.post(WHOLE)
    assert await caller.body() == FULL
    assert (caller.status, caller.headers["x-should-retry"]) == (409, "false")
    assert sum(request_counts(*nodes)) == 1


async def test_a_single_busy_node_is_not_sent_the_request_twice(
    router: RunningRouter, add_node: AddNode
) -> None:
    node = await add_node(router, "a", refuse("429 Busy", retry_after="7"))
    caller = await router.post(WHOLE)
    assert await caller.body() == FULL
    assert (caller.status, caller.headers["retry-after"]) == (429, "7")
    assert request_counts(node) == [1]


async def begin_and_drop(request: Request) -> None:
    await request.begin_stream()
    request.drop()


async def begin_comment_and_drop(request: Request) -> None:
    await request.begin_stream()
    await request.chunk(b": keep-ali")
    request.drop()


async def begin_and_end(request: Request) -> None:
    await request.begin_stream()
    await request.end_stream()


@pytest.mark.parametrize("dying", [drop, begin_and_drop, begin_comment_and_drop, begin_and_end])
async def test_a_connection_that_fails_before_content_is_retried_elsewhere(
    router: RunningRouter, add_node: AddNode, dying: Script
) -> None:
    dead, alive = await add_node(router, "a", dying), await add_node(router, "b", stream)
    caller = await router.post(STREAM)
    assert await caller.body() == HELLO + DONE
    assert (caller.status, caller.headers["x-fleet-node"]) == (200, "b")
    assert request_counts(dead, alive) == [1, 1]


async def test_a_port_that_closed_is_retried_elsewhere(
    router: RunningRouter, add_node: AddNode
) -> None:
    dead = await add_node(router, "a", whole)
    await add_node(router, "b", whole)
    dead._server.close()  # type: ignore[union-attr]
    caller = await router.post(WHOLE)
    assert await caller.head() == 200
    assert caller.headers["x-fleet-node"] == "b"


@pytest.mark.parametrize("names", ["a", "abc"])
@pytest.mark.parametrize("body", [WHOLE, STREAM])
async def test_a_failed_connection_is_retried_exactly_once(
    router: RunningRouter, add_node: AddNode, names: str, body: dict[str, object]
) -> None:
    nodes = [await add_node(router, name, drop) for name in names]
    caller = await router.post(body)
    assert (await caller.error())["code"] == "node_failed"
    assert caller.status == 502
    assert sum(request_counts(*nodes)) == 2
    assert max(request_counts(*nodes)) == (2 if names == "a" else 1)


async def test_a_connection_that_went_stale_is_replaced(
    router: RunningRouter, add_node: AddNode
) -> None:
    scripts = [whole, drop, whole]

    async def script(request: Request) -> None:
        await scripts.pop(0)(request)

    node = await add_node(router, "a", script)
    for _ in range(2):
        caller = await router.post(WHOLE)
        await caller.body()
        assert caller.status == 200
    assert request_counts(node) == [3]


async def test_a_whole_answer_cut_in_its_body_is_an_error_and_not_half_an_answer(
    router: RunningRouter, add_node: AddNode
) -> None:
    async def script(request: Request) -> None:
        await request.write(answer_bytes(b'{"long": "answer"}')[:-5])
        request.drop()

    node = await add_node(router, "a", script)
    caller = await router.post(WHOLE)
    assert (await caller.error())["code"] == "node_failed"
    assert caller.status == 502
    assert request_counts(node) == [2]


async def test_leading_comments_are_not_content(router: RunningRouter, add_node: AddNode) -> None:
    async def script(request: Request) -> None:
        await request.begin_stream()
        await request.chunk(b": keep-alive\n\n")
        request.drop()

    await add_node(router, "a", script)
    await add_node(router, "b", stream)
    caller = await router.post(STREAM)
    assert await caller.head() == 200
    assert caller.headers["x-fleet-node"] == "a"
    comment = b": fleet node=b model=m\n\n"
    assert await caller.body() == b": keep-alive\n\n" + comment + HELLO + DONE


# --- after content ---


@pytest.mark.parametrize("partial", [b"", b'data: {"choi', b": comm"])
async def test_a_stream_that_breaks_ends_in_one_error_event(
    router: RunningRouter, add_node: AddNode, partial: bytes
) -> None:
    async def script(request: Request) -> None:
        await request.begin_stream()
        await request.chunk(HELLO + partial)
        request.drop()

    nodes = [await add_node(router, name, script) for name in "ab"]
    caller = await router.post(STREAM)
    assert await caller.head() == 200
    assert await caller.chunk() == HELLO
    error = await in_band_error(caller)
    assert (error["code"], error["type"]) == ("node_failed", "server_error")
    assert sum(request_counts(*nodes)) == 1


# --- silence ---


async def test_silence_is_filled_and_a_late_success_names_the_node_that_served(
    impatient: RunningRouter, add_node: AddNode
) -> None:
    go = asyncio.Event()

    async def script(request: Request) -> None:
        await go.wait()
        await stream(request)

    await add_node(impatient, "a", script)
    caller = await impatient.post(STREAM)
    assert await caller.head() == 200
    assert caller.headers["content-type"].startswith("text/event-stream")
    assert "x-fleet-node" not in caller.headers
    assert [await caller.chunk() for _ in range(3)] == [b": keep-alive\n\n"] * 3
    go.set()
    rest = (await caller.body()).replace(b": keep-alive\n\n", b"")
    assert rest == b": fleet node=a model=m\n\n" + HELLO + DONE


@pytest.mark.parametrize(
    ("late", "code"),
    [
        (refuse("400 Bad Request"), "queue_full"),
        (refuse("503 Away"), "queue_full"),
        (drop, "node_failed"),
    ],
)
async def test_a_late_failure_is_one_error_event(
    impatient: RunningRouter, add_node: AddNode, late: Script, code: str
) -> None:
    go = asyncio.Event()

    async def script(request: Request) -> None:
        await go.wait()
        await late(request)

    await add_node(impatient, "a", script)
    caller = await impatient.post(STREAM)
    assert await caller.head() == 200
    assert await caller.chunk() == b": keep-alive\n\n"
    go.set()
    assert (await in_band_error(caller))["code"] == code


@pytest.mark.parametrize("body", [b"", b"<html>Oops</html>"])
async def test_a_late_failure_outside_the_envelope_is_one_error_event_too(
    impatient: RunningRouter, add_node: AddNode, body: bytes
) -> None:
    go = asyncio.Event()

    async def script(request: Request) -> None:
        await go.wait()
        await request.answer(body, "500 Oops")

    await add_node(impatient, "a", script)
    caller = await impatient.post(STREAM)
    await caller.head()
    go.set()
    error = await in_band_error(caller)
    assert error["code"] == "node_failed" and "500" in error["message"]


async def test_silence_before_a_second_node_s_head_is_filled_too(
    impatient: RunningRouter, add_node: AddNode
) -> None:
    async def dying(request: Request) -> None:
        await request.begin_stream()
        await request.chunk(b": mine\n\n")
        request.drop()

    go = asyncio.Event()

    async def slow(request: Request) -> None:
        await go.wait()
        await stream(request)

    await add_node(impatient, "a", dying)
    await add_node(impatient, "b", slow)
    caller = await impatient.post(STREAM)
    assert await caller.head() == 200
    seen = [await caller.chunk(), await caller.chunk()]
    assert seen == [b": mine\n\n", b": keep-alive\n\n"]
    go.set()
    assert HELLO + DONE in await caller.body()


async def test_a_whole_answer_is_not_filled(impatient: RunningRouter, add_node: AddNode) -> None:
    go = asyncio.Event()

    async def script(request: Request) -> None:
        await go.wait()
        await whole(request)

    await add_node(impatient, "a", script)
    caller = await impatient.post(WHOLE)
    head = asyncio.create_task(caller.head())
    done, _ = await asyncio.wait((head,), timeout=0.2)
    assert not done
    go.set()
    assert await head == 200
