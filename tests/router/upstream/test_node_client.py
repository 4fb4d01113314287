"""Inference requests to one node over real sockets."""

from __future__ import annotations

import asyncio

import pytest

from node.protocol.ids import owner_mark
from node.protocol.messages import (
    encode_status,
)
from router.errors import (
    NodeUnreachable,
)
from router.upstream.credentials import NodeCredential
from router.upstream.node_client import NodeClient
from router.upstream.origins import RequestMarks
from tests.router.conftest import (
    CHAT,
    WAIT_S,
    Request,
    StartNode,
    lease,
    node_status,
    ticket,
)
from tests.router.upstream.conftest import answers, client_of

MARKS = RequestMarks("router-1/key-1", "p" * 32)


async def test_an_inference_request_carries_the_router_s_headers_only(
    start_node: StartNode, clients: list[NodeClient]
) -> None:
    node = await start_node(answers(b"{}"))
    client = client_of(node, clients)
    sent = ticket("req-1", body=b'{"model":"m"}', requested_model="fast")
    response = await client.open(sent, lease(sent.request_id), MARKS)
    assert await response.read_all() == b"{}"
    (request,) = node.requests
    assert (request.method, request.target, request.body) == ("POST", CHAT, b'{"model":"m"}')
    assert {name.lower() for name, _ in request.headers} == {
        "host",
        "accept-encoding",
        "authorization",
        "content-type",
        "content-length",
        "x-request-id",
        "x-fleet-origin",
        "x-fleet-proof",
        "x-fleet-requested-model",
    }
    assert request.header("x-request-id") == "req-1"
    assert (request.header("x-fleet-origin"), request.header("x-fleet-proof")) == MARKS
    assert request.header("x-fleet-requested-model") == "fast"
    assert request.header("accept-encoding") == "identity"
    assert request.header("content-length") == "13"


async def test_a_follow_up_carries_the_router_s_headers_only(
    start_node: StartNode, clients: list[NodeClient]
) -> None:
    node = await start_node(answers(b"{}", "404 Not Found"))
    client = client_of(node, clients)
    answer = await client.follow_up("DELETE", "/v1/responses/x?y=1", "router-1/key-1")
    assert (answer.status, answer.body) == (404, b"{}")
    assert answer.headers[b"content-type"] == b"application/json"
    (request,) = node.requests
    assert (request.method, request.target) == ("DELETE", "/v1/responses/x?y=1")
    assert dict(request.headers).keys() == {
        "host",
        "accept-encoding",
        "authorization",
        "content-type",
        "content-length",
        "x-fleet-origin",
    }
    assert request.header("content-length") == "0"
    assert request.header("x-fleet-origin") == "router-1/key-1"


async def test_a_foreign_server_does_not_learn_the_owner_of_a_request(
    start_node: StartNode, clients: list[NodeClient]
) -> None:
    node = await start_node(answers(b"{}"))
    client = NodeClient(node.url, NodeCredential("secret"), "openai")
    clients.append(client)
    mark = owner_mark("key-1")
    sent = ticket(f"{mark}-0a1b2c3d-000001", requested_model="fast")
    await (await client.open(sent, lease(sent.request_id), MARKS)).read_all()
    (request,) = node.requests
    assert not [name for name, _ in request.headers if name.lower().startswith("x-fleet-")]
    headers = str(request.headers)
    assert not [each for each in ("router-1", "key-1", mark) if each in headers]
    assert request.header("x-request-id") == "0a1b2c3d-000001"


async def test_a_model_name_cannot_add_a_header(
    start_node: StartNode, clients: list[NodeClient]
) -> None:
    node = await start_node(answers(b"{}"))
    sent = ticket(requested_model="m\r\nx-evil: 1")
    await (await client_of(node, clients).open(sent, lease(), MARKS)).read_all()
    (request,) = node.requests
    assert request.header("x-evil") is None
    assert request.header("x-fleet-requested-model") == ""


async def test_a_redirect_is_not_followed(start_node: StartNode, clients: list[NodeClient]) -> None:
    async def script(request: Request) -> None:
        await request.answer(b"", "307 Temporary Redirect", location="http://127.0.0.1:1/steal")

    response = await client_of(await start_node(script), clients).open(ticket(), lease(), MARKS)
    assert response.status == 307
    assert await response.read_all() == b""


async def test_closing_a_client_that_was_never_used_is_nothing() -> None:
    async with NodeClient("http://127.0.0.1:1", NodeCredential()) as client:
        assert client.url


async def test_an_order_that_waits_while_all_is_renewed_fails_and_the_next_goes_through(
    start_node: StartNode, clients: list[NodeClient]
) -> None:
    received = asyncio.Event()

    async def once_silent(request: Request) -> None:
        if request.target == "/fleet/load":
            received.set()
            await request.gone.wait()
        else:
            await request.answer(encode_status(node_status()))

    node = await start_node(once_silent)
    client = client_of(node, clients)
    order = asyncio.create_task(client.control.load("m"))
    await asyncio.wait_for(received.wait(), WAIT_S)
    await client.renew()
    with pytest.raises(NodeUnreachable):
        await asyncio.wait_for(order, WAIT_S)
    assert await client.control.status() == node_status()
