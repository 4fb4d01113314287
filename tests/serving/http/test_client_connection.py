"""The server's side of HTTP/1.1, by bytes on a real socket."""

from __future__ import annotations

import asyncio

import pytest

from serving.http.exchange import EXTENSION, PAUSE_BYTES, Exchange, Message, Receive, Send
from tests.serving.http.connections import GET, WAIT_S, App, echo, serving

pytestmark = pytest.mark.usefixtures("over")


async def in_pieces(scope: Message, receive: Receive, send: Send) -> None:
    exchange: Exchange = scope["extensions"][EXTENSION]
    exchange.begin(200, ())
    exchange.write(b"one")
    exchange.write(b"")
    exchange.end(b"two")


async def test_requests_on_one_connection_are_answered_in_turn() -> None:
    async with serving(echo) as server:
        caller = await server.call()
        for number in range(3):
            body = b"body %d" % number
            caller.send(
                b"POST /a%%20b?c=d HTTP/1.1\r\nhost: here\r\ncontent-length: %d\r\n\r\n%b"
                % (len(body), body)
            )
            answer = await caller.until(body)
            assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
            assert answer.endswith(b"/a b?c=d " + body)
        assert len(server.state.connections) == 1
        assert server.state.total_requests == 3


async def test_a_body_in_chunks_and_in_many_reads_arrives_whole() -> None:
    body = bytes(range(256)) * 4096
    assert len(body) > PAUSE_BYTES
    async with serving(echo) as server:
        caller = await server.call()
        caller.send(b"POST / HTTP/1.1\r\nhost: here\r\ntransfer-encoding: chunked\r\n\r\n")
        for at in range(0, len(body), 100_000):
            piece = body[at : at + 100_000]
            caller.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        caller.send(b"0\r\n\r\n")
        assert await caller.until(body)


async def test_an_answer_without_a_length_is_sent_in_chunks() -> None:
    async with serving(in_pieces) as server:
        caller = await server.call()
        for _ in range(2):
            caller.send(GET)
            head, _, body = (await caller.until(b"0\r\n\r\n")).partition(b"\r\n\r\n")
            assert b"transfer-encoding: chunked" in head
            assert body == b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"


async def test_an_old_client_gets_such_an_answer_until_the_connection_ends() -> None:
    async with serving(in_pieces) as server:
        caller = await server.call()
        caller.send(b"GET / HTTP/1.0\r\n\r\n")
        head, _, body = (await caller.rest()).partition(b"\r\n\r\n")
        assert b"connection: close" in head
        assert b"chunked" not in head
        assert body == b"onetwo"


@pytest.mark.parametrize("app", [echo, in_pieces])
async def test_head_asks_for_no_body(app: App) -> None:
    async with serving(app) as server:
        caller = await server.call()
        caller.send(b"HEAD / HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n")
        answer = await caller.rest()
        assert answer.endswith(b"\r\n\r\n")
        assert answer.count(b"\r\n\r\n") == 1


async def test_a_connection_that_asks_for_close_is_closed() -> None:
    async with serving(echo) as server:
        caller = await server.call()
        caller.send(b"GET / HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n")
        assert b"connection: close\r\n" in await caller.rest()


async def test_a_client_that_waits_for_continue_is_sent_it() -> None:
    async with serving(echo) as server:
        caller = await server.call()
        caller.send(
            b"POST / HTTP/1.1\r\nhost: here\r\nexpect: 100-continue\r\ncontent-length: 4\r\n\r\n"
        )
        assert await caller.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        caller.send(b"body")
        assert (await caller.until(b"body")).startswith(b"HTTP/1.1 200 OK")


async def test_a_request_before_the_answer_to_another_gets_none() -> None:
    async with serving(echo) as server:
        caller = await server.call()
        caller.send(GET + GET)
        answer = await caller.rest()
        assert answer.count(b"HTTP/1.1 200 OK") == 1
        assert b"connection: close" in answer


async def test_an_upgrade_request_is_ignored() -> None:
    async with serving(echo) as server:
        caller = await server.call()
        caller.send(b"GET /y HTTP/1.1\r\nhost: here\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n")
        assert (await caller.rest()).endswith(b"/y? ")


async def test_a_caller_that_goes_is_reported_at_once() -> None:
    began, gone = asyncio.Event(), asyncio.Event()

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        exchange: Exchange = scope["extensions"][EXTENSION]
        exchange.on_disconnect = gone.set
        await receive()
        began.set()
        assert (await receive())["type"] == "http.disconnect"
        exchange.begin(200, ())
        exchange.end(b"to nobody")

    async with serving(app) as server, asyncio.timeout(WAIT_S):
        caller = await server.call()
        caller.send(GET)
        await began.wait()
        caller.writer.close()
        await gone.wait()
        await asyncio.wait(server.state.tasks)


