"""Warm prompts: prefilled on command and at each load, pinned, and nobody's requests."""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from node.agent import agent as agent_module
from node.agent import warming
from node.agent.warm_prompts import WarmProgress, WarmReport, WarmResult, decode_report
from node.engine.scripted.cache import ScriptedCache
from node.engine.scripted.script import Script, ScriptedModel
from node.engines.memory_budget import Leases
from node.ipc.messages import Pressure
from node.protocol.lifecycle import PATH_CLEAR_CACHE, PATH_UNLOAD, ClearedCache
from node.protocol.messages import (
    PATH_LOAD,
    PATH_WARM,
    Finished,
    ModelState,
)
from serving.units import GIB
from tests.node.serving import WAIT_S, RunningAgent, running

CACHING = Script(
    models=(ScriptedModel(context_tokens=1000, kv_bytes_per_token=1000),),
    cache=ScriptedCache(capacity_tokens=10_000),
)
LONG = "the system says so " * 40
SYSTEM = {"messages": [{"role": "system", "content": LONG}]}
MODEL = {"model": "scripted"}


async def warm_lines(agent: RunningAgent, *requests: dict[str, Any]) -> list[WarmReport]:
    response = await agent.client.post(PATH_WARM, json={**MODEL, "requests": requests})
    assert response.status_code == 200, response.text
    return [decode_report(line) for line in response.text.splitlines()]


async def warmed(agent: RunningAgent, *requests: dict[str, Any]) -> list[WarmResult]:
    return [each for each in await warm_lines(agent, *requests) if isinstance(each, WarmResult)]


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


async def test_a_prompt_that_fails_is_reported_and_the_next_one_goes_on(tmp_path: Path) -> None:
    async with running(tmp_path, CACHING) as agent:
        long, text = await warmed(agent, {"prompt": "x" * 8000}, {"prompt": "abcd"})
        assert long.error is not None and "context" in long.error
        assert (text.error, text.prompt_tokens) == (None, 1)
    async with running(tmp_path, Script(step_failure_after_tokens=0)) as agent:
        (failed,) = await warmed(agent, SYSTEM)
        assert failed.error is not None


async def test_a_prompt_that_is_not_kept_is_a_failure(tmp_path: Path) -> None:
    async with running(tmp_path, Script()) as agent:
        (failed,) = await warmed(agent, SYSTEM)
    assert failed.error is not None and "no room to keep it" in failed.error


async def test_the_progress_of_a_prompt_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warming, "PROGRESS_S", 0.02)
    script = msgspec.structs.replace(CACHING, prefill_s_per_token=0.001, progress_interval_s=0.01)
    async with running(tmp_path, script) as agent:
        *progress, last = await warm_lines(agent, SYSTEM)
    assert isinstance(last, WarmResult) and last.error is None
    done = [each.done_tokens for each in progress if isinstance(each, WarmProgress)]
    assert len(done) == len(progress) > 1
    assert done == sorted(set(done))
    assert done[-1] < last.prompt_tokens


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


async def test_a_caller_that_disconnects_cancels_its_prompt(tmp_path: Path) -> None:
    async with running(tmp_path, Script(wedge=True)) as agent:
        body = {**MODEL, "requests": [SYSTEM]}
        async with agent.client.stream("POST", PATH_WARM, json=body) as response:
            assert response.status_code == 200
            await agent.until_active()
        await agent.until_active(0)


async def test_a_caller_that_leaves_during_the_load_leaves_nothing_behind(tmp_path: Path) -> None:
    async with running(tmp_path, Script(load_delay_s=0.3, wedge=True)) as agent:
        body = {**MODEL, "requests": [SYSTEM]}
        call = asyncio.create_task(agent.client.post(PATH_WARM, json=body))
        async with asyncio.timeout(WAIT_S):
            while (await agent.status()).models[0].state is not ModelState.LOADING:
                pass
            call.cancel()
            assert (await agent.client.post(PATH_LOAD, json=MODEL)).status_code == 200
            while (await agent.client.post(PATH_UNLOAD, json=MODEL)).status_code != 200:
                pass
    assert call.cancelled()


