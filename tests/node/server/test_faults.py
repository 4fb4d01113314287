"""Faults of the HTTP side, against a real server, since they are about connections."""

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from node.server.faults import MALFORMED_LINE, wrap
from node.settings import Settings

CHUNKS = [b"data: 1\n\n", b"data: 2\n\n", b"data: 3\n\n"]
WAIT_S = 30
TOKEN = {"authorization": "Bearer secret"}
pytestmark = pytest.mark.timeout(30)


class Streamer:
    """Reads the body, sends three chunks, and records whether a disconnect was reported."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.ended = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body, more = b"", True
        while more:
            message = await receive()
            more = message["type"] == "http.request" and message.get("more_body", False)
            body += message.get("body", b"")
        self.bodies.append(body)
        headers = [(b"content-type", b"text/event-stream"), (b"x-request-id", b"own-id")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            for chunk in CHUNKS:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self.ended.set()


@dataclass
class Rig:
    app: Streamer
    client: httpx.AsyncClient

    async def switch(self, **switches: Any) -> httpx.Response:
        return await self.client.put("/scripted", json=switches, headers=TOKEN)

    async def ask(self, **extra: Any) -> httpx.Response:
        return await self.client.post("/v1/chat/completions", content=b"{}", **extra)

    async def records(self) -> list[dict[str, Any]]:
        answer = await self.client.get("/scripted", headers=TOKEN)
        records: list[dict[str, Any]] = answer.json()["records"]
        return records


@asynccontextmanager
async def rig(folder: Path) -> AsyncIterator[Rig]:
    (folder / "token").write_text("secret\n")
    app = Streamer()
    config = uvicorn.Config(
        wrap(app, Settings(home=folder)), port=0, lifespan="off", log_level="critical"
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    async with asyncio.timeout(WAIT_S):
        while not server.started:
            await asyncio.sleep(0)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", timeout=WAIT_S, trust_env=False
        ) as client:
            yield Rig(app, client)
    finally:
        server.should_exit = True
        await asyncio.wait_for(serving, WAIT_S)
        logging.getLogger("uvicorn.error").setLevel(logging.NOTSET)


async def test_without_faults_an_answer_passes_and_is_recorded(tmp_path: Path) -> None:
    async with rig(tmp_path) as world:
        answer = await world.ask(headers={"x-request-id": "abc"})
        assert answer.content == b"".join(CHUNKS)
        assert world.app.bodies == [b"{}"]
        (record,) = await world.records()
    assert record["request_id"] == "abc"
    assert (record["method"], record["path"]) == ("POST", "/v1/chat/completions")
    assert (record["framing"], record["body_bytes"], record["status"]) == ("content-length", 2, 200)
    assert record["response_bytes"] == len(answer.content)
    assert record["response_sha256"] == hashlib.sha256(answer.content).hexdigest()
    assert record["client_left_monotonic_s"] is None
    assert ["x-request-id", "abc"] in record["headers"]


async def test_records_chunked_bodies_and_the_agents_own_id(tmp_path: Path) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b"1234"
        yield b"567"

    async with rig(tmp_path) as world:
        await world.client.post("/v1/completions", content=body())
        (record,) = await world.records()
        assert (record["framing"], record["body_bytes"]) == ("chunked", 7)
        assert record["request_id"] == "own-id"
        await world.client.delete("/scripted/records", headers=TOKEN)
        assert await world.records() == []


async def test_a_burst_of_failures_ends_in_recovery(tmp_path: Path) -> None:
    async with rig(tmp_path) as world:
        await world.switch(fail_status=503, retry_after_s=7, fail_times=2)
        answers = [await world.ask() for _ in range(3)]
        assert [answer.status_code for answer in answers] == [503, 503, 200]
        assert answers[0].headers["retry-after"] == "7"
        assert answers[0].json()["error"]["message"]
        await world.switch(fail_status=429)
        assert [(await world.ask()).status_code for _ in range(3)] == [429, 429, 429]


@pytest.mark.parametrize("count", [0, 2, 3])
async def test_drops_the_connection_after_so_many_chunks(tmp_path: Path, count: int) -> None:
    async with rig(tmp_path) as world:
        await world.switch(close_after_chunks=count)
        received = b""
        with pytest.raises(httpx.RemoteProtocolError):
            async with world.client.stream("POST", "/v1/chat/completions", content=b"{}") as answer:
                async for data in answer.aiter_bytes():
                    received += data
        assert received == b"".join(CHUNKS[:count])
        assert world.app.ended.is_set()
        (record,) = await world.records()
        assert record["client_left_monotonic_s"] is None


async def test_stalls_until_the_caller_leaves(tmp_path: Path) -> None:
    async with rig(tmp_path) as world:
        await world.switch(stall_after_chunks=1)
        async with world.client.stream("POST", "/v1/chat/completions", content=b"{}") as answer:
            assert await anext(answer.aiter_bytes()) == CHUNKS[0]
            assert not world.app.ended.is_set()
        await asyncio.wait_for(world.app.ended.wait(), WAIT_S)
        (record,) = await world.records()
        assert record["client_left_monotonic_s"] >= record["arrived_monotonic_s"]


async def test_sees_a_caller_leave_before_the_headers(tmp_path: Path) -> None:
    async with rig(tmp_path) as world:
        await world.switch(headers_delay_s=60)
        asking = asyncio.create_task(world.ask())
        async with asyncio.timeout(WAIT_S):
            while not await world.records():
                await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait({asking})
        await asyncio.wait_for(world.app.ended.wait(), WAIT_S)
        (record,) = await world.records()
        assert record["client_left_monotonic_s"] is not None


async def test_sends_one_malformed_line(tmp_path: Path) -> None:
    async with rig(tmp_path) as world:
        await world.switch(malformed_after_chunks=1)
        answer = await world.ask()
        assert answer.content == CHUNKS[0] + MALFORMED_LINE + CHUNKS[1] + CHUNKS[2]
        (record,) = await world.records()
        assert record["response_sha256"] == hashlib.sha256(answer.content).hexdigest()


async def test_the_control_wants_the_token_and_known_switches(tmp_path: Path) -> None:
    async with rig(tmp_path) as world:
        assert (await world.client.get("/scripted")).status_code == 401
        wrong = {"authorization": "Bearer wrong"}
        assert (await world.client.put("/scripted", headers=wrong)).status_code == 401
        engine_level = await world.switch(token_interval_s=1)
        assert engine_level.status_code == 400
        assert "script" in engine_level.json()["message"]
        assert (await world.switch(fail_status=200)).status_code == 400
        assert (await world.client.post("/scripted", headers=TOKEN)).status_code == 405
        shown = await world.switch(fail_status=500, fail_times=3)
        assert shown.json()["switches"]["fail_status"] == 500
        assert shown.json()["failures_left"] == 3
