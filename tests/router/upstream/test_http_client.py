"""The client of inference requests against byte-scripted servers."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
from collections.abc import AsyncIterator

import pytest

from router.upstream import http_client as upstream_module
from router.upstream.http_client import Upstream
from router.upstream.http_failures import NoResponse, NotConnected, UpstreamBroken
from router.upstream.http_response import PAUSE_BYTES, Response
from tests.router.conftest import WAIT_S, Request, Script, ScriptedNode, StartNode, answer_bytes

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: node\r\ncontent-length: 2\r\n\r\n"


async def whole(request: Request) -> None:
    await request.answer(b"answer")


def raw(data: bytes) -> Script:
    async def script(request: Request) -> None:
        await request.write(data)
        request.drop()

    return script


@pytest.fixture
async def upstreams() -> AsyncIterator[list[Upstream]]:
    made: list[Upstream] = []
    yield made
    for each in made:
        each.close()


def to(node: ScriptedNode, upstreams: list[Upstream]) -> Upstream:
    upstreams.append(Upstream(node.url))
    return upstreams[-1]


async def test_a_request_arrives_whole_and_its_answer_is_read(
    start_node: StartNode, upstreams: list[Upstream]
) -> None:
    node = await start_node(whole)
    response = await to(node, upstreams).send(HEAD, b"{}")
    assert response.status == 200
    assert response.headers[b"content-length"] == b"6"
    assert await response.read_all() == b"answer"
    assert await response.read_any() == b""
    (request,) = node.requests
    assert (request.method, request.target, request.body) == (
        "POST",
        "/v1/chat/completions",
        b"{}",
    )


async def test_the_last_connection_used_is_reused(
    start_node: StartNode, upstreams: list[Upstream]
) -> None:
    node = await start_node(whole)
    upstream = to(node, upstreams)
    for _ in range(5):
        await (await upstream.send(HEAD, b"{}")).read_all()
    assert node.connections == 1


async def test_an_answer_leaves_no_garbage(
    start_node: StartNode, upstreams: list[Upstream]
) -> None:
    upstream = to(await start_node(whole), upstreams)
    response = await upstream.send(HEAD, b"{}")
    await response.read_all()
    gc.disable()
    try:
        del response
        assert not any(isinstance(each, Response) for each in gc.get_objects())
    finally:
        gc.enable()


async def test_requests_at_once_have_connections_of_their_own(
    start_node: StartNode, upstreams: list[Upstream]
) -> None:
    node = await start_node(whole)
    upstream = to(node, upstreams)
    responses = await asyncio.gather(*(upstream.send(HEAD, b"{}") for _ in range(4)))
    assert [await response.read_all() for response in responses] == [b"answer"] * 4
    assert node.connections == 4


async def test_no_more_of_a_body_is_gathered_than_is_wanted(
    start_node: StartNode, upstreams: list[Upstream]
) -> None:
    upstream = to(await start_node(whole), upstreams)
    assert await (await upstream.send(HEAD, b"{}")).read_all(6) == b"answer"
    with pytest.raises(UpstreamBroken, match="too long"):
        await (await upstream.send(HEAD, b"{}")).read_all(5)


async def test_a_body_that_was_read_can_be_put_back(
    start_node: StartNode, upstreams: list[Upstream]
) -> None:
    response = await to(await start_node(whole), upstreams).send(HEAD, b"{}")
    response.put_back(await response.read_all())
    assert await response.read_all() == b"answer"
    assert await response.read_all() == b""


async def test_a_large_body_arrives_whole(start_node: StartNode, upstreams: list[Upstream]) -> None:
    node = await start_node(whole)
    body = bytes(range(256)) * 8192
    head = HEAD.replace(b"length: 2", b"length: %d" % len(body))
    await (await to(node, upstreams).send(head, body)).read_all()
    assert node.requests[0].body == body


async def test_a_connection_that_the_node_closed_while_idle_costs_nothing(
    start_node: StartNode, upstreams: list[Upstream]
) -> None:
    async def once(request: Request) -> None:
        await request.answer(b"answer")
        request.drop()

    node = await start_node(once)
    upstream = to(node, upstreams)
    for _ in range(3):
        assert await (await upstream.send(HEAD, b"{}")).read_all() == b"answer"
    assert node.connections == 3


async def test_a_node_that_asks_for_close_is_not_kept(
    start_node: StartNode, upstreams: list[Upstream]
) -> None:
    async def script(request: Request) -> None:
        await request.answer(b"answer", connection="close")

    node = await start_node(script)
    upstream = to(node, upstreams)
    for _ in range(2):
        assert await (await upstream.send(HEAD, b"{}")).read_all() == b"answer"
    assert node.connections == 2


async def test_a_body_without_a_length_ends_with_its_connection(
    start_node: StartNode, upstreams: list[Upstream]
) -> None:
    node = await start_node(raw(b"HTTP/1.1 200 OK\r\n\r\nsome text"))
    response = await to(node, upstreams).send(HEAD, b"{}")
    assert await response.read_all() == b"some text"


async def test_an_informational_head_is_passed_over(
    start_node: StartNode, upstreams: list[Upstream]
) -> None:
    data = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + answer_bytes(b"answer")
    node = await start_node(raw(data))
    response = await to(node, upstreams).send(HEAD, b"{}")
    assert response.status == 200
    assert b"link" not in response.headers
    assert await response.read_all() == b"answer"


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\nnonsense\r\n",
    ],
)
async def test_a_body_that_breaks_is_read_so_far_and_then_an_error(
    start_node: StartNode, upstreams: list[Upstream], data: bytes
) -> None:
    response = await to(await start_node(raw(data)), upstreams).send(HEAD, b"{}")
    async with asyncio.timeout(WAIT_S):
        assert await response.read_any() == b"half"
        with pytest.raises(UpstreamBroken):
            await response.read_any()


@pytest.mark.parametrize("data", [b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000])
async def test_what_is_not_http_breaks_the_connection(
    start_node: StartNode, upstreams: list[Upstream], data: bytes
) -> None:
    node = await start_node(raw(data))
    async with asyncio.timeout(WAIT_S):
        with pytest.raises(UpstreamBroken):
            await to(node, upstreams).send(HEAD, b"{}")


async def test_a_fresh_connection_that_breaks_unanswered_is_not_tried_again(
    start_node: StartNode, upstreams: list[Upstream]
) -> None:
    node = await start_node(raw(b""))
    with pytest.raises(NoResponse):
        await to(node, upstreams).send(HEAD, b"{}")
    assert node.connections == 1


async def test_more_than_was_requested_ends_the_connection(
    start_node: StartNode, upstreams: list[Upstream]
) -> None:
    async def script(request: Request) -> None:
        await request.write(answer_bytes(b"answer") + answer_bytes(b"another"))
        await request.wait_gone()

    node = await start_node(script)
    upstream = to(node, upstreams)
    assert await (await upstream.send(HEAD, b"{}")).read_all() == b"answer"
    async with asyncio.timeout(WAIT_S):
        await node.requests[0].wait_gone()


async def test_a_reader_that_does_not_read_stops_the_node(
    start_node: StartNode, upstreams: list[Upstream]
) -> None:
    written = 0

    async def script(request: Request) -> None:
        nonlocal written
        await request.begin_stream()
        for _ in range(400):
            await request.chunk(b"x" * 65_536)
            written += 65_536
        await request.end_stream()

    upstream = to(await start_node(script), upstreams)
    response = await upstream.send(HEAD, b"{}")
    before = -1
    async with asyncio.timeout(WAIT_S):
        while written != before:
            before = written
            await asyncio.sleep(0.2)  # what is to be seen is that nothing happens
    assert written < 400 * 65_536 / 2
    assert len(await response.read_all()) == 400 * 65_536
    assert PAUSE_BYTES < 400 * 65_536


async def test_what_arrives_is_given_to_a_sink_until_it_is_full_and_after_that_again(
    start_node: StartNode, upstreams: list[Upstream]
) -> None:
    go_on = asyncio.Event()

    async def script(request: Request) -> None:
        await request.begin_stream()
        await request.chunk(b"one")
        await go_on.wait()
        await request.chunk(b"two")
        await request.chunk(b"three")
        await request.end_stream()

    given: list[bytes] = []

    def sink(piece: bytes) -> bool:
        given.append(piece)
        return b"".join(given) != b"one"

    response = await (to(await start_node(script), upstreams)).send(HEAD, b"{}")
    async with asyncio.timeout(WAIT_S):
        assert not await response.pump(sink)
        go_on.set()
        assert await response.pump(sink)
        assert await response.pump(sink)
    assert b"".join(given) == b"onetwothree"


async def test_a_sink_gets_all_that_arrived_before_a_failure(
    start_node: StartNode, upstreams: list[Upstream]
) -> None:
    data = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf"
    response = await to(await start_node(raw(data)), upstreams).send(HEAD, b"{}")
    given: list[bytes] = []

    def sink(piece: bytes) -> bool:
        given.append(piece)
        return True

    async with asyncio.timeout(WAIT_S):
        with pytest.raises(UpstreamBroken):
            await response.pump(sink)
    assert given == [b"half"]


async def test_closing_an_answer_that_is_not_whole_breaks_its_connection(
    start_node: StartNode, upstreams: list[Upstream]
) -> None:
    async def script(request: Request) -> None:
        await request.begin_stream()
        await request.wait_gone()

    node = await start_node(script)
    response = await to(node, upstreams).send(HEAD, b"{}")
    response.close()
    async with asyncio.timeout(WAIT_S):
        await node.requests[0].wait_gone()


async def test_a_request_given_up_before_its_head_breaks_its_connection(
    start_node: StartNode, upstreams: list[Upstream]
) -> None:
    received = asyncio.Event()

    async def script(request: Request) -> None:
        received.set()
        await request.wait_gone()

    node = await start_node(script)
    upstream = to(node, upstreams)
    task = asyncio.create_task(upstream.send(HEAD, b"{}"))
    async with asyncio.timeout(WAIT_S):
        await received.wait()
        task.cancel()
        await node.requests[0].wait_gone()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_node_that_is_not_there_is_an_os_error() -> None:
    with pytest.raises(ConnectionRefusedError):
        await Upstream("http://127.0.0.1:1").send(HEAD, b"{}")


async def test_a_node_that_never_completes_the_handshake_times_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upstream_module, "CONNECT_TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        deaf.setblocking(False)
        upstream = Upstream(f"https://127.0.0.1:{deaf.getsockname()[1]}")
        connection: socket.socket | None = None
        while connection is None:  # on a busy machine the time may be up before the first step
            with pytest.raises(NotConnected, match=r"within 0\.05 s"):
                await upstream.send(HEAD, b"{}")
            with contextlib.suppress(BlockingIOError):
                connection, _address = deaf.accept()
        connection.setblocking(False)
        with connection, contextlib.suppress(ConnectionResetError):
            async with asyncio.timeout(WAIT_S):
                while await asyncio.get_running_loop().sock_recv(connection, 65_536):
                    pass


async def test_a_connection_sends_small_writes_at_once_and_notices_a_dead_host(
    start_node: StartNode, upstreams: list[Upstream]
) -> None:
    upstream = to(await start_node(whole), upstreams)
    await (await upstream.send(HEAD, b"{}")).read_all()
    (connection,) = upstream._all
    assert connection._transport is not None
    sock = connection._transport.get_extra_info("socket")
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == 3


async def test_after_it_is_renewed_nothing_goes_over_what_was_open(
    start_node: StartNode, upstreams: list[Upstream], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await start_node(whole)
    upstream = to(node, upstreams)
    expired: list[str] = []
    monkeypatch.setattr(upstream.host, "expire", lambda: expired.append(upstream.host.host))
    for _ in range(2):
        assert await (await upstream.send(HEAD, b"{}")).read_all() == b"answer"
    upstream.renew()
    assert await (await upstream.send(HEAD, b"{}")).read_all() == b"answer"
    assert (node.connections, expired) == (2, ["127.0.0.1"])
