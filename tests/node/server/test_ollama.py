"""`/api/*` of an agent, as bytes; the SDK's view of it is in `tests/clients`."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from node.engine.scripted.script import Script
from node.protocol.headers import HEADER_ORIGIN, HEADER_REQUESTED_MODEL
from tests.node.serving import RunningAgent, closed, running

ASK: dict[str, Any] = {"model": "scripted", "messages": [{"role": "user", "content": "hello"}]}


async def post(
    agent: RunningAgent, path: str, body: dict[str, Any], **headers: str
) -> httpx.Response:
    return await agent.client.post(path, json=body, headers=headers)


async def state(agent: RunningAgent) -> str:
    (model,) = (await agent.status()).models
    return model.state.value


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
async def test_a_keep_alive_of_zero_unloads_the_model_after_the_response(
    tmp_path: Path, path: str
) -> None:
    async with running(tmp_path) as agent:
        body = {**ASK, "prompt": "hello", "keep_alive": 0}
        answer = await post(agent, path, body)
        assert json.loads(answer.text.splitlines()[-1])["done_reason"] == "stop"
        async with asyncio.timeout(30):
            while await state(agent) != "on_disk":
                pass


async def test_behind_a_router_a_keep_alive_has_no_effect(tmp_path: Path) -> None:
    async with running(tmp_path) as agent:
        before = (await agent.status()).models[0].keep_alive_s
        for keep_alive in (0, 7, "-1"):
            body = {**ASK, "keep_alive": keep_alive}
            answer = await post(agent, "/api/chat", body, **{HEADER_ORIGIN: "r.k"})
            assert answer.status_code == 200
        (model,) = (await agent.status()).models
        assert (model.state.value, model.keep_alive_s) == ("ready", before)
        await post(agent, "/api/chat", {**ASK, "keep_alive": "7s"})
        assert (await agent.status()).models[0].keep_alive_s == 7


async def test_a_response_names_the_model_as_its_client_does(tmp_path: Path) -> None:
    async with running(tmp_path) as agent:
        for headers, name in (({}, "scripted:latest"), ({HEADER_REQUESTED_MODEL: "best"}, "best")):
            body = {**ASK, "model": "scripted:latest"}
            lines = (await post(agent, "/api/chat", body, **headers)).text.splitlines()
            assert {json.loads(line)["model"] for line in lines} == {name}


async def test_what_a_model_cannot_do_is_refused_in_ollama_s_words(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    async with running(tmp_path) as agent:
        for fields, word in (
            ({"think": True}, "thinking"),
            ({"think": "low"}, "thinking"),
            ({"tools": tools}, "tools"),
        ):
            answer = await post(agent, "/api/chat", {**ASK, **fields})
            assert answer.status_code == 400
            assert answer.json()["error"] == f"'scripted' does not support {word}."
        assert (await post(agent, "/api/chat", {**ASK, "think": False})).status_code == 200


async def test_a_load_is_waited_for_with_spaces(tmp_path: Path) -> None:
    async with running(tmp_path, Script(load_delay_s=0.3), stream_keepalive_s=0.02) as agent:
        answer = await post(agent, "/api/chat", ASK)
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert answer.text.startswith(" ")
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert lines[-1]["done"] is True and lines[-1]["load_duration"] > 0.3e9


async def test_a_client_that_leaves_cancels_its_request(tmp_path: Path) -> None:
    async with running(tmp_path, Script(stall_after_tokens=1)) as agent:
        _, writer = await agent.send_raw(json.dumps(ASK).encode(), path="/api/chat")
        await agent.until_active(1)
        await closed(writer)
        await agent.until_active(0)


@pytest.mark.parametrize(
    ("method", "path", "status", "words"),
    [
        ("POST", "/api/nothing", 404, "There is nothing at /api/nothing"),
        ("GET", "/api/chat", 405, "accepts POST"),
        ("DELETE", "/api/delete", 501, "node-agent rm"),
        ("HEAD", "/api/blobs/sha256:0", 501, ""),
        ("POST", "/api/show", 400, "not valid JSON"),
    ],
)
async def test_errors_are_texts(
    tmp_path: Path, method: str, path: str, status: int, words: str
) -> None:
    async with running(tmp_path) as agent:
        answer = await agent.client.request(method, path)
        assert answer.status_code == status
        if method != "HEAD":
            assert words in answer.json()["error"]
        stranger = await agent.client.request(method, path, headers={"authorization": "x"})
        assert stranger.status_code == 401


async def test_lists_have_heads(tmp_path: Path) -> None:
    async with running(tmp_path) as agent:
        for path in ("/api/tags", "/api/ps", "/api/version"):
            answer = await agent.client.head(path)
            assert (answer.status_code, answer.content) == (200, b"")