async def test_a_model_that_a_command_warms_is_not_unloaded(tmp_path: Path) -> None:
    async with running(tmp_path, Script(wedge=True)) as agent:
        body = {**MODEL, "requests": [SYSTEM]}
        async with agent.client.stream("POST", PATH_WARM, json=body):
            await agent.until_active()
            busy = await agent.client.post(PATH_UNLOAD, json=MODEL)
        assert busy.status_code == 409
        assert busy.json()["message"] == "Prompts of scripted are being warmed."


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


async def test_they_are_prefilled_once_and_delay_no_request(
    tmp_path: Path, plan: tuple[tuple[str, Path], ...], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    script = msgspec.structs.replace(CACHING, prefill_s_per_token=0.001)
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
        for count in (1, 2):
            # A command is an occasion to try again.
            assert (await agent.client.post(PATH_LOAD, json=MODEL)).status_code == 200
            assert warnings(caplog) == count


async def test_an_unload_gives_up_the_prompts_of_the_settings(
    tmp_path: Path, plan: tuple[tuple[str, Path], ...]
) -> None:
    async with running(tmp_path, Script(wedge=True), warm=plan) as agent:
        load = asyncio.create_task(agent.client.post(PATH_LOAD, json=MODEL))
        await agent.until_active()
        assert (await agent.client.post(PATH_UNLOAD, json=MODEL)).status_code == 200
        assert (await load).status_code == 200
        assert (await agent.status()).models[0].state is ModelState.ON_DISK


async def test_they_wait_for_the_engines_share_of_memory(
    tmp_path: Path, plan: tuple[tuple[str, Path], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, settle = asyncio.Event(), Leases.settle

    async def late(leases: Leases) -> None:
        await gate.wait()
        await settle(leases)

    monkeypatch.setattr(Leases, "settle", late)
    async with running(tmp_path, CACHING, warm=plan) as agent:
        load = asyncio.create_task(agent.client.post(PATH_LOAD, json=MODEL))
        # No request waits for them.
        assert (await agent.chat("hi", max_tokens=1)).status_code == 200
        assert not load.done()
        gate.set()
        assert (await load).status_code == 200
        assert await cached_tokens(agent) > 0


async def test_those_without_room_are_tried_again_when_there_is_more(
    tmp_path: Path, plan: tuple[tuple[str, Path], ...], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    models = (
        ScriptedModel(context_tokens=200, kv_bytes_per_token=10**7),
        ScriptedModel("other"),
    )
    script = Script(models=models, cache=ScriptedCache(capacity_tokens=10_000))
    async with running(tmp_path, script, warm=plan, memory_limit_bytes=9 * GIB) as agent:
        for model in ("other", "scripted"):
            load = await agent.client.post(PATH_LOAD, json={"model": model})
            assert load.status_code == 200, load.text
        for _ in range(2):
            assert (await agent.chat("hi", max_tokens=1)).status_code == 200
        assert warnings(caplog) == 1
        assert (await agent.client.post(PATH_UNLOAD, json={"model": "other"})).status_code == 200
        await until_warm(agent, caplog)
        assert warnings(caplog) == 1


def warnings(caplog: pytest.LogCaptureFixture) -> int:
    lines = [line for line in caplog.messages if line.startswith("Warm prompt 1 of scripted: ")]
    return len(lines)


async def until_warm(agent: RunningAgent, caplog: pytest.LogCaptureFixture) -> None:
    """Asks something, again and again, until the prompts of the settings are warm."""
    async with asyncio.timeout(WAIT_S):
        while not any("of warm prompts for scripted" in line for line in caplog.messages):
            await agent.chat("hi", max_tokens=1)


async def test_where_memory_is_short_they_are_prefilled_all_the_same(
    tmp_path: Path, plan: tuple[tuple[str, Path], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_module, "watch_pressure", lambda *_: asyncio.Event().wait())
    async with running(tmp_path, CACHING, warm=plan) as agent:
        agent.app.agent._supervisor.set_pressure(Pressure.SOFT)
        assert (await agent.client.post(PATH_LOAD, json=MODEL)).status_code == 200
        assert await cached_tokens(agent) > 0


async def test_one_that_finds_no_room_while_memory_is_short_is_tried_again_after_that(
    tmp_path: Path,
    plan: tuple[tuple[str, Path], ...],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(warming, "PRESSURE_S", 0.01)
    monkeypatch.setattr(agent_module, "watch_pressure", lambda *_: asyncio.Event().wait())
    script = msgspec.structs.replace(CACHING, cache=ScriptedCache(capacity_tokens=10))
    async with running(tmp_path, script, warm=plan) as agent:
        supervisor = agent.app.agent._supervisor
        supervisor.set_pressure(Pressure.SOFT)
        assert (await agent.client.post(PATH_LOAD, json=MODEL)).status_code == 200
        assert warnings(caplog) == 0
        supervisor.set_pressure(Pressure.NONE)
        async with asyncio.timeout(WAIT_S):
            while warnings(caplog) == 0:
                await agent.status()


async def test_where_memory_is_very_short_they_wait_for_its_end(
    tmp_path: Path,
    plan: tuple[tuple[str, Path], ...],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(warming, "PRESSURE_S", 0.01)
    monkeypatch.setattr(agent_module, "watch_pressure", lambda *_: asyncio.Event().wait())
    script = msgspec.structs.replace(CACHING, load_delay_s=0.2)
    async with running(tmp_path, script, warm=plan) as agent:
        supervisor = agent.app.agent._supervisor
        load = asyncio.create_task(agent.client.post(PATH_LOAD, json=MODEL))
        while supervisor.status()[0].state is not ModelState.LOADING:
            await agent.status()
        supervisor.set_pressure(Pressure.HARD)
        assert (await load).status_code == 200
        assert caplog.messages.count("The warm prompts of scripted wait for memory.") == 1
        supervisor.set_pressure(Pressure.SOFT)
        async with asyncio.timeout(WAIT_S):
            while not any("of warm prompts for scripted" in line for line in caplog.messages):
                await agent.status()
        assert await cached_tokens(agent) > 0
    assert warnings(caplog) == 0


async def test_pressure_in_the_middle_is_not_the_prompts_fault(
    tmp_path: Path,
    plan: tuple[tuple[str, Path], ...],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(warming, "PRESSURE_S", 0.01)
    monkeypatch.setattr(agent_module, "watch_pressure", lambda *_: asyncio.Event().wait())
    script = msgspec.structs.replace(CACHING, first_token_delay_s=0.1)
    async with running(tmp_path, script, warm=plan) as agent:
        load = asyncio.create_task(agent.client.post(PATH_LOAD, json=MODEL))
        await agent.until_active()
        supervisor = agent.app.agent._supervisor
        supervisor.set_pressure(Pressure.HARD)
        assert (await load).status_code == 200
        supervisor.set_pressure(Pressure.NONE)
        await until_warm(agent, caplog)
        assert await cached_tokens(agent) > 0
    assert warnings(caplog) == 0


async def test_a_shutdown_does_not_wait_for_them(
    tmp_path: Path, plan: tuple[tuple[str, Path], ...]
) -> None:
    async with running(tmp_path, Script(wedge=True), warm=plan) as agent:
        load = asyncio.create_task(agent.client.post(PATH_LOAD, json=MODEL))
        await agent.until_active()
        async with asyncio.timeout(WAIT_S):
            await agent.app.agent.close(0.0)
            await asyncio.gather(load, return_exceptions=True)


async def test_prompts_for_an_unknown_model_are_logged_at_the_start(
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


async def test_only_the_named_model_s_cache_is_cleared(tmp_path: Path) -> None:
    async with running(tmp_path, CACHING) as agent:
        await warmed(agent, SYSTEM)
        unknown = await agent.client.post(PATH_CLEAR_CACHE, json={"model": "nothing"})
        assert (unknown.status_code, unknown.json()["code"]) == (404, "model_not_found")
        assert await cached_tokens(agent) > 0
        assert (await clear(agent.client, "scripted")).models == ("scripted",)
        assert await cached_tokens(agent) == 0


async def clear(client: httpx.AsyncClient, model: str | None = None) -> ClearedCache:
    response = await client.post(PATH_CLEAR_CACHE, json={} if model is None else {"model": model})
    body = response.json()
    return ClearedCache(tuple(body["models"]), body["memory_bytes"], body["disk_bytes"])
