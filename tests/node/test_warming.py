"""Warm prompts: prefilled on command and at each load, pinned, and nobody's requests."""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import httpx
import pytest

from node.engine.scripted import Script, ScriptedModel
from node.engine.scripted_cache import ScriptedCache
from node.protocol.messages import (
    PATH_CLEAR_CACHE,
    PATH_LOAD,
    PATH_UNLOAD,
    PATH_WARM,
    ClearedCache,
    Finished,
)
from node.warm import WarmResult, decode_result
from tests.node.serving import WAIT_S, RunningAgent, running

CACHING = Script(
    models=(ScriptedModel(context_tokens=1000, kv_bytes_per_token=1000),),
    cache=ScriptedCache(capacity_tokens=10_000),
)
LONG = "the system says so " * 40
SYSTEM = {"messages": [{"role": "system", "content": LONG}]}
MODEL = {"model": "scripted"}


async def warmed(agent: RunningAgent, *requests: dict[str, Any]) -> list[WarmResult]:
    response = await agent.client.post(PATH_WARM, json={**MODEL, "requests": requests})
    assert response.status_code == 200, response.text
    return [decode_result(line) for line in response.text.splitlines()]


async def cached_tokens(agent: RunningAgent, content: str = LONG) -> int:
    usage = (await agent.chat(content, max_tokens=1)).json()["usage"]
    cached: int = usage["prompt_tokens_details"]["cached_tokens"]
    return cached


async def test_a_command_prefills_prompts_for_later_requests(tmp_path: Path) -> None:
    async with running(tmp_path, CACHING) as agent:
        first, text = await warmed(agent, SYSTEM, {"prompt": "abcdefgh"})
        assert (first.index, first.error, text.index, text.prompt_tokens) == (0, None, 1, 2)
        assert first.prompt_tokens == len(LONG) // 4
        assert await cached_tokens(agent) > 0
        # A warm prompt is no request, so that only the one after it has an account.
        async with agent.events() as events:
            assert (await events.next(Finished)).seq == 1
        (again,) = await warmed(agent, SYSTEM)
        assert again.cached_tokens > 0


async def test_a_prompt_that_fails_is_told_and_the_next_one_goes_on(tmp_path: Path) -> None:
    async with running(tmp_path, CACHING) as agent:
        long, text = await warmed(agent, {"prompt": "x" * 8000}, {"prompt": "abcd"})
        assert long.error is not None and "context" in long.error
        assert (text.error, text.prompt_tokens) == (None, 1)
    async with running(tmp_path, Script(step_failure_after_tokens=0)) as agent:
        (failed,) = await warmed(agent, SYSTEM)
        assert failed.error is not None


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"model": "nothing", "requests": []}, 404),
        ({**MODEL, "requests": [{"messages": []}]}, 400),
        ({**MODEL, "requests": [{}]}, 400),
        ({"model": 1}, 400),
    ],
)
async def test_a_wrong_command_is_refused(
    tmp_path: Path, body: dict[str, Any], status: int
) -> None:
    async with running(tmp_path) as agent:
        response = await agent.client.post(PATH_WARM, json=body)
        assert response.status_code == status
        assert response.json()["message"].endswith(".")


async def test_a_model_that_cannot_be_loaded_is_an_http_status(tmp_path: Path) -> None:
    async with running(tmp_path, Script(load_failure="No.")) as agent:
        response = await agent.client.post(PATH_WARM, json={**MODEL, "requests": [SYSTEM]})
        assert response.status_code == 503


async def test_a_caller_that_leaves_takes_its_prompt_back(tmp_path: Path) -> None:
    async with running(tmp_path, Script(wedge=True)) as agent:
        body = {**MODEL, "requests": [SYSTEM]}
        async with agent.client.stream("POST", PATH_WARM, json=body) as response:
            assert response.status_code == 200
            await agent.until_active()
        await agent.until_active(0)


@pytest.fixture
def plan(tmp_path: Path) -> tuple[tuple[str, Path], ...]:
    file = tmp_path / "warm.jsonl"
    file.write_text(json.dumps(SYSTEM))
    return (("scripted", file),)


async def test_the_prompts_of_the_settings_are_warm_after_each_load(
    tmp_path: Path, plan: tuple[tuple[str, Path], ...]
) -> None:
    async with running(tmp_path, CACHING, warm=plan) as agent:
        for _ in range(2):
            assert (await agent.client.post(PATH_LOAD, json=MODEL)).status_code == 200
            assert await cached_tokens(agent) > 0
            assert (await agent.client.post(PATH_UNLOAD, json=MODEL)).status_code == 200


async def test_they_are_prefilled_once_and_hold_up_no_request(
    tmp_path: Path, plan: tuple[tuple[str, Path], ...], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    script = Script(prefill_s_per_token=0.001)
    async with running(tmp_path, script, warm=plan) as agent:
        answers = await asyncio.gather(*(agent.chat("hi", max_tokens=1) for _ in range(3)))
        assert [answer.status_code for answer in answers] == [200] * 3
        assert (await agent.client.post(PATH_LOAD, json=MODEL)).status_code == 200
        assert (await agent.client.post(PATH_LOAD, json=MODEL)).status_code == 200
    assert len([line for line in caplog.messages if "of warm prompts for scripted" in line]) == 1


async def test_one_that_fails_is_logged_and_the_load_goes_on(
    tmp_path: Path, plan: tuple[tuple[str, Path], ...], caplog: pytest.LogCaptureFixture
) -> None:
    script = Script(models=(ScriptedModel(context_tokens=4),))
    async with running(tmp_path, script, warm=plan) as agent:
        assert (await agent.client.post(PATH_LOAD, json=MODEL)).status_code == 200
    assert [line for line in caplog.messages if line.startswith("Warm prompt 1 of scripted: ")]


async def test_a_shutdown_does_not_wait_for_them(
    tmp_path: Path, plan: tuple[tuple[str, Path], ...]
) -> None:
    async with running(tmp_path, Script(wedge=True), warm=plan) as agent:
        load = asyncio.create_task(agent.client.post(PATH_LOAD, json=MODEL))
        await agent.until_active()
        async with asyncio.timeout(WAIT_S):
            await agent.app.agent.close(0.0)
            await asyncio.gather(load, return_exceptions=True)


async def test_prompts_for_an_unknown_model_are_told_at_the_start(
    tmp_path: Path, plan: tuple[tuple[str, Path], ...], caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path, warm=(("nothing", plan[0][1]),)):
        pass
    assert "Warm prompts are for models not on this node: nothing." in caplog.messages


async def test_a_cleared_cache_has_forgotten_everything(tmp_path: Path) -> None:
    async with running(tmp_path, CACHING) as agent:
        assert await clear(agent.client) == ClearedCache((), 0, 0)
        await warmed(agent, SYSTEM)
        assert (await clear(agent.client)).models == ("scripted",)
        assert await cached_tokens(agent) == 0


async def clear(client: httpx.AsyncClient) -> ClearedCache:
    response = await client.post(PATH_CLEAR_CACHE)
    body = response.json()
    return ClearedCache(tuple(body["models"]), body["memory_bytes"], body["disk_bytes"])
