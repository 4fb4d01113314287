"""The client of one node against real sockets."""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections.abc import AsyncIterator
from functools import partial

import aiohappyeyeballs
import msgspec
import pytest
import pytest_asyncio

from node.protocol.ids import owner_mark
from node.protocol.lifecycle import ManifestFile, ModelPolicy, Policies, PullCommand, Share
from node.protocol.messages import (
    PROTOCOL_VERSION,
    Finished,
    StatusEvent,
    encode_event,
    encode_status,
)
from router.errors import (
    NodeRefused,
    NodeUnreachable,
    RouterError,
    WrongNodeProtocol,
    WrongNodeToken,
)
from router.states import KIND_OPENAI
from router.upstream import node_client
from router.upstream.credentials import NodeCredential
from router.upstream.node_client import NodeClient
from router.upstream.origins import Stamp
from serving.unreached import Cause, cause_of
from tests.router.conftest import (
    CHAT,
    WAIT_S,
    Request,
    Script,
    ScriptedNode,
    StartNode,
    lease,
    model_status,
    node_status,
    ticket,
)
from tests.router.records.test_ledger import FINISHED

STAMP = Stamp("router-1/key-1", "p" * 32)


def answers(body: bytes, status: str = "200 OK") -> Script:
    async def script(request: Request) -> None:
        await request.answer(body, status)

    return script


@pytest_asyncio.fixture
async def clients() -> AsyncIterator[list[NodeClient]]:
    made: list[NodeClient] = []
    yield made
    for client in made:
        await client.close()


def client_of(node: ScriptedNode, clients: list[NodeClient], token: str = "secret") -> NodeClient:
    client = NodeClient(node.url, NodeCredential(token))
    clients.append(client)
    return client


async def events_of(client: NodeClient) -> list[object]:
    return [event async for event in client.events("i0", 41)]


async def test_status_carries_token_and_protocol(
    start_node: StartNode, clients: list[NodeClient]
) -> None:
    node = await start_node(answers(encode_status(node_status())))
    assert await client_of(node, clients).status() == node_status()
    (request,) = node.requests
    assert (request.method, request.target) == ("GET", "/fleet/status")
    assert request.header("authorization") == "Bearer secret"
    assert request.header("x-fleet-protocol") == str(PROTOCOL_VERSION)


async def test_load_and_unload_name_the_model(
    start_node: StartNode, clients: list[NodeClient]
) -> None:
    node = await start_node(answers(b"{}"))
    client = client_of(node, clients)
    await client.load("m")
    await client.unload("m")
    await client.unload("m", generation=3, min_idle_s=60.0)
    assert [(r.method, r.target, r.body) for r in node.requests] == [
        ("POST", "/fleet/load", b'{"model":"m"}'),
        ("POST", "/fleet/unload", b'{"model":"m","generation":null,"min_idle_s":0.0}'),
        ("POST", "/fleet/unload", b'{"model":"m","generation":3,"min_idle_s":60.0}'),
    ]


async def test_what_comes_and_goes_is_ordered_in_the_words_of_the_protocol(
    start_node: StartNode, clients: list[NodeClient]
) -> None:
    node = await start_node(answers(encode_status(node_status()), "202 Accepted"))
    client = client_of(node, clients)
    await client.set_policies(Policies("r1", {"m": ModelPolicy(pinned=True)}))
    assert node.policies == [{"router_id": "r1", "models": {"m": {"pinned": True}}}]
    assert await client.pull(PullCommand("m", repo_id="org/m")) == node_status()
    await client.pull_cancel("m")
    await client.remove("m")
    assert [(r.method, r.target, r.body) for r in node.requests] == [
        ("POST", "/fleet/pull", b'{"model":"m","repo_id":"org/m"}'),
        ("POST", "/fleet/pull/cancel", b'{"model":"m"}'),
        ("POST", "/fleet/remove", b'{"model":"m"}'),
    ]


async def test_a_share_is_what_the_node_answers(
    start_node: StartNode, clients: list[NodeClient]
) -> None:
    share = Share("t1", 900.0, "hub:org/m@c", (ManifestFile("a/b.json", 2, "00"),))
    node = await start_node(answers(msgspec.json.encode(share)))
    assert await client_of(node, clients).share("m") == share
    other = await start_node(answers(b"{}"))
    with pytest.raises(NodeRefused, match="does not answer like a node agent"):
        await client_of(other, clients).share("m")


async def test_a_node_that_was_given_no_token_is_not_said_to_have_refused_one(
    start_node: StartNode, clients: list[NodeClient]
) -> None:
    client = client_of(await start_node(answers(b"", "401 Unauthorized")), clients, token="")
    with pytest.raises(WrongNodeToken, match="none was given: `router add-node … --token TOKEN`"):
        await client.status()


