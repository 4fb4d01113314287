"""Requests of a web page, or of a stranger on the agent's own machine, are refused with the right
status, and do nothing."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from node.protocol.headers import HEADER_PROTOCOL
from node.protocol.messages import PATH_LOAD, PROTOCOL_VERSION, ModelState
from serving.http.timeouts import ClientTimeouts
from tests.fakes import processor_time
from tests.node.serving import WAIT_S, RunningAgent, chat_body, closed, running

ATTEMPTS = 10_000
CONNECTIONS = 4
MIB = 1024 * 1024
SITE = {"origin": "http://evil.example", "sec-fetch-site": "cross-site", "sec-fetch-mode": "cors"}
TRAVERSALS = ("../../etc/passwd", "/etc/passwd", "..\\..\\x", "%2e%2e%2fx", "a/../../b", ".", "..")


@pytest_asyncio.fixture
async def agent(tmp_path: Path) -> AsyncIterator[RunningAgent]:
    async with running(tmp_path, timeouts=ClientTimeouts(head_s=1.0, body_s=1.0)) as agent:
        yield agent


@pytest_asyncio.fixture
async def page(agent: RunningAgent) -> AsyncIterator[httpx.AsyncClient]:
    """A web page's requests, which have no token."""
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{agent.port}", headers=SITE, timeout=WAIT_S
    ) as client:
        yield client


