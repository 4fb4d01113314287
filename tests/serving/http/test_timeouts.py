"""Callers that are there but do not go on, on real sockets with short limits."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket

import pytest

from serving.http.exchange import EXTENSION, Exchange, Message, Receive, Send
from serving.http.timeouts import ClientProgress, ClientTimeouts, unsent_bytes
from tests.serving.http.connections import GET, WAIT_S, Server, echo, serving

SHORT_S = 0.05
PIECE = b"x" * 65_536


async def all_gone(server: Server) -> None:
    async with asyncio.timeout(WAIT_S):
        while server.state.connections:
            await asyncio.sleep(0)


@pytest.mark.usefixtures("over")
async def test_a_caller_that_reads_nothing_is_disconnected_and_its_request_ends() -> None:
    disconnected = asyncio.Event()

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        exchange: Exchange = scope["extensions"][EXTENSION]
        exchange.on_disconnect = disconnected.set
        exchange.begin(200, ())
        while not exchange.disconnected:
            exchange.write(PIECE)
            await exchange.drain()

    async with serving(app, timeouts=ClientTimeouts(unread_s=SHORT_S)) as server:
        caller = await server.call()
        caller.send(GET)
        await asyncio.wait_for(disconnected.wait(), WAIT_S)
        await all_gone(server)


@pytest.mark.usefixtures("over")
async def test_what_is_left_of_an_answer_does_not_keep_the_connection_open() -> None:
    async def app(scope: Message, receive: Receive, send: Send) -> None:
        exchange: Exchange = scope["extensions"][EXTENSION]
        exchange.keep_alive = False
        exchange.begin(200, ())
        exchange.end(PIECE * 400)

    async with serving(app, timeouts=ClientTimeouts(unread_s=SHORT_S)) as server:
        caller = await server.call()
        caller.send(GET)
        await caller.until(b"\r\n\r\n")
        await all_gone(server)


@pytest.mark.usefixtures("over")
@pytest.mark.parametrize(
    ("sent", "path"),
    [
        (b"POST /v1/messages HTTP/1.1\r\nhost: he", "/v1/messages"),
        (b"POST /x HTTP/1.1\r\nhost: here\r\ncontent-length: 9\r\n\r\nhalf", "/x"),
        (b"GE", ""),
    ],
)
async def test_half_a_request_is_refused_after_a_while(sent: bytes, path: str) -> None:
    async with serving(echo, timeouts=ClientTimeouts(head_s=SHORT_S, body_s=SHORT_S)) as server:
        caller = await server.call()
        caller.send(sent)
        head, _, body = (await caller.rest()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
        assert b"connection: close" in head
        error = json.loads(body)
        assert (error["code"], error["path"]) == ("request_timeout", path)


@pytest.mark.usefixtures("over")
async def test_connections_use_tcp_keepalive() -> None:
    async with serving(echo) as server:
        caller = await server.call()
        caller.send(GET)
        await caller.until(b"/x? ")
        (connection,) = server.state.connections
        transport = connection.transport
        assert transport is not None
        found = transport.get_extra_info("socket")
        assert found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) != 0


def test_bytes_in_the_socket_buffer_count_as_unsent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        sending = socket.create_connection(server.getsockname())
        taking, _ = server.accept()
    with sending, taking:
        assert unsent_bytes(sending) == 0
        sending.setblocking(False)
        sent_bytes = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                sent_bytes += sending.send(PIECE)
        full_bytes = unsent_bytes(sending)
        assert full_bytes > 0
        while sent_bytes:
            sent_bytes -= len(taking.recv(min(sent_bytes, len(PIECE))))
        assert unsent_bytes(sending) < full_bytes


def pace() -> ClientProgress:
    return ClientProgress(
        ClientTimeouts(head_s=30, body_s=60, unread_s=120), keep_alive_s=75, now_s=0
    )


def test_a_caller_that_reads_slowly_is_not_disconnected() -> None:
    caller = pace()
    assert not any(
        caller.is_stalled(at_s, 100_000 - at_s, is_full=True) for at_s in range(0, 10_000, 15)
    )
    now_s, left_bytes = 9990, 100_000 - 9990
    assert not caller.is_stalled(now_s + 120, left_bytes, is_full=True)
    assert caller.is_stalled(now_s + 121, left_bytes, is_full=True)


def test_a_few_unsent_bytes_are_no_stall() -> None:
    caller = pace()
    assert not any(caller.is_stalled(at_s, 10, is_full=False) for at_s in range(0, 900, 15))


def test_a_long_body_may_take_longer() -> None:
    caller = pace()
    caller.begin(100)
    assert not caller.body_is_late(160)
    assert caller.body_is_late(161)
    caller.body_bytes = 16 * 1024 * 100
    assert not caller.body_is_late(260)
    assert caller.body_is_late(261)


def test_the_check_interval_fits_the_shortest_limit() -> None:
    assert pace().check_each_s == 15
