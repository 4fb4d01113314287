"""Control calls to one node, and its event stream, over real sockets."""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from functools import partial

import aiohappyeyeballs
import msgspec
import pytest

from node.protocol.lifecycle import ManifestFile, ModelPolicy, Policies, PullCommand, Share
from node.protocol.messages import (
    PROTOCOL_VERSION,
    Finished,
    StatusEvent,
    encode_event,
    encode_status,
)
from node.protocol.versions import Change, Versions
from router.errors import (
    NodeOutdated,
    NodeRefused,
    NodeUnreachable,
    RouterError,
    WrongNodeProtocol,
    WrongNodeToken,
)
from router.states import KIND_OPENAI
from router.upstream import control_channel, control_client
from router.upstream.control_channel import ControlChannel
from router.upstream.credentials import NodeCredential
from router.upstream.node_client import NodeClient
from serving.unreached import Cause, cause_of
from tests.router.conftest import (
    FINISHED,
    WAIT_S,
    Request,
    StartNode,
    model_status,
    node_status,
)
from tests.router.upstream.conftest import RawNode, answers, client_of


async def events_of(client: NodeClient) -> list[object]:
    return [event async for event in client.control.events("i0", 41)]


async def test_status_carries_token_and_protocol(
    start_node: StartNode, clients: list[NodeClient]
) -> None:
    node = await start_node(answers(encode_status(node_status())))
    assert await client_of(node, clients).control.status() == node_status()
    (request,) = node.requests
    assert (request.method, request.target) == ("GET", "/fleet/status")
    assert request.header("authorization") == "Bearer secret"
    assert request.header("x-fleet-protocol") == str(PROTOCOL_VERSION)


async def test_load_and_unload_name_the_model(
    start_node: StartNode, clients: list[NodeClient]
) -> None:
    node = await start_node(answers(b"{}"))
    client = client_of(node, clients)
    await client.control.load("m")
    await client.control.unload("m")
    await client.control.unload("m", generation=3, min_idle_s=60.0)
    assert [(r.method, r.target, r.body) for r in node.requests] == [
        ("POST", "/fleet/load", b'{"model":"m"}'),
        ("POST", "/fleet/unload", b'{"model":"m","generation":null,"min_idle_s":0.0}'),
        ("POST", "/fleet/unload", b'{"model":"m","generation":3,"min_idle_s":60.0}'),
    ]


async def test_policies_pulls_and_removals_are_sent_in_the_messages_of_the_protocol(
    start_node: StartNode, clients: list[NodeClient]
) -> None:
    node = await start_node(answers(encode_status(node_status()), "202 Accepted"))
    client = client_of(node, clients)
    await client.control.set_policies(Policies("r1", {"m": ModelPolicy(pinned=True)}))
    assert node.policies == [{"router_id": "r1", "models": {"m": {"pinned": True}}}]
    assert await client.control.pull(PullCommand("m", repo_id="org/m")) == node_status()
    await client.control.pull_cancel("m")
    await client.control.remove("m")
    assert [(r.method, r.target, r.body) for r in node.requests] == [
        ("POST", "/fleet/pull", b'{"model":"m","repo_id":"org/m"}'),
        ("POST", "/fleet/pull/cancel", b'{"model":"m"}'),
        ("POST", "/fleet/remove", b'{"model":"m"}'),
    ]


async def test_a_share_is_what_the_node_answers(
    start_node: StartNode, clients: list[NodeClient]
) -> None:
    share = Share("t1", "hub:org/m@c", (ManifestFile("a/b.json", 2, "00"),))
    node = await start_node(answers(msgspec.json.encode(share)))
    assert await client_of(node, clients).control.share("m") == share
    other = await start_node(answers(b"{}"))
    with pytest.raises(NodeRefused, match="does not respond like a node agent"):
        await client_of(other, clients).control.share("m")


async def test_a_node_that_was_given_no_token_is_not_reported_to_have_refused_one(
    start_node: StartNode, clients: list[NodeClient]
) -> None:
    client = client_of(await start_node(answers(b"", "401 Unauthorized")), clients, token="")
    with pytest.raises(WrongNodeToken, match="none was given: `router add-node … --token TOKEN`"):
        await client.control.status()