async def test_a_caller_that_does_not_read_makes_the_app_wait() -> None:
    waits = asyncio.Event()
    piece = b"x" * 65_536

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        exchange: Exchange = scope["extensions"][EXTENSION]
        exchange.begin(200, [(b"content-length", b"%d" % (400 * len(piece)))])
        for number in range(400):
            if exchange.paused:
                waits.set()
            await exchange.drain()
            exchange.write(piece) if number < 399 else exchange.end(piece)

    async with serving(app) as server, asyncio.timeout(WAIT_S):
        caller = await server.call()
        caller.send(GET)
        await waits.wait()
        await caller.until(b"\r\n\r\n")
        assert await caller.reader.readexactly(400 * len(piece)) == 400 * piece


async def test_a_connection_without_requests_is_closed_after_a_while() -> None:
    async with serving(echo, keep_alive_s=0.5) as server:
        silent, used = await server.call(), await server.call()
        used.send(GET)
        await used.until(b"/x? ")
        assert await silent.rest() == await used.rest() == b""


async def test_a_long_answer_is_no_idleness() -> None:
    release = asyncio.Event()

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        await release.wait()
        await echo(scope, receive, send)

    async with serving(app, keep_alive_s=0.3) as server:
        caller = await server.call()
        caller.send(GET)
        await asyncio.sleep(0.6)  # what is to be seen is that nothing happens
        release.set()
        assert (await caller.until(b"/x? ")).startswith(b"HTTP/1.1 200 OK")


async def test_a_server_that_ends_closes_idle_connections_and_lets_answers_end() -> None:
    release = asyncio.Event()

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        await release.wait()
        await echo(scope, receive, send)

    async with serving(app) as server, asyncio.timeout(WAIT_S):
        idle, busy = await server.call(), await server.call()
        busy.send(GET)
        while not server.state.tasks or len(server.state.connections) < 2:
            await asyncio.sleep(0)
        for connection in list(server.state.connections):
            connection.shutdown()
        assert await idle.rest() == b""
        release.set()
        assert (await busy.rest()).endswith(b"/x? ")


@pytest.mark.parametrize("begun", [False, True])
async def test_an_app_that_fails_never_ends_its_answer_well(
    begun: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def app(scope: Message, receive: Receive, send: Send) -> None:
        if begun:
            await send({"type": "http.response.start", "status": 200})
            await send({"type": "http.response.body", "body": b"half", "more_body": True})
        raise ValueError("a fault")

    async with serving(app) as server:
        caller = await server.call()
        caller.send(b"GET /x%0aWARNING HTTP/1.1\r\nhost: here\r\n\r\n")
        answer = await caller.rest()
        expected = b"HTTP/1.1 200 OK" if begun else b"HTTP/1.1 500 Internal Server Error"
        assert answer.startswith(expected)
        assert not answer.endswith(b"0\r\n\r\n")
    assert "a fault" in caplog.text
    assert r"The response to '/x\nWARNING' failed." in caplog.text


CHUNKED = b"POST /x HTTP/1.1\r\nhost: here\r\ntransfer-encoding: chunked\r\n\r\n"


async def test_what_follows_a_body_is_no_header() -> None:
    names: list[bytes] = []

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        names.extend(name for name, _ in scope["headers"])
        await echo(scope, receive, send)

    async with serving(app) as server:
        caller = await server.call()
        caller.send(CHUNKED + b"1\r\na\r\n0\r\nauthorization: Bearer other\r\n\r\n")
        assert b" a" in await caller.until(b"/x? a")
        assert names == [b"host", b"transfer-encoding"]


async def test_an_answer_before_the_body_that_a_caller_holds_back_ends_the_connection() -> None:
    async def refuse(_scope: Message, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 401, "headers": []})
        await send({"type": "http.response.body", "body": b"no"})

    async with serving(refuse) as server:
        caller = await server.call()
        caller.send(
            b"POST /x HTTP/1.1\r\nhost: here\r\nexpect: 100-continue\r\ncontent-length: 9\r\n\r\n"
        )
        assert b"connection: close" in await caller.rest()


async def test_an_old_client_is_not_sent_continue() -> None:
    async with serving(echo) as server:
        caller = await server.call()
        caller.send(b"POST /x HTTP/1.0\r\nexpect: 100-continue\r\ncontent-length: 1\r\n\r\na")
        assert b"100 Continue" not in await caller.rest()
