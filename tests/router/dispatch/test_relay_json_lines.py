"""Streams of JSON lines through the relay, on real sockets and scripted nodes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from node.protocol.messages import StatusEvent
from tests.router.conftest import (
    WAIT_S,
    AddNode,
    RawCaller,
    Request,
    RunningRouter,
    Script,
    StartNode,
    agent_id,
    alias,
    model_status,
    node_status,
)
from tests.router.dispatch.test_relay import drop

PATH = "/api/chat"
ASK = {"model": "m:latest", "messages": [{"role": "user", "content": "x"}]}
LINE = b'{"message":{"role":"assistant","content":"a"},"done":false}\n'
LAST = b'{"message":{"role":"assistant","content":""},"done":true}\n'


def sending(*pieces: bytes, dies: bool = False) -> Script:
    async def script(request: Request) -> None:
        await request.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\n"
            b"x-fleet-prompt-tokens: 9\r\nx-fleet-cached-tokens: 0\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        for piece in pieces:
            await request.chunk(piece)
        if dies:
            request.drop()
        else:
            await request.end_stream()

    return script


async def lines_of(caller: RawCaller) -> list[Any]:
    return [json.loads(line) for line in (await caller.body()).splitlines()]


async def test_a_stream_is_the_default_and_passes_line_by_line(
    router: RunningRouter, add_agent: AddNode
) -> None:
    node = await add_agent(router, "a", sending(LINE[:9], LINE[9:] + b" ", b" ", LAST))
    caller = await router.post(ASK, PATH)
    assert await caller.head() == 200
    assert caller.headers["content-type"] == "application/x-ndjson"
    assert caller.headers["x-fleet-node"] == "a" and caller.headers["x-fleet-model"] == "m"
    assert caller.headers["x-fleet-cached-tokens"] == "0/0"
    assert await caller.body() == LINE + b"  " + LAST
    (request,) = [each for each in node.requests if each.target == PATH]
    assert json.loads(request.body) == {**ASK, "model": "m"}
    assert request.header("x-fleet-requested-model") == "m:latest"


async def test_silence_is_filled_with_spaces_and_every_line_stays_json(
    impatient: RunningRouter, add_agent: AddNode
) -> None:
    go = asyncio.Event()

    async def script(request: Request) -> None:
        await go.wait()
        await sending(LINE, LAST)(request)

    await add_agent(impatient, "a", script)
    caller = await impatient.post(ASK, PATH)
    assert await caller.head() == 200
    assert caller.headers["content-type"] == "application/x-ndjson"
    assert [await caller.chunk() for _ in range(3)] == [b" "] * 3
    go.set()
    assert await lines_of(caller) == [json.loads(LINE), json.loads(LAST)]


async def test_a_node_that_dies_before_content_is_replaced_by_another(
    router: RunningRouter, add_agent: AddNode
) -> None:
    await add_agent(router, "a", sending(b" ", dies=True))
    await add_agent(router, "b", sending(LINE, LAST))
    for _ in range(2):
        caller = await router.post(ASK, PATH)
        assert await lines_of(caller) == [json.loads(LINE), json.loads(LAST)]


async def test_a_node_that_dies_within_a_line_ends_the_stream_with_an_error(
    router: RunningRouter, add_agent: AddNode
) -> None:
    await add_agent(router, "a", sending(LINE, LINE[:20], dies=True))
    first, error = await lines_of(await router.post(ASK, PATH))
    assert first == json.loads(LINE)
    assert "connection to the node a broke" in error["error"]


async def test_an_error_in_place_of_content_is_tried_elsewhere(
    router: RunningRouter, add_agent: AddNode
) -> None:
    died = b'{"error":"The engine died.","type":"server_error","code":"engine_died"}\n'
    await add_agent(router, "a", sending(died))
    await add_agent(router, "b", sending(LINE, LAST))
    for _ in range(2):
        assert (await lines_of(await router.post(ASK, PATH)))[-1]["done"] is True


@pytest.mark.parametrize("stream", [True, False])
async def test_a_failure_is_a_status_with_a_text(
    router: RunningRouter, add_agent: AddNode, stream: bool
) -> None:
    await add_agent(router, "a", drop)
    caller = await router.post({**ASK, "stream": stream}, PATH)
    error = json.loads(await caller.body())
    assert caller.status == 502 and isinstance(error["error"], str)
    assert caller.headers["x-request-id"].startswith(f"req_{agent_id('a')}-")


async def test_a_refusal_of_the_node_passes_as_it_is(
    router: RunningRouter, add_agent: AddNode
) -> None:
    async def script(request: Request) -> None:
        await request.answer(b'{"error":"No."}', "400 Bad Request")

    await add_agent(router, "a", script)
    caller = await router.post(ASK, PATH)
    assert json.loads(await caller.body()) == {"error": "No."}
    assert caller.status == 400


async def test_a_late_refusal_is_the_last_line(
    impatient: RunningRouter, add_agent: AddNode
) -> None:
    go = asyncio.Event()

    async def script(request: Request) -> None:
        await go.wait()
        await request.answer(b'{"error":"No.","type":"invalid_request_error"}', "400 Bad Request")

    await add_agent(impatient, "a", script)
    caller = await impatient.post(ASK, PATH)
    assert await caller.head() == 200
    go.set()
    assert await lines_of(caller) == [{"error": "No.", "type": "invalid_request_error"}]


@pytest.mark.parametrize("in_stream", [True, False])
async def test_a_prompt_that_is_too_long_goes_to_the_alias_s_next_model(
    router: RunningRouter, start_node: StartNode, in_stream: bool
) -> None:
    error = {"error": "No.", "type": "invalid_request_error", "code": "context_length_exceeded"}
    too_long = json.dumps(error, separators=(",", ":")).encode()

    async def script(request: Request) -> None:
        if json.loads(request.body)["model"] == "large":
            await sending(LINE, LAST)(request)
        elif in_stream:
            await sending(b" ", too_long + b"\n")(request)
        else:
            await request.answer(too_long, "400 Bad Request")

    models = (model_status("m"), model_status("large"))
    status = StatusEvent(node_status(*models, node_id=agent_id("a")))
    await router.add(await start_node(script, first_events=(status,)), "a", node_id=agent_id("a"))
    router.core.names.put(alias("best", "m", "large"))
    caller = await router.post({**ASK, "model": "best"}, PATH)
    assert await lines_of(caller) == [json.loads(LINE), json.loads(LAST)]


async def test_a_client_that_leaves_ends_its_request_on_the_node(
    router: RunningRouter, add_agent: AddNode
) -> None:
    gone = asyncio.Event()

    async def script(request: Request) -> None:
        await request.begin_stream()
        await request.chunk(LINE)
        await request.wait_gone()
        gone.set()

    await add_agent(router, "a", script)
    caller = await router.post(ASK, PATH)
    assert await caller.head() == 200 and await caller.chunk() == LINE
    caller.leave()
    await asyncio.wait_for(gone.wait(), WAIT_S)
