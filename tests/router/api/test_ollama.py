"""`/api/*` of the router, with a real agent behind it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from node.engine.scripted.script import Script
from tests.faults.rig import add_real
from tests.node.serving import RunningAgent, running
from tests.router.api.test_limits import a_key
from tests.router.conftest import RunningRouter, alias
from tests.router.dispatch.test_streamed_calls import usage

ASK = {"model": "scripted", "messages": [{"role": "user", "content": "hello"}]}


@pytest_asyncio.fixture
async def agent(router: RunningRouter, tmp_path: Path) -> AsyncIterator[RunningAgent]:
    async with running(tmp_path / "a", Script(outputs=("Hello.",))) as running_agent:
        await add_real(router, running_agent, "a")
        yield running_agent


async def get(router: RunningRouter, path: str) -> Any:
    caller = await router.send("GET", path, authorization=f"Bearer {router.key}")
    body = json.loads(await caller.body())
    assert caller.status == 200, body
    return body


async def post(router: RunningRouter, path: str, body: Any, **headers: str) -> tuple[int, Any]:
    caller = await router.post(body, path, **headers)
    return await caller.head(), json.loads((await caller.body()).splitlines()[-1])


@pytest.mark.usefixtures("agent")
async def test_a_chat_is_relayed_and_its_usage_is_kept(router: RunningRouter) -> None:
    caller = await router.post({**ASK, "model": "scripted:latest"}, "/api/chat")
    lines = [json.loads(line) for line in (await caller.body()).splitlines()]
    assert "".join(line["message"]["content"] for line in lines) == "Hello."
    assert {line["model"] for line in lines} == {"scripted:latest"}
    last = lines[-1]
    assert last["done"] and last["done_reason"] == "stop"
    (row,) = await usage(router, 1)
    assert (row.prompt_tokens, row.completion_tokens) == (
        last["prompt_eval_count"],
        last["eval_count"],
    )
    assert row.reason == "stop"


@pytest.mark.usefixtures("agent")
async def test_generate_is_relayed_whole(router: RunningRouter) -> None:
    body = {"model": "scripted", "prompt": "hello", "stream": False}
    status, answer = await post(router, "/api/generate", body)
    assert (status, answer["response"], answer["done"]) == (200, "Hello.", True)


@pytest.mark.usefixtures("agent")
async def test_the_fleet_s_models_and_aliases_are_listed(router: RunningRouter) -> None:
    router.core.names.put(alias("best", "scripted"))
    listed = (await get(router, "/api/tags"))["models"]
    assert [each["name"] for each in listed] == ["best:latest", "scripted:latest"]
    assert all(each["size"] and len(each["digest"]) == 64 for each in listed)
    status, shown = await post(router, "/api/show", {"name": "best:latest"})
    assert status == 200 and shown["capabilities"] == ["completion"]
    status, answer = await post(router, "/api/chat", {**ASK, "model": "best:latest"})
    assert (status, answer["model"]) == (200, "best:latest")
    assert (await get(router, "/api/version"))["version"]


async def test_a_model_is_loaded_by_any_key_and_unloaded_by_an_admin_s(
    router: RunningRouter, agent: RunningAgent
) -> None:
    async def states() -> list[str]:
        return [each.state.value for each in (await agent.status()).models]

    load = {"model": "scripted"}
    status, answer = await post(router, "/api/generate", load)
    assert (status, answer["done_reason"], answer["response"]) == (200, "load", "")
    assert await states() == ["ready"]
    unload = {"model": "scripted:latest", "messages": [], "keep_alive": "0s"}
    status, answer = await post(router, "/api/chat", unload)
    assert status == 403 and "scope admin" in answer["error"]
    assert await states() == ["ready"]
    both = router.new_key("admin", "inference")
    status, answer = await post(router, "/api/chat", unload, authorization=f"Bearer {both}")
    assert (status, answer["done_reason"]) == (200, "unload")
    assert answer["message"] == {"role": "assistant", "content": ""}
    assert await states() == ["on_disk"]


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/api/chat", {"messages": []}, 400, "model"),
        ("/api/chat", {**ASK, "model": "x"}, 404, "No node of the fleet has the model 'x'"),
        ("/api/show", {"model": "x"}, 404, "No node"),
        ("/api/show", {}, 400, "model is missing"),
        ("/api/show", b"[", 400, "not valid"),
        ("/api/pull", {"model": "x"}, 501, "router models pull"),
        ("/api/embed", {"model": "x", "input": "y"}, 501, "embeddings"),
        ("/api/blobs/sha256:0", {}, 501, "uploaded"),
        ("/api/nothing", {}, 404, "There is nothing at /api/nothing"),
        ("/api/tags", {}, 405, "accepts GET"),
        ("/api/generate", {"model": "scripted", "keep_alive": "soon"}, 400, "keep_alive"),
    ],
)
@pytest.mark.usefixtures("agent")
async def test_errors_are_texts(
    router: RunningRouter, path: str, body: Any, status: int, words: str
) -> None:
    found, answer = await post(router, path, body)
    assert found == status
    assert isinstance(answer["error"], str) and words in answer["error"]


async def test_a_key_is_required(router: RunningRouter) -> None:
    caller = await router.send("GET", "/api/tags")
    assert "API key" in json.loads(await caller.body())["error"]
    assert caller.status == 401


async def test_a_pinned_model_is_not_unloaded(router: RunningRouter, tmp_path: Path) -> None:
    async with running(tmp_path / "p", pins=("scripted",)) as agent:
        await add_real(router, agent, "p")
        await post(router, "/api/generate", {"model": "scripted"})
        both = f"Bearer {router.new_key('admin', 'inference')}"
        body = {"model": "scripted", "keep_alive": 0}
        status, answer = await post(router, "/api/generate", body, authorization=both)
    assert status == 409 and "is pinned on p" in answer["error"]


async def test_an_unload_of_what_is_not_loaded_is_done(
    router: RunningRouter, agent: RunningAgent
) -> None:
    both = f"Bearer {router.new_key('admin', 'inference')}"
    assert (await agent.status()).models[0].state.value == "on_disk"
    body = {"model": "scripted", "keep_alive": 0}
    status, answer = await post(router, "/api/generate", body, authorization=both)
    assert (status, answer["done_reason"]) == (200, "unload")


@pytest.mark.usefixtures("agent")
async def test_a_key_at_its_limit_gets_a_text_with_retry_after_and_loads_nothing(
    router: RunningRouter,
) -> None:
    key = await a_key(router, limits={"requests_per_minute": 1})
    bearer = f"Bearer {key}"
    status, _ = await post(router, "/api/chat", ASK, authorization=bearer)
    assert status == 200
    for body in (ASK, {"model": "scripted"}):
        caller = await router.post(body, "/api/chat", authorization=bearer)
        error = json.loads(await caller.body())["error"]
        assert caller.status == 429 and "1 request a minute" in error
        assert int(caller.headers["retry-after"]) > 0


@pytest.mark.usefixtures("agent")
async def test_a_key_sees_and_loads_only_its_models(router: RunningRouter) -> None:
    key = await a_key(router, models=["other-*"])
    bearer = f"Bearer {key}"
    caller = await router.send("GET", "/api/tags", authorization=bearer)
    assert json.loads(await caller.body()) == {"models": []}
    for path in ("/api/chat", "/api/generate", "/api/show"):
        status, answer = await post(router, path, {"model": "scripted"}, authorization=bearer)
        assert status in (403, 404) and isinstance(answer["error"], str)
