"""An agent with hostile callers, or with many of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from node.protocol.headers import HEADER_PROTOCOL, HEADER_TICKET
from node.protocol.lifecycle import PATH_FILES
from node.protocol.messages import PROTOCOL_VERSION
from serving.http.callers import Limits
from serving.http.timeouts import ClientTimeouts
from tests.node.commands.test_serve import agent, client_of, lines_until_listening
from tests.node.model_folders import make_model
from tests.node.server.test_control_models import shared
from tests.node.serving import WAIT_S, RunningAgent, chat_body, closed, data_of, running

STREAMS = 300
COUNT = Limits().unknown_of_one_address + 100
FEW_FILES = ("sh", "-c", 'ulimit -Sn 256; exec "$@"', "sh")
NO_MORE_FILES = ("sh", "-c", 'ulimit -n 256; exec "$@"', "sh")


class Raw:
    """A raw connection to the agent."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def rest(self) -> bytes:
        async with asyncio.timeout(WAIT_S):
            return await self.reader.read()

    async def answer(self) -> tuple[int, bytes]:
        """Returns status and body of a response that ends the connection."""
        head, _, body = (await self.rest()).partition(b"\r\n\r\n")
        assert b"connection: close" in head
        return int(head.split()[1]), body


Connect = Callable[..., Awaitable[Raw]]


@pytest_asyncio.fixture
async def connect() -> AsyncIterator[Connect]:
    """Opens connections, which end with the test."""
    opened: list[Raw] = []

    async def open_one(port: int, sent: bytes = b"") -> Raw:
        raw = Raw(*await asyncio.open_connection("127.0.0.1", port))
        raw.writer.write(sent)
        opened.append(raw)
        return raw

    yield open_one
    for raw in opened:
        raw.writer.transport.abort()
        await closed(raw.writer)


async def test_more_than_a_thousand_half_open_heads_keep_nobody_waiting_and_are_closed(
    tmp_path: Path, connect: Connect
) -> None:
    async with running(tmp_path, timeouts=ClientTimeouts(head_s=1.0)) as agent:
        half = [await connect(agent.port, b"GET /health HTT") for _ in range(COUNT)]
        response = await agent.client.get("/health")
        assert response.status_code == 200
        ends = await asyncio.gather(*(each.rest() for each in half))
        cut_off, late = ends.count(b""), [end for end in ends if end]
        assert late and all(end.startswith(b"HTTP/1.1 408 ") for end in late)
        report = (await agent.client.get("/v1/node/status")).json()
        assert report["cut_off_connections"] == cut_off
        assert report["refused_connections"] == 0


async def test_a_body_that_does_not_go_on_is_ended_in_the_dialect_of_its_path(
    tmp_path: Path, connect: Connect
) -> None:
    async with running(tmp_path, timeouts=ClientTimeouts(body_s=0.1)) as agent:
        head = "POST /v1/messages HTTP/1.1\r\nhost: localhost\r\n"
        head += f"authorization: Bearer {agent.token}\r\ncontent-length: 100\r\n\r\n"
        caller = await connect(agent.port, head.encode() + b'{"model"')
        status, body = await caller.answer()
        assert status == 408
        assert json.loads(body)["error"]["type"] == "timeout_error"


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (b"GET /health HTTP/1.1\r\n\r\n", 400, "invalid_value"),
        (b"GET /health HTTP/1.1\r\nhost: localhost:80@evil.com\r\n\r\n", 400, "invalid_value"),
        (b"GET /health HTTP/1.1\r\nhost: a\r\nhost: localhost\r\n\r\n", 400, "invalid_value"),
        (b"CONNECT evil.com:443 HTTP/1.1\r\nhost: localhost\r\n\r\n", 501, "not_implemented"),
        (b"GET /health HTTP/1.1\r\nx: " + b"y" * 70_000, 431, "head_too_long"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, "http_version_not_supported"),
    ],
)
async def test_what_is_no_request_is_refused_before_anything_looks_at_it(
    tmp_path: Path, connect: Connect, sent: bytes, status: int, code: str
) -> None:
    async with running(tmp_path) as agent:
        answered, body = await (await connect(agent.port, sent)).answer()
    assert (answered, json.loads(body)["error"]["code"]) == (status, code)


