"""Tests the responses of the router itself, in the caller's dialect, on real sockets."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from router.api.v1 import RELAYED_PATHS
from tests.router.conftest import (
    CHAT,
    AddNode,
    RawCaller,
    Request,
    RunningRouter,
    Script,
    agent_id,
    silent,
)
from tests.router.dispatch.test_relay import STREAM, WHOLE, drop

MESSAGES = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
RESPONSES = "/v1/responses"
PING = b'event: ping\ndata: {"type": "ping"}\n\n'
COMMENT = b": keep-alive\n\n"
PINGS = {CHAT: COMMENT, RESPONSES: COMMENT, MESSAGES: PING}
CONTENT_EVENTS = {
    CHAT: b'data: {"choices":[]}\n\n',
    RESPONSES: b'event: response.created\ndata: {"type":"x","sequence_number":0}\n\n',
    MESSAGES: b'event: message_start\ndata: {"type":"message_start"}\n\n',
}
NODE_ERRORS = {
    CHAT: b'{"error":{"message":"Full.","type":"server_error","param":null,"code":"full"}}',
    RESPONSES: b'{"error":{"message":"Full.","type":"server_error","param":null,"code":"full"}}',
    MESSAGES: b'{"type":"error","error":{"type":"api_error","message":"Full."},"request_id":"r"}',
}
NODE_EVENTS = {
    CHAT: b"data: " + NODE_ERRORS[CHAT] + b"\n\n",
    RESPONSES: b'event: error\ndata: {"type":"error","code":"full","message":"Full.",'
    b'"param":null,"sequence_number":0}\n\n',
    MESSAGES: b"event: error\ndata: " + NODE_ERRORS[MESSAGES] + b"\n\n",
}
STREAMED = sorted(PINGS)


def inner(body: dict[str, Any], path: str, *, in_band: bool = False) -> dict[str, Any]:
    """The error itself, out of an envelope that is checked to be the path's."""
    assert body.pop("request_id", "x"), "an empty id is left out"
    if path.startswith(MESSAGES):
        assert set(body) == {"type", "error"} and body["type"] == "error"
        assert set(body["error"]) == {"type", "message"}
        return dict(body["error"])
    if in_band and path == RESPONSES:
        within = body.pop("error")
        assert set(body) == {"type", "code", "message", "param", "sequence_number"}
        assert body["type"] == "error"
        # Where Codex reads it.
        assert {**body, **within, "type": "error"} == body
        assert within["type"].endswith("_error")
        return body
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    return dict(body["error"])


async def error_of(caller: RawCaller, path: str) -> dict[str, Any]:
    """The error of an answer that is one."""
    answer = json.loads(await caller.body())
    assert caller.headers["content-type"] == "application/json"
    return inner(answer, path)


async def in_band_error_of(caller: RawCaller, path: str) -> dict[str, Any]:
    """The one event that is left of a stream, but for pings: its error."""
    rest = (await caller.body()).replace(PINGS[path], b"")
    name, found, data = rest.partition(b"data: ")
    assert found and name == (b"" if path == CHAT else b"event: error\n")
    assert data.endswith(b"}\n\n") and data.count(b"\n") == 2
    return inner(json.loads(data), path, in_band=True)


# --- instead of an answer ---


@pytest.mark.parametrize("path", [*sorted(RELAYED_PATHS), "/v1/messages/nothing"])
async def test_a_missing_key_is_reported_in_the_caller_s_dialect(
    router: RunningRouter, path: str
) -> None:
    caller = await router.send("POST", path, content_length="0")
    error = await error_of(caller, path)
    assert caller.headers["x-should-retry"] == "false"
    assert (caller.status, error["type"]) == (401, "authentication_error")


@pytest.mark.parametrize("path", sorted(RELAYED_PATHS))
async def test_a_missing_scope_is_reported_in_the_caller_s_dialect(
    router: RunningRouter, path: str
) -> None:
    caller = await router.send("POST", path, x_api_key=router.new_key("x"), content_length="0")
    error = await error_of(caller, path)
    assert (caller.status, error["type"]) == (403, "permission_error")
    assert caller.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("path", sorted(RELAYED_PATHS))
@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        (b"{", 400, "invalid_request_error"),
        (b'{"model":"x"}', 404, "not_found_error"),
        (b'{"model":"m"}', 503, "overloaded_error"),
    ],
)
async def test_a_refused_request_gets_its_error_in_the_caller_s_dialect(
    router: RunningRouter, add_agent: AddNode, path: str, body: bytes, status: int, kind: str
) -> None:
    await add_agent(router, "a", silent)
    router.core.fleet.lost(agent_id("a"), "It sleeps.")
    caller = await router.post(body, path)
    error = await error_of(caller, path)
    assert caller.status == status
    assert caller.headers.get("x-should-retry") == ("false" if status < 500 else None)
    if path.startswith(MESSAGES):
        assert error["type"] == kind


@pytest.mark.parametrize(("method", "path"), [("GET", MESSAGES), ("POST", MESSAGES + "/nothing")])
async def test_anthropic_s_clients_get_errors_for_wrong_paths_and_methods(
    router: RunningRouter, method: str, path: str
) -> None:
    caller = await router.send(method, path, x_api_key=router.key, content_length="0")
    await error_of(caller, path)
    assert caller.status == (405 if method == "GET" else 404)
    assert caller.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