@pytest.mark.parametrize(
    ("status", "body", "error", "words"),
    [
        ("401 Unauthorized", b"", WrongNodeToken, "refused the token"),
        ("403 Forbidden", b"", WrongNodeToken, "refused the token"),
        ("426 Upgrade Required", b'{"message":"I speak 2."}', WrongNodeProtocol, "I speak 2."),
        ("426 Upgrade Required", b"", WrongNodeProtocol, "update mlx-fleet"),
        ("409 Conflict", b'{"message":"Too large."}', NodeRefused, "Too large."),
        ("404 Not Found", b"<html>", NodeRefused, "is it a node agent"),
        (
            "404 Not Found",
            b'{"message":"There is nothing at /fleet/status.","code":"not_found"}',
            NodeOutdated,
            "does not have /fleet/status: it runs an older mlx-fleet.*router upgrade-plan",
        ),
        ("301 Moved", b"", NodeRefused, "responded with status 301"),
        ("200 OK", b"<html>", NodeRefused, "does not respond like a node agent"),
        ("200 OK", b'{"protocol":1}', NodeRefused, "does not respond like a node agent"),
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
        await client.control.status()


async def test_a_request_is_repeated_once_in_the_version_that_the_agent_names(
    start_node: StartNode, clients: list[NodeClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    same = Change(lambda _name, fields: fields, lambda _name, fields: fields)
    monkeypatch.setattr(control_channel, "SPOKEN", Versions(8, 6, {8: same, 7: same}))
    named = "7"

    async def script(request: Request) -> None:
        if request.header("x-fleet-protocol") == "7":
            return await request.answer(encode_status(node_status(protocol=7)))
        await request.answer(b"{}", "426 Upgrade Required", **{"x_fleet_protocol": named})

    node = await start_node(script)
    client = client_of(node, clients)
    assert [(await client.control.status()).protocol for _ in range(2)] == [7, 7]
    await client.control.load("m")
    versions = [request.header("x-fleet-protocol") for request in node.requests]
    assert versions == ["8", "7", "7", "7"]
    named = "6"
    later = client_of(node, clients)
    for _ in range(2):
        with pytest.raises(WrongNodeProtocol):
            await later.control.status()
    assert [each.header("x-fleet-protocol") for each in node.requests[4:]] == ["8", "6", "6"]


async def test_each_event_stream_begins_in_the_newest_version(
    clients: list[NodeClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    same = Change(lambda _name, fields: fields, lambda _name, fields: fields)
    monkeypatch.setattr(control_channel, "SPOKEN", Versions(7, 6, {7: same}))
    newest = "6"

    async def script(request: Request) -> None:
        if request.header("x-fleet-protocol") == newest:
            return await request.answer(encode_event(FINISHED) + b"\n")
        await request.answer(b"{}", "426 Upgrade Required", **{"x_fleet_protocol": newest})

    node = RawNode(script)
    await node.start()
    client = client_of(node, clients)
    assert await events_of(client) == [FINISHED]
    newest = "7"
    assert await events_of(client) == [FINISHED]
    assert [each.header("x-fleet-protocol") for each in node.requests] == ["7", "6", "7"]
    await node.stop()


async def test_a_closed_port_cannot_be_reached(
    start_node: StartNode, clients: list[NodeClient]
) -> None:
    node = await start_node(answers(b""))
    await node.stop()
    client = client_of(node, clients)
    with pytest.raises(NodeUnreachable, match="nothing listens there; is it running"):
        await client.control.status()
    with pytest.raises(NodeUnreachable, match="cannot be reached"):
        await events_of(client)


async def test_on_a_mac_no_way_to_a_node_names_the_setting_of_the_local_network(
    clients: list[NodeClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_way(*_: object, **__: object) -> socket.socket:
        raise OSError(errno.EHOSTUNREACH, "Connect call failed ('192.168.1.7', 8801)")

    monkeypatch.setattr(control_channel, "cause_of", partial(cause_of, platform="darwin"))
    monkeypatch.setattr(aiohappyeyeballs, "start_connection", no_way)
    client = NodeClient("http://192.168.1.7:8801", NodeCredential("token"))
    clients.append(client)
    with pytest.raises(NodeUnreachable, match="Privacy & Security > Local Network") as raised:
        await client.control.status()
    assert raised.value.cause is Cause.LOCAL_NETWORK
    assert raised.value.message.startswith("http://192.168.1.7:8801 cannot be reached: ")


async def test_a_call_to_a_node_that_never_responds_times_out(
    start_node: StartNode, clients: list[NodeClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(request: Request) -> None:
        await request.gone.wait()

    client = client_of(await start_node(nothing), clients)
    with pytest.raises(NodeUnreachable, match="does not respond in time"):
        await client.control._channel.control("GET", "/fleet/status", timeout_s=0.05)


async def test_an_answer_that_is_not_http_is_unreachable(
    start_node: StartNode, clients: list[NodeClient]
) -> None:
    async def garbage(request: Request) -> None:
        await request.write(b"SSH-2.0-OpenSSH_9.9\r\n\r\n")

    with pytest.raises(NodeUnreachable):
        await client_of(await start_node(garbage), clients).control.status()


LISTS = [
    b'{"data":[{"id":"a","owned_by":"x"},{"id":"b"}]}',
    # Ollama
    b'{"object":"list","data":[{"id":"a","object":"model","created":1,"owned_by":"library"},'
    b'{"id":"b","object":"model","created":1,"owned_by":"library"}]}\n',
    # LM Studio
    b'{"data":[{"id":"a","object":"model","owned_by":"organization_owner"},{"id":"b",'
    b'"object":"model","owned_by":"organization_owner"}],"object":"list"}',
    # llama.cpp, which lists them in Ollama's format, too
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
    assert await client_of(node, clients, token="").control.foreign_models() == ["a", "b"]
    assert node.requests[0].header("authorization") is None


@pytest.mark.parametrize("body", [b"[]", b'{"data":1}', b"{}", b"<html>", b"\xff"])
async def test_a_foreign_server_that_lists_none_is_refused(
    start_node: StartNode, clients: list[NodeClient], body: bytes
) -> None:
    client = client_of(await start_node(answers(body)), clients)
    with pytest.raises(NodeRefused, match="does not list models"):
        await client.control.foreign_models()


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
        await client.control.foreign_models()


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
async def test_the_longest_list_that_is_read_blocks_the_loop_for_a_moment(
    clients: list[NodeClient],
    monkeypatch: pytest.MonkeyPatch,
    body: bytes,
    names: list[str] | None,
) -> None:
    async def control(*_: object, **_kw: object) -> bytes:
        return body

    monkeypatch.setattr(ControlChannel, "control", control)
    client = NodeClient("http://n", NodeCredential(), KIND_OPENAI)
    clients.append(client)
    began_s = time.thread_time()
    listed = await client.control.foreign_models()
    # 10 to 20 ms; as Python objects, 4 MiB of empty lists take a third of a second.
    assert time.thread_time() - began_s < 0.1
    assert listed == ([str(each) for each in range(1_000)] if names is None else names)


async def test_a_foreign_server_may_have_no_model_yet(
    start_node: StartNode, clients: list[NodeClient]
) -> None:
    node = await start_node(answers(b'{"object":"list","data":null}'))
    assert await client_of(node, clients).control.foreign_models() == []


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
        await client_of(node, clients).control.foreign_models()
    await node.requests[0].wait_gone()


async def test_a_list_that_does_not_arrive_times_out(
    start_node: StartNode, clients: list[NodeClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ControlChannel.control, "__defaults__", (None, 0.05))

    async def script(request: Request) -> None:
        await request.begin_stream()
        await request.chunk(b'{"data":[')
        await request.gone.wait()

    node = await start_node(script)
    client = client_of(node, clients)
    async with asyncio.timeout(WAIT_S):
        while not node.requests:  # on a busy machine the time may be up before the request is sent
            with pytest.raises(NodeUnreachable, match="in time"):
                await client.control.foreign_models()
    await node.requests[0].wait_gone()


async def test_events_are_requested_from_the_last_one_seen(
    start_node: StartNode, clients: list[NodeClient]
) -> None:
    status = StatusEvent(node_status())
    node = await start_node(answers(b""), first_events=(status, FINISHED))
    stream = client_of(node, clients).control.events("i0", 41)
    seen = [await asyncio.wait_for(anext(stream), WAIT_S) for _ in range(2)]
    assert seen == [status, FINISHED]
    assert node.requests[0].target == "/fleet/events?instance=i0&after=41"
    await stream.aclose()


async def test_a_silent_event_stream_times_out(
    start_node: StartNode, clients: list[NodeClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_client, "HEARTBEAT_S", 0.02)
    node = await start_node(answers(b""), first_events=())
    with pytest.raises(NodeUnreachable, match="in time"):
        await events_of(client_of(node, clients))


@pytest.mark.parametrize(
    "line", [b"<html>\n", b'{"no":"type"}\n', b"\xff\xfe\n", b"x" * (2 << 20) + b"\n"]
)
async def test_what_is_no_event_is_refused(line: bytes, clients: list[NodeClient]) -> None:
    node = RawNode(answers(line))
    await node.start()
    with pytest.raises(NodeRefused, match="not one"):
        await events_of(client_of(node, clients))
    await node.stop()


async def test_a_long_status_is_an_event(clients: list[NodeClient]) -> None:
    event = StatusEvent(node_status(*(model_status("m" * 250 + str(i)) for i in range(500))))
    node = RawNode(answers(encode_event(event) + b"\n"))
    await node.start()
    assert await events_of(client_of(node, clients)) == [event]
    await node.stop()


async def test_an_event_stream_that_breaks_is_unreachable(clients: list[NodeClient]) -> None:
    async def script(request: Request) -> None:
        await request.begin_stream()
        await request.chunk(encode_event(StatusEvent(node_status())) + b"\n")
        request.drop()

    node = RawNode(script)
    await node.start()
    seen: list[object] = []
    with pytest.raises(NodeUnreachable):
        async for event in client_of(node, clients).control.events("", 0):
            seen.append(event)
    assert len(seen) == 1 and not isinstance(seen[0], Finished)
    await node.stop()


async def test_a_foreign_server_that_refuses_is_not_hinted_at_what_it_is(
    start_node: StartNode, clients: list[NodeClient]
) -> None:
    node = await start_node(answers(b"<html>", "404 Not Found"))
    client = NodeClient(node.url, NodeCredential(), "openai")
    clients.append(client)
    with pytest.raises(NodeRefused, match="OpenAI-compatible") as raised:
        await client.control.foreign_models()
    assert "--kind" not in raised.value.message
    await node.stop()
    with pytest.raises(NodeUnreachable) as gone:
        await client.control.foreign_models()
    assert "node-agent" not in gone.value.message