@pytest.mark.parametrize(
    ("status", "body", "error", "words"),
    [
        ("401 Unauthorized", b"", WrongNodeToken, "refused the token"),
        ("403 Forbidden", b"", WrongNodeToken, "refused the token"),
        ("426 Upgrade Required", b'{"message":"I speak 2."}', WrongNodeProtocol, "I speak 2."),
        ("426 Upgrade Required", b"", WrongNodeProtocol, "update mlx-fleet"),
        ("409 Conflict", b'{"message":"Too large."}', NodeRefused, "Too large."),
        ("404 Not Found", b"<html>", NodeRefused, "is it a node agent"),
        ("301 Moved", b"", NodeRefused, "answered 301"),
        ("200 OK", b"<html>", NodeRefused, "does not answer like a node agent"),
        ("200 OK", b'{"protocol":1}', NodeRefused, "does not answer like a node agent"),
    ],
)
async def test_each_refusal_has_its_error(
    start_node: StartNode,
    clients: list[NodeClient],
    status: str,
    body: bytes,
    error: type[RouterError],
    words: str,
) -> None:
    client = client_of(await start_node(answers(body, status)), clients)
    with pytest.raises(error, match=words):
        await client.status()


async def test_a_closed_port_cannot_be_reached(
    start_node: StartNode, clients: list[NodeClient]
) -> None:
    node = await start_node(answers(b""))
    await node.stop()
    client = client_of(node, clients)
    with pytest.raises(NodeUnreachable, match="nothing listens there; is it running"):
        await client.status()
    with pytest.raises(NodeUnreachable, match="cannot be reached"):
        await events_of(client)