async def test_an_envelope_names_the_request(
    router: RunningRouter, add_agent: AddNode, path: str
) -> None:
    await add_agent(router, "a", drop)
    caller = await router.post(WHOLE, path)
    answer = json.loads(await caller.body())
    assert caller.status == 502
    assert answer["error"]["type"] == ("api_error" if path == MESSAGES else "server_error")
    assert answer["request_id"] == caller.headers["x-request-id"]
    assert answer["request_id"].startswith(f"req_{agent_id('a')}-{router.caller().owner}-")


# --- silence ---


def answering(go: asyncio.Event, late: Script) -> Script:
    async def script(request: Request) -> None:
        await go.wait()
        await late(request)

    return script


def sending(*pieces: bytes) -> Script:
    async def script(request: Request) -> None:
        await request.begin_stream()
        for piece in pieces:
            await request.chunk(piece)
        await request.end_stream()

    return script


def refusing(body: bytes) -> Script:
    async def script(request: Request) -> None:
        await request.answer(body, "503 Away")

    return script


@pytest.mark.parametrize("path", STREAMED)
async def test_silence_is_filled_in_the_caller_s_dialect(
    impatient: RunningRouter, add_agent: AddNode, path: str
) -> None:
    go = asyncio.Event()
    await add_agent(impatient, "a", answering(go, sending(CONTENT_EVENTS[path])))
    caller = await impatient.post(STREAM, path)
    assert await caller.head() == 200
    assert caller.headers["x-request-id"].startswith(impatient.caller().owner)
    assert [await caller.chunk() for _ in range(3)] == [PINGS[path]] * 3
    go.set()
    rest = (await caller.body()).replace(PINGS[path], b"")
    assert rest == b": fleet node=a model=m\n\n" + CONTENT_EVENTS[path]


@pytest.mark.parametrize("path", STREAMED)
@pytest.mark.parametrize("how", ["refused", "not understood", "dropped", "in its stream"])
async def test_a_late_failure_is_one_event_of_the_caller_s_dialect(
    impatient: RunningRouter, add_agent: AddNode, path: str, how: str
) -> None:
    go = asyncio.Event()
    late = {
        "refused": refusing(NODE_ERRORS[path]),
        "not understood": refusing(b"<html>"),
        "dropped": drop,
        "in its stream": sending(NODE_EVENTS[path]),
    }[how]
    await add_agent(impatient, "a", answering(go, late))
    caller = await impatient.post(STREAM, path)
    assert await caller.head() == 200
    assert await caller.chunk() == PINGS[path]
    go.set()
    error = await in_band_error_of(caller, path)
    own = how in ("refused", "in its stream")
    assert (error["message"] == "Full.") == own
    if path != MESSAGES:
        assert error["code"] == ("full" if own else "node_failed")


# --- failures of a stream ---


@pytest.mark.parametrize("path", STREAMED)
async def test_a_stream_that_breaks_ends_in_one_event_of_the_caller_s_dialect(
    router: RunningRouter, add_agent: AddNode, path: str
) -> None:
    async def script(request: Request) -> None:
        await request.begin_stream()
        await request.chunk(CONTENT_EVENTS[path] + b"event: half")
        request.drop()

    await add_agent(router, "a", script)
    caller = await router.post(STREAM, path)
    assert await caller.head() == 200
    assert await caller.chunk() == CONTENT_EVENTS[path]
    error = await in_band_error_of(caller, path)
    assert "connection to the node a broke" in error["message"]
    if path == RESPONSES:
        assert error["sequence_number"] == 1


@pytest.mark.parametrize("path", STREAMED)
async def test_an_error_before_content_is_retried_in_every_dialect(
    router: RunningRouter, add_agent: AddNode, path: str
) -> None:
    await add_agent(router, "a", sending(PINGS[path], NODE_EVENTS[path]))
    await add_agent(router, "b", sending(CONTENT_EVENTS[path]))
    caller = await router.post(STREAM, path)
    body = await caller.body()
    assert body.endswith(CONTENT_EVENTS[path])
    assert b"Full." not in body


@pytest.mark.parametrize("path", STREAMED)
async def test_an_error_as_the_only_event_is_a_status_in_the_caller_s_dialect(
    router: RunningRouter, add_agent: AddNode, path: str
) -> None:
    await add_agent(router, "a", sending(NODE_EVENTS[path]))
    caller = await router.post(STREAM, path)
    error = await error_of(caller, path)
    assert (caller.status, error["message"]) == (502, "Full.")


async def test_a_caller_s_own_mistake_within_a_message_stream_is_not_retried(
    router: RunningRouter, add_agent: AddNode
) -> None:
    event = NODE_EVENTS[MESSAGES].replace(b"api_error", b"invalid_request_error")
    nodes = [await add_agent(router, name, sending(PING, event)) for name in "ab"]
    caller = await router.post(STREAM, MESSAGES)
    assert await caller.body() == PING + event
    assert sum(each.target == MESSAGES for node in nodes for each in node.requests) == 1


# --- counting tokens ---


async def test_a_count_of_tokens_is_a_request_without_accounts(
    router: RunningRouter, add_agent: AddNode
) -> None:
    async def script(request: Request) -> None:
        await request.answer(b'{"input_tokens":7}')

    node = await add_agent(router, "a", script)
    caller = await router.post(WHOLE, COUNT + "?beta=true")
    assert await caller.body() == b'{"input_tokens":7}'
    assert [each.target for each in node.requests if each.target.startswith("/v1/")] == [COUNT]
    await router.idle()
    router.core.ledger.close_all()
    assert router.core.ledger.waiting_rows == 0
    assert router.core.dispatcher.traffic.in_flight(agent_id("a")) == 0
