"""Requests of a web page, or of a stranger in the network, are refused with the right status, and
do nothing. Wrong keys are in `test_wrong_keys.py`, swapped certificates in
`tests/router/upstream/test_pairing.py`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from serving.http.timeouts import ClientTimeouts
from tests.router.api.admin.test_aliases import call
from tests.router.api.test_v1 import a_node
from tests.router.conftest import (
    CHAT,
    WAIT_S,
    RunningRouter,
    StartNode,
    running_router,
)

MIB = 1024 * 1024
SITE = {"origin": "http://evil.example", "sec_fetch_site": "cross-site", "sec_fetch_mode": "cors"}
OPEN = ("/", "/health", "/ready")
"""Addresses that respond without a key; they show nothing of the fleet but its number of nodes."""
TRAVERSALS = ("../../etc/passwd", "/etc/passwd", "..\\..\\x", "%2e%2e%2fx", "a/../../b", ".", "..")


def shares_with_sites(headers: dict[str, str]) -> bool:
    return any(name.startswith("access-control-") for name in headers)


async def exchanged(router: RunningRouter, sent: bytes) -> bytes:
    """All that the router sends for these bytes until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
    writer.write(sent)
    try:
        return await asyncio.wait_for(reader.read(), WAIT_S)
    finally:
        writer.close()


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8800", "localhost.evil.example"])
async def test_a_name_that_has_been_rebound_to_loopback_gets_nothing(
    router: RunningRouter, host: str
) -> None:
    for path in ("/v1/models", "/v1/requests", "/api/tags", "/api/ps", "/metrics", "/admin/nodes"):
        caller = await router.send("GET", path, b"", host=host, **SITE)
        assert await caller.head() == 401, path
        assert not shares_with_sites(caller.headers)
    for path in OPEN:
        caller = await router.send("GET", path, b"", host=host, **SITE)
        assert await caller.head() in (200, 503)
        assert not shares_with_sites(caller.headers)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"model": "m", "messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/messages", {"model": "m", "max_tokens": 1, "messages": []}),
        ("/api/generate", {"model": "m", "prompt": "hi"}),
        ("/admin/keys", {"name": "mallory", "scopes": ["admin"]}),
        ("/admin/nodes", {"url": "http://evil.example", "name": "x"}),
        ("/admin/reload", {}),
    ],
)
async def test_a_cross_site_post_has_no_key_and_does_nothing(
    router: RunningRouter, start_node: StartNode, path: str, body: object, kind: str
) -> None:
    node = await a_node(router, start_node)
    data = json.dumps(body).encode()
    length = str(len(data))
    caller = await router.send("POST", path, data, content_type=kind, content_length=length, **SITE)
    assert await caller.head() == 401
    assert not shares_with_sites(caller.headers)
    assert [each.target for each in node.requests if each.method == "POST"] == []
    assert {row["name"] for row in (await call(router, "GET", "/keys"))[1]} == {"first", "admin"}
    assert len((await call(router, "GET", "/nodes"))[1]) == 1


@pytest.mark.parametrize("path", [CHAT, "/api/chat", "/admin/keys", "/metrics"])
async def test_no_preflight_allows_a_site_anything(router: RunningRouter, path: str) -> None:
    asked = {"access_control_request_method": "POST"}
    asked["access_control_request_headers"] = "authorization, content-type"
    caller = await router.send("OPTIONS", path, b"", **SITE, **asked)
    assert await caller.head() in (401, 405)
    assert not shares_with_sites(caller.headers)


@pytest.mark.parametrize("name", TRAVERSALS)
async def test_a_path_for_a_model_s_name_is_no_model(
    router: RunningRouter, start_node: StartNode, name: str
) -> None:
    node = await a_node(router, start_node)
    for path in (CHAT, "/api/show", "/v1/messages"):
        body = {"model": name, "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]}
        caller = await router.post(body, path)
        assert await caller.head() == 404, path
        assert b"root:" not in await caller.body()
    status, _ = await call(router, "POST", "/models/load", {"model": name})
    assert status in (400, 404)
    assert [each.target for each in node.requests if each.method == "POST"] == []


@pytest.mark.parametrize("path", ["..%2f..%2fetc%2fpasswd", "%2e%2e/%2e%2e/etc/passwd"])
async def test_a_path_in_an_address_is_no_model(
    router: RunningRouter, start_node: StartNode, path: str
) -> None:
    node = await a_node(router, start_node)
    for place in ("/v1/models/", "/v1/responses/"):
        caller = await router.send("GET", place + path, authorization=f"Bearer {router.key}")
        assert await caller.head() == 404
        assert b"root:" not in await caller.body()
    assert [each.target for each in node.requests if "passwd" in each.target] == []


@pytest.mark.parametrize("end", ["\r\n", "\n", "\r", "\r\n\r\n"])
async def test_a_line_end_in_a_name_begins_no_header(
    router: RunningRouter, start_node: StartNode, end: str
) -> None:
    """Neither towards the client nor towards a node."""
    node = await a_node(router, start_node)
    name = f"m{end}set-cookie: stolen=1"
    for path in (CHAT, "/api/chat", "/v1/messages"):
        body = {"model": name, "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]}
        caller = await router.post(body, path)
        assert await caller.head() in (400, 404)
        assert "set-cookie" not in caller.headers
    body = {"targets": [{"model": name}], "force": True}
    assert (await call(router, "PUT", "/aliases/steered", body))[0] == 400
    assert [each.target for each in node.requests if each.method == "POST"] == []


async def test_a_header_of_a_megabyte_is_refused(router: RunningRouter) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
    writer.write(b"GET /v1/models HTTP/1.1\r\nhost: router\r\nx: " + b"y" * MIB + b"\r\n\r\n")
    line = await asyncio.wait_for(reader.readline(), WAIT_S)
    writer.close()
    assert line.startswith(b"HTTP/1.1 431 ")
    assert await (await router.send("GET", "/health")).head() == 200


@pytest.mark.parametrize("key", ["the first one", "none"])
async def test_a_body_that_trickles_is_ended(tmp_path: Path, key: str) -> None:
    async with running_router(tmp_path, ClientTimeouts(head_s=1.0, body_s=1.0)) as router:
        head = f"POST {CHAT} HTTP/1.1\r\nhost: router\r\ncontent-length: 1000\r\n"
        if key != "none":
            head += f"authorization: Bearer {router.key}\r\n"
        answer = await exchanged(router, f"{head}\r\n{{".encode())
    # Without a key no body is waited for.
    assert answer.startswith(b"HTTP/1.1 401 " if key == "none" else b"HTTP/1.1 408 ")


async def test_a_head_that_trickles_is_ended(tmp_path: Path) -> None:
    async with running_router(tmp_path, ClientTimeouts(head_s=1.0, body_s=1.0)) as router:
        answer = await exchanged(router, b"POST /v1/messages HTTP/1.1\r\nhost: rou")
    assert answer.startswith(b"HTTP/1.1 408 ")