async def exchanged(agent: RunningAgent, sent: bytes) -> bytes:
    """All that the agent sends for these bytes until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", agent.port)
    writer.write(sent)
    try:
        async with asyncio.timeout(WAIT_S):
            return await reader.read()
    finally:
        await closed(writer)


def shares_with_sites(response: httpx.Response) -> bool:
    return any(name.startswith("access-control-") for name in response.headers)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/metrics"),
        ("GET", "/v1/models"),
        ("POST", "/v1/chat/completions"),
        ("GET", "/api/tags"),
        ("GET", "/fleet/status"),
        ("POST", PATH_LOAD),
    ],
)
async def test_a_name_that_has_been_rebound_to_loopback_is_refused(
    agent: RunningAgent, page: httpx.AsyncClient, method: str, path: str
) -> None:
    for host in (f"evil.example:{agent.port}", "evil.example", "localhost.evil.example"):
        response = await page.request(method, path, headers={**agent.headers, "host": host})
        assert response.status_code == 421
        assert not shares_with_sites(response)
    assert (await agent.status()).models[0].state is ModelState.ON_DISK


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", chat_body()),
        ("/v1/messages", chat_body(max_tokens=5)),
        ("/api/generate", {"model": "scripted", "prompt": "hi"}),
        (PATH_LOAD, {"model": "scripted"}),
        ("/fleet/pairings/code", {}),
    ],
)
async def test_a_cross_site_post_has_no_token_and_does_nothing(
    agent: RunningAgent, page: httpx.AsyncClient, path: str, body: object, kind: str
) -> None:
    headers = {"content-type": kind, HEADER_PROTOCOL: str(PROTOCOL_VERSION)}
    response = await page.post(path, content=json.dumps(body), headers=headers)
    assert response.status_code in (401, 404)
    assert not shares_with_sites(response)
    assert (await agent.status()).models[0].state is ModelState.ON_DISK


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/api/chat", "/fleet/load", "/metrics"])
async def test_no_preflight_allows_a_site_anything(page: httpx.AsyncClient, path: str) -> None:
    asked = {"access-control-request-method": "POST"}
    asked["access-control-request-headers"] = "authorization, content-type"
    response = await page.options(path, headers=asked)
    assert response.status_code in (401, 405)
    assert not shares_with_sites(response)


@pytest.mark.parametrize("name", TRAVERSALS)
async def test_a_path_for_a_model_s_name_is_no_model(agent: RunningAgent, name: str) -> None:
    refused = [
        await agent.chat(model=name),
        await agent.client.post("/api/show", json={"model": name}),
        await agent.client.post(PATH_LOAD, json={"model": name}),
    ]
    assert [each.status_code for each in refused] == [404] * 3
    assert "root:" not in "".join(each.text for each in refused)


@pytest.mark.parametrize("path", ["..%2f..%2fetc%2fpasswd", "%2e%2e/%2e%2e/etc/passwd"])
async def test_a_path_in_an_address_is_no_model(agent: RunningAgent, path: str) -> None:
    for place in ("/v1/models/", "/v1/responses/"):
        head = f"GET {place}{path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
        head += f"authorization: Bearer {agent.token}\r\n\r\n"
        answer = await exchanged(agent, head.encode())
        assert answer.startswith(b"HTTP/1.1 404 ")
        assert b"root:" not in answer


@pytest.mark.parametrize("end", ["\r\n", "\n", "\r", "\r\n\r\n"])
async def test_a_line_end_in_a_name_begins_no_header(agent: RunningAgent, end: str) -> None:
    name = f"scripted{end}set-cookie: stolen=1"
    responses = [
        await agent.chat(model=name),
        await agent.client.post("/api/chat", json={"model": name, "messages": []}),
        await agent.client.post(PATH_LOAD, json={"model": name}),
    ]
    for response in responses:
        assert response.status_code in (400, 404)
        assert "set-cookie" not in response.headers


async def test_a_header_of_a_megabyte_is_refused(agent: RunningAgent) -> None:
    head = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * MIB + b"\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", agent.port)
    writer.write(head)
    async with asyncio.timeout(WAIT_S):
        assert (await reader.readline()).startswith(b"HTTP/1.1 431 ")
    await closed(writer)
    assert (await agent.client.get("/health")).status_code == 200


@pytest.mark.parametrize("scheme", ["authorization: Bearer ", "x-api-key: "])
async def test_a_body_that_trickles_is_ended(agent: RunningAgent, scheme: str) -> None:
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n{scheme}{agent.token}\r\n"
    answer = await exchanged(agent, f"{head}content-length: 1000\r\n\r\n{{".encode())
    assert answer.startswith(b"HTTP/1.1 408 ")


async def refused_on_one(agent: RunningAgent, begin: int, number: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", agent.port)
    try:
        for attempt in range(begin, begin + number):
            head = "GET /v1/models HTTP/1.1\r\nhost: localhost\r\n"
            writer.write(f"{head}authorization: Bearer {attempt:032x}\r\n\r\n".encode())
            raw = (await reader.readuntil(b"\r\n\r\n")).lower()
            assert raw.startswith(b"http/1.1 401 "), raw
            size = int(raw.partition(b"content-length: ")[2].partition(b"\r\n")[0])
            assert b"invalid_api_key" in await reader.readexactly(size)
    finally:
        await closed(writer)


async def refused_many(agent: RunningAgent, number: int) -> None:
    share = number // CONNECTIONS
    await asyncio.gather(*(refused_on_one(agent, at * share, share) for at in range(CONNECTIONS)))


async def test_ten_thousand_wrong_tokens_cost_little_and_leave_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    # The scripted engine would keep each request for tests.
    async with running(tmp_path, engine="text", script=None) as agent:
        await refused_many(agent, 100)
        gc.collect()
        before = sys.getallocatedblocks()
        with processor_time(30.0):
            await refused_many(agent, ATTEMPTS)
        gc.collect()
        assert len(caplog.records) < 10, caplog.records[-3:]
        assert sys.getallocatedblocks() - before < 3000
        assert (await agent.client.get("/v1/models")).status_code == 200


@pytest.mark.parametrize(
    "token",
    ["ключ".encode(), "clé".encode("latin-1"), b"\xff\xfe", "💥".encode() * 1000, b"a \xa0"],
    ids=["utf-8", "latin-1", "no text", "long", "space"],
)
@pytest.mark.parametrize("path", ["/v1/models", "/api/tags", "/fleet/status", "/metrics"])
async def test_a_token_with_any_bytes_is_wrong(
    agent: RunningAgent, token: bytes, path: str
) -> None:
    head = f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n".encode()
    answer = await exchanged(agent, head + b"authorization: Bearer " + token + b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 401 ")