async def ask_v1(agent: RunningAgent, client: httpx.AsyncClient) -> httpx.Response:
    return await client.get("/v1/models", headers=agent.headers)


async def ask_fleet(agent: RunningAgent, client: httpx.AsyncClient) -> httpx.Response:
    return await client.get("/fleet/status", headers=agent.headers)


async def ask_for_a_file(agent: RunningAgent, client: httpx.AsyncClient) -> httpx.Response:
    share = await shared(agent)
    wanted = {"model": "org/tiny", "path": "config.json"}
    return await client.get(PATH_FILES, params=wanted, headers={HEADER_TICKET: share.ticket})


@pytest.mark.parametrize("ask", [ask_v1, ask_fleet, ask_for_a_file])
async def test_an_authenticated_client_keeps_its_connection(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    connect: Connect,
    ask: Callable[[RunningAgent, httpx.AsyncClient], Awaitable[httpx.Response]],
) -> None:
    few = Limits(unknown_of_one_address=2)
    monkeypatch.setattr(Limits, "within", lambda *_: few)
    make_model(tmp_path / "models" / "org--tiny", b"weights")
    async with (
        running(tmp_path, engine="text", script=None) as agent,
        httpx.AsyncClient(base_url=agent.client.base_url, timeout=WAIT_S) as known,
    ):
        assert (await ask(agent, known)).status_code == 200
        silent = [await connect(agent.port, b"G") for _ in range(4)]
        assert await silent[1].rest() == b""
        (connection,) = known._transport._pool.connections  # type: ignore[attr-defined]
        assert (await ask(agent, known)).status_code == 200
        assert known._transport._pool.connections == [connection]  # type: ignore[attr-defined]


async def test_a_refused_key_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, connect: Connect
) -> None:
    few = Limits(unknown_of_one_address=1)
    monkeypatch.setattr(Limits, "within", lambda *_: few)
    refused = b"GET %b HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer wrong\r\n\r\n"
    async with running(tmp_path) as agent:
        for path in (b"/v1/models", b"/fleet/status"):
            caller = await connect(agent.port, refused % path)
            assert b" 401 " in await caller.reader.readuntil(b"\r\n")
            await connect(agent.port, b"G")
            assert await caller.rest()
        assert agent.app.callers.cut_off == 3


async def test_hundreds_of_streams_are_whole_where_the_shell_allows_256_files(
    tmp_path: Path, connect: Connect
) -> None:
    """Each stays open until the last one has begun to arrive."""
    with agent(tmp_path, before=FEW_FILES) as process:
        url = lines_until_listening(process)[-1].split()[-1]
        token = (tmp_path / "token").read_text().strip()
        body = json.dumps(chat_body(max_tokens=3, stream=True)).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
        head += f"authorization: Bearer {token}\r\ncontent-length: {len(body)}\r\n\r\n"
        port = int(url.rpartition(":")[2])
        streams = [await connect(port, head.encode()) for _ in range(STREAMS)]
        for stream in streams:
            stream.writer.write(body)
        ends = await asyncio.gather(*(stream.rest() for stream in streams))
        for end in ends:
            assert data_of(end.decode())[-1] == "[DONE]"
        with client_of(url, tmp_path) as client:
            report = client.get("/v1/node/status").json()
        assert report["refused_connections"] == 0


async def test_callers_beyond_the_files_that_the_system_allows_are_rejected_and_logged(
    tmp_path: Path, connect: Connect
) -> None:
    with agent(tmp_path, before=NO_MORE_FILES) as process:
        url = lines_until_listening(process)[-1].split()[-1]
        port = int(url.rpartition(":")[2])
        token = (tmp_path / "token").read_text().strip()
        head = f"GET /fleet/events HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n"
        head += f"{HEADER_PROTOCOL}: {PROTOCOL_VERSION}\r\n\r\n"
        connected = []
        for _ in range(192):
            connected.append(await connect(port, head.encode()))
            assert b" 200 " in await connected[-1].reader.readuntil(b"\r\n")
        status, body = await (await connect(port, head.encode())).answer()
        assert (status, json.loads(body)["error"]["code"]) == (503, "too_many_connections")
        for each in connected:
            each.writer.close()
        process.terminate()
        _, err = process.communicate(timeout=WAIT_S)
    assert "this process may have no more files" in err