async def test_on_a_mac_no_way_to_a_node_names_the_setting_of_the_local_network(
    clients: list[NodeClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_way(*_: object, **__: object) -> socket.socket:
        raise OSError(errno.EHOSTUNREACH, "Connect call failed ('192.168.1.7', 8801)")

    monkeypatch.setattr(node_client, "cause_of", partial(cause_of, platform="darwin"))
    monkeypatch.setattr(aiohappyeyeballs, "start_connection", no_way)
    client = NodeClient("http://192.168.1.7:8801", NodeCredential("token"))
    clients.append(client)
    with pytest.raises(NodeUnreachable, match="Privacy & Security > Local Network") as raised:
        await client.status()
    assert raised.value.cause is Cause.LOCAL_NETWORK
    assert raised.value.message.startswith("http://192.168.1.7:8801 cannot be reached: ")


async def test_a_node_that_never_answers_is_given_up(
    start_node: StartNode, clients: list[NodeClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(request: Request) -> None:
        await request.gone.wait()

    client = client_of(await start_node(nothing), clients)
    with pytest.raises(NodeUnreachable, match="does not answer in time"):
        await client._control("GET", "/fleet/status", timeout_s=0.05)


async def test_an_answer_that_is_not_http_is_unreachable(
    start_node: StartNode, clients: list[NodeClient]
) -> None:
    async def garbage(request: Request) -> None:
        await request.write(b"SSH-2.0-OpenSSH_9.9\r\n\r\n")

    with pytest.raises(NodeUnreachable):
        await client_of(await start_node(garbage), clients).status()


LISTS = [
    b'{"data":[{"id":"a","owned_by":"x"},{"id":"b"}]}',
    # Ollama
    b'{"object":"list","data":[{"id":"a","object":"model","created":1,"owned_by":"library"},'
    b'{"id":"b","object":"model","created":1,"owned_by":"library"}]}\n',
    # LM Studio
    b'{"data":[{"id":"a","object":"model","owned_by":"organization_owner"},{"id":"b",'
    b'"object":"model","owned_by":"organization_owner"}],"object":"list"}',
    # llama.cpp, which lists them in Ollama's words, too
    b'{"models":[{"name":"a","model":"a","size":"","capabilities":["completion"]}],'
    b'"object":"list","data":[{"id":"a","meta":{"n_ctx_train":8192}},{"id":"b","meta":null}]}',
    # what is no name
    b'{"data":[1,null,{},{"id":7},{"id":""},{"id":" a"},{"id":"x\\ny"},{"id":"a"},{"id":"a"},'
    b'{"id":"b","x":[[[]]]},["c"],{"id":"%b"}]}' % (b"l" * 257),
]


@pytest.mark.parametrize("body", LISTS)
async def test_a_foreign_server_lists_its_models(
    start_node: StartNode, clients: list[NodeClient], body: bytes
) -> None:
    node = await start_node(answers(body))
    assert await client_of(node, clients, token="").foreign_models() == ["a", "b"]
    assert node.requests[0].header("authorization") is None


@pytest.mark.parametrize("body", [b"[]", b'{"data":1}', b"{}", b"<html>", b"\xff"])
async def test_a_foreign_server_that_lists_none_is_refused(
    start_node: StartNode, clients: list[NodeClient], body: bytes
) -> None:
    client = client_of(await start_node(answers(body)), clients)
    with pytest.raises(NodeRefused, match="does not list models"):
        await client.foreign_models()


@pytest.mark.parametrize(
    "body",
    [
        b'{"data":[' + b"[]," * 1_390_000 + b"[]]}",
        b'{"data":[{"id":"a","of":[' + b"{}," * 1_390_000 + b"{}]}]}",
        b'{"data":[{%b"id":"a"}]}' % b"".join(b'"k%d":1,' % each for each in range(350_000)),
    ],
    ids=["entries", "values", "keys"],
)
async def test_a_list_of_too_many_values_is_refused_unread(
    start_node: StartNode, clients: list[NodeClient], body: bytes
) -> None:
    client = client_of(await start_node(answers(body)), clients)
    with pytest.raises(NodeRefused, match="more than 100,000 values"):
        await client.foreign_models()


@pytest.mark.parametrize(
    ("body", "names"),
    [
        (b'{"data":[' + b"[]," * 99_999 + b'{"id":"late"}]}', []),
        (b'{"data":[{"id":"a","of":[' + b"[[[[[{}]]]]]," * 99_000 + b"{}]}]}", ["a"]),
        (rb'{"data":[{"id":"%b"}]}' % (rb"\u00e9" * 690_000), []),
        (b'{"data":[' + b",".join(b'{"id":"%d"}' % each for each in range(9_000)) + b"]}", None),
    ],
    ids=["entries", "values", "name", "names"],
)
async def test_the_longest_list_that_is_read_holds_the_loop_for_a_moment(
    clients: list[NodeClient],
    monkeypatch: pytest.MonkeyPatch,
    body: bytes,
    names: list[str] | None,
) -> None:
    async def control(*_: object, **_kw: object) -> bytes:
        return body

    monkeypatch.setattr(NodeClient, "_control", control)
    client = NodeClient("http://n", NodeCredential(), KIND_OPENAI)
    clients.append(client)
    began_s = time.thread_time()
    listed = await client.foreign_models()
    # 10 to 20 ms; as Python objects, 4 MiB of empty lists take a third of a second.
    assert time.thread_time() - began_s < 0.1
    assert listed == ([str(each) for each in range(1_000)] if names is None else names)


async def test_a_foreign_server_may_have_no_model_yet(
    start_node: StartNode, clients: list[NodeClient]
) -> None:
    node = await start_node(answers(b'{"object":"list","data":null}'))
    assert await client_of(node, clients).foreign_models() == []


async def test_a_list_without_end_is_not_read_to_its_end(
    start_node: StartNode, clients: list[NodeClient]
) -> None:
    async def script(request: Request) -> None:
        await request.begin_stream()
        await request.chunk(b'{"data":[')
        while not request.gone.is_set():
            await request.chunk(b'{"id":"a"},' * 10_000)

    node = await start_node(script)
    with pytest.raises(NodeRefused, match="more than 4 MiB"):
        await client_of(node, clients).foreign_models()
    await node.requests[0].wait_gone()


async def test_a_list_that_does_not_come_is_given_up(
    start_node: StartNode, clients: list[NodeClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NodeClient._control, "__defaults__", (None, 0.05))

    async def script(request: Request) -> None:
        await request.begin_stream()
        await request.chunk(b'{"data":[')
        await request.gone.wait()

    node = await start_node(script)
    with pytest.raises(NodeUnreachable, match="in time"):
        await client_of(node, clients).foreign_models()
    await node.requests[0].wait_gone()


async def test_events_are_asked_for_from_the_last_one_seen(
    start_node: StartNode, clients: list[NodeClient]
) -> None:
    status = StatusEvent(node_status())
    node = await start_node(answers(b""), first_events=(status, FINISHED))
    stream = client_of(node, clients).events("i0", 41)
    seen = [await asyncio.wait_for(anext(stream), WAIT_S) for _ in range(2)]
    assert seen == [status, FINISHED]
    assert node.requests[0].target == "/fleet/events?instance=i0&after=41"
    await stream.aclose()


async def test_a_silent_event_stream_is_given_up(
    start_node: StartNode, clients: list[NodeClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_client, "HEARTBEAT_S", 0.02)
    node = await start_node(answers(b""), first_events=())
    with pytest.raises(NodeUnreachable, match="in time"):
        await events_of(client_of(node, clients))


class _Raw(ScriptedNode):
    """A node whose event stream is the script's."""

    async def _serve(self, request: Request) -> None:
        await self.script(request)


@pytest.mark.parametrize(
    "line", [b"<html>\n", b'{"type":"news"}\n', b"\xff\xfe\n", b"x" * (2 << 20) + b"\n"]
)
async def test_what_is_no_event_is_refused(line: bytes, clients: list[NodeClient]) -> None:
    node = _Raw(answers(line))
    await node.start()
    with pytest.raises(NodeRefused, match="not one"):
        await events_of(client_of(node, clients))
    await node.stop()


async def test_a_long_status_is_an_event(clients: list[NodeClient]) -> None:
    event = StatusEvent(node_status(*(model_status("m" * 250 + str(i)) for i in range(500))))
    node = _Raw(answers(encode_event(event) + b"\n"))
    await node.start()
    assert await events_of(client_of(node, clients)) == [event]
    await node.stop()


async def test_an_event_stream_that_breaks_is_unreachable(clients: list[NodeClient]) -> None:
    async def script(request: Request) -> None:
        await request.begin_stream()
        await request.chunk(encode_event(StatusEvent(node_status())) + b"\n")
        request.drop()

    node = _Raw(script)
    await node.start()
    seen: list[object] = []
    with pytest.raises(NodeUnreachable):
        async for event in client_of(node, clients).events("", 0):
            seen.append(event)
    assert len(seen) == 1 and not isinstance(seen[0], Finished)
    await node.stop()


async def test_an_inference_request_carries_the_router_s_headers_only(
    start_node: StartNode, clients: list[NodeClient]
) -> None:
    node = await start_node(answers(b"{}"))
    client = client_of(node, clients)
    asked = ticket("req-1", body=b'{"model":"m"}', requested_model="fast")
    response = await client.open(asked, lease(asked.request_id), STAMP)
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
    assert (request.header("x-fleet-origin"), request.header("x-fleet-proof")) == STAMP
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


async def test_a_foreign_server_is_not_told_whose_request_it_is(
    start_node: StartNode, clients: list[NodeClient]
) -> None:
    node = await start_node(answers(b"{}"))
    client = NodeClient(node.url, NodeCredential("secret"), "openai")
    clients.append(client)
    mark = owner_mark("key-1")
    asked = ticket(f"{mark}-0a1b2c3d-000001", requested_model="fast")
    await (await client.open(asked, lease(asked.request_id), STAMP)).read_all()
    (request,) = node.requests
    assert not [name for name, _ in request.headers if name.lower().startswith("x-fleet-")]
    told = str(request.headers)
    assert not [each for each in ("router-1", "key-1", mark) if each in told]
    assert request.header("x-request-id") == "0a1b2c3d-000001"


async def test_a_foreign_server_that_refuses_is_not_hinted_at_what_it_is(
    start_node: StartNode, clients: list[NodeClient]
) -> None:
    node = await start_node(answers(b"<html>", "404 Not Found"))
    client = NodeClient(node.url, NodeCredential(), "openai")
    clients.append(client)
    with pytest.raises(NodeRefused, match="OpenAI-compatible") as raised:
        await client.foreign_models()
    assert "--kind" not in raised.value.message
    await node.stop()
    with pytest.raises(NodeUnreachable) as gone:
        await client.foreign_models()
    assert "node-agent" not in gone.value.message


async def test_a_model_name_cannot_add_a_header(
    start_node: StartNode, clients: list[NodeClient]
) -> None:
    node = await start_node(answers(b"{}"))
    asked = ticket(requested_model="m\r\nx-evil: 1")
    await (await client_of(node, clients).open(asked, lease(), STAMP)).read_all()
    (request,) = node.requests
    assert request.header("x-evil") is None
    assert request.header("x-fleet-requested-model") == ""


async def test_a_redirect_is_not_followed(start_node: StartNode, clients: list[NodeClient]) -> None:
    async def script(request: Request) -> None:
        await request.answer(b"", "307 Temporary Redirect", location="http://127.0.0.1:1/steal")

    response = await client_of(await start_node(script), clients).open(ticket(), lease(), STAMP)
    assert response.status == 307
    assert await response.read_all() == b""


async def test_closing_a_client_that_was_never_used_is_nothing() -> None:
    async with NodeClient("http://127.0.0.1:1", NodeCredential()) as client:
        assert client.url


async def test_an_order_that_waits_while_all_is_renewed_fails_and_the_next_goes_through(
    start_node: StartNode, clients: list[NodeClient]
) -> None:
    asked = asyncio.Event()

    async def once_silent(request: Request) -> None:
        if request.target == "/fleet/load":
            asked.set()
            await request.gone.wait()
        else:
            await request.answer(encode_status(node_status()))

    node = await start_node(once_silent)
    client = client_of(node, clients)
    order = asyncio.create_task(client.load("m"))
    await asyncio.wait_for(asked.wait(), WAIT_S)
    await client.renew()
    with pytest.raises(NodeUnreachable):
        await asyncio.wait_for(order, WAIT_S)
    assert await client.status() == node_status()
