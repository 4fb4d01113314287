"""`/v1/requests` of a running agent: lists open requests, and cancels them."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from node.engine.scripted.script import Script
from node.protocol.ids import client_id
from node.protocol.messages import Finished, FinishReason
from tests.node.serving import WAIT_S, RunningAgent, chat_body, closed, data_of, running

SLOW = Script(tokens=1000, stall_after_tokens=2)
MESSAGE = {"model": "scripted", "max_tokens": 100, "messages": [{"role": "user", "content": "x"}]}


async def begun(agent: RunningAgent, path: str, body: dict[str, Any], head: str = "") -> Any:
    """Opens a stream and waits for its head and first bytes."""
    data = json.dumps({**body, "stream": True}).encode()
    lines = f"content-length: {len(data)}" + (f"\r\n{head}" if head else "")
    reader, writer = await agent.send_raw(data, path=path, head=lines)
    await reader.readuntil(b"data: ")
    return reader, writer


async def open_requests(agent: RunningAgent, **headers: str) -> list[dict[str, Any]]:
    response = await agent.client.get("/v1/requests", headers=headers)
    assert response.status_code == 200
    assert response.json()["object"] == "list"
    found: list[dict[str, Any]] = response.json()["data"]
    return found


async def test_open_requests_are_listed_with_what_is_known_of_them(tmp_path: Path) -> None:
    async with running(tmp_path, SLOW) as agent, asyncio.timeout(WAIT_S):
        assert await open_requests(agent) == []
        _, writer = await begun(agent, "/v1/messages", MESSAGE, "x-request-id: mine")
        (shown,) = await open_requests(agent)
        assert shown["id"] == client_id("req_", agent.app.agent.identity.node_id, "mine")
        assert (shown["model"], shown["path"]) == ("scripted", "/v1/messages")
        assert (shown["state"], shown["stream"]) == ("generating", True)
        assert shown["prompt_tokens"] > 0
        assert shown["completion_tokens"] > 0
        await closed(writer)


async def test_requests_of_another_origin_are_neither_shown_nor_ended(tmp_path: Path) -> None:
    async with running(tmp_path, SLOW) as agent, asyncio.timeout(WAIT_S):
        mine = {"x-fleet-origin": "router/mine"}
        _, writer = await begun(
            agent, "/v1/chat/completions", chat_body(), "x-fleet-origin: router/mine"
        )
        (shown,) = await open_requests(agent, **mine)
        assert await open_requests(agent, **{"x-fleet-origin": "router/other"}) == []
        path = f"/v1/requests/{shown['id']}"
        other = await agent.client.delete(path, headers={"x-fleet-origin": "router/other"})
        assert other.status_code == 404
        assert other.json()["error"]["code"] == "request_not_found"
        assert (await agent.client.delete(path, headers=mine)).json() == {
            "id": shown["id"],
            "object": "request",
            "cancelled": True,
        }
        await closed(writer)


@pytest.mark.parametrize(
    ("path", "body", "error"),
    [
        ("/v1/chat/completions", chat_body(), b'"code":"request_cancelled"'),
        ("/v1/messages", MESSAGE, b"event: error\ndata: "),
        ("/v1/responses", {"model": "scripted", "input": "x"}, b'"status":"cancelled"'),
    ],
)
async def test_a_cancelled_stream_ends_with_one_event_of_its_dialect(
    tmp_path: Path, path: str, body: dict[str, Any], error: bytes
) -> None:
    async with running(tmp_path, SLOW) as agent, agent.events() as events:
        reader, writer = await begun(agent, path, body)
        (shown,) = await open_requests(agent)
        assert (await agent.client.delete(f"/v1/requests/{shown['id']}")).status_code == 200
        async with asyncio.timeout(WAIT_S):
            rest = await reader.readuntil(b"0\r\n\r\n")
        finished = await events.next(Finished)
        assert error in rest
        assert b"[DONE]" not in rest
        assert finished.reason is FinishReason.CANCELLED
        assert await open_requests(agent) == []
        await closed(writer)


async def test_a_cancelled_answer_that_is_not_streamed_is_an_error_not_to_be_retried(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, SLOW) as agent, asyncio.timeout(WAIT_S):
        waiting = asyncio.create_task(agent.chat())
        await agent.until_active()
        (shown,) = await open_requests(agent)
        await agent.client.delete(f"/v1/requests/{shown['id']}")
        response = await waiting
    assert response.status_code == 409
    assert response.headers["x-should-retry"] == "false"
    assert response.json()["error"]["code"] == "request_cancelled"


async def test_a_request_that_waits_for_its_engine_can_be_cancelled(tmp_path: Path) -> None:
    async with running(tmp_path, Script(load_delay_s=60)) as agent, asyncio.timeout(WAIT_S):
        waiting = asyncio.create_task(agent.chat())
        shown: list[dict[str, Any]] = []
        while not shown:
            shown = await open_requests(agent)
        assert shown[0]["state"] == "waiting"
        await agent.client.delete(f"/v1/requests/{shown[0]['id']}")
        assert (await waiting).status_code == 409


@pytest.mark.parametrize("shown", ["nothing", "req_0123456789abcdef-nothing", "..%2f..%2fhealth"])
async def test_an_unknown_request_is_404(tmp_path: Path, shown: str) -> None:
    async with running(tmp_path) as agent:
        response = await agent.client.delete(f"/v1/requests/{shown}")
    assert response.status_code == 404


async def test_a_cancelled_response_reports_its_status_and_is_stored(tmp_path: Path) -> None:
    async with running(tmp_path, SLOW) as agent, asyncio.timeout(WAIT_S):
        reader, writer = await begun(agent, "/v1/responses", {"model": "scripted", "input": "x"})
        (shown,) = await open_requests(agent)
        path = "/v1/responses/" + shown["id"].replace("req_", "resp_")
        assert (await agent.client.get(path)).json()["status"] == "in_progress"
        assert (await agent.client.post(path + "/cancel")).json()["status"] == "cancelled"
        rest = await reader.readuntil(b"0\r\n\r\n")
        last = data_of(rest.decode(errors="replace"))[-1]
        assert last["response"]["status"] == "cancelled"
        assert (await agent.client.get(path)).json()["status"] == "cancelled"
        await closed(writer)


async def test_anthropics_clients_find_the_id_under_their_own_name(tmp_path: Path) -> None:
    async with running(tmp_path) as agent:
        response = await agent.client.post("/v1/messages", json={**MESSAGE, "max_tokens": 1})
        refused = await agent.client.post("/v1/messages", json={"model": "scripted"})
    assert response.headers["request-id"] == response.headers["x-request-id"]
    assert response.json()["id"] == response.headers["request-id"].replace("req_", "msg_")
    assert refused.status_code == 400
    assert refused.json()["type"] == "error"
    assert refused.json()["error"]["type"] == "invalid_request_error"
