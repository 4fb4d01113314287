"""Tests `/v1/node/status` over a real socket."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from node.agent import agent as agent_module
from node.engine.scripted.cache import ScriptedCache
from node.engine.scripted.script import Script, ScriptedModel
from node.ipc.learned_rates import PrefillRate
from node.ipc.messages import Pressure
from node.protocol.messages import DepthSpeed, MemoryPressure, ModelSpeed
from serving.units import GIB
from tests.node.serving import WAIT_S, RunningAgent, running

PATH = "/v1/node/status"
SCRIPT = Script(
    models=(ScriptedModel("scripted", kv_bytes_per_token=1024), ScriptedModel("other")),
    cache=ScriptedCache(capacity_tokens=10_000),
)


async def report(agent: RunningAgent) -> Any:
    response = await agent.client.get(PATH)
    assert response.status_code == 200
    return response.json()


async def test_reports_the_memory_and_each_engine(tmp_path: Path) -> None:
    async with running(tmp_path, SCRIPT, memory_limit_bytes=8 * GIB) as agent:
        before = await report(agent)
        assert before["memory"] == {
            "limit_bytes": 8 * GIB,
            "leased_bytes": 0,
            "stored_kv_bytes": 0,
            "free_bytes": 8 * GIB,
            "pressure": "none",
            "pressure_s": pytest.approx(0, abs=WAIT_S),
            "pressure_effect": "nothing is reduced or refused",
            "stored_kv_cap_bytes": None,
        }
        assert [model["state"] for model in before["models"]] == ["on_disk", "on_disk"]
        assert "engine" not in before["models"][0]
        for _ in range(2):
            await agent.chat(max_tokens=3)
        after = await report(agent)
        while after["models"][1]["engine"]["stored_kv_bytes"] == 0:
            after = await report(agent)
    memory, model = after["memory"], after["models"][1]
    assert (model["name"], model["state"]) == ("scripted", "ready")
    assert sum(model["lease"].values()) == memory["leased_bytes"]
    assert memory["leased_bytes"] + memory["free_bytes"] == 8 * GIB
    assert model["lease"]["stored_kv_bytes"] == memory["stored_kv_bytes"] > GIB
    assert model["cache_events"] == {"stored": 1}
    engine = model["engine"]
    assert (engine["weight_bytes"], engine["entries"]) == (GIB, 1)
    assert 0 < engine["hit_share"] < 1
    assert (engine["prefill_rates"], engine["decode_rates"]) == ([], [])
    shown = "live_kv_bytes snapshot_bytes disk_kv_bytes active_bytes free_bytes decoding_rows"
    assert set(shown.split()) <= engine.keys()


async def test_reports_the_memory_pressure_since_when_and_its_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_module, "watch_pressure", lambda *_: asyncio.Event().wait())
    async with running(tmp_path, SCRIPT, memory_limit_bytes=8 * GIB) as agent:
        supervisor = agent.app.agent._supervisor
        now_s = 100.0
        for each in (supervisor, supervisor._engines):
            monkeypatch.setattr(each, "now_s", lambda: now_s)
        await agent.chat(max_tokens=3)
        supervisor.set_pressure(Pressure.SOFT)
        now_s += 42
        async with asyncio.timeout(WAIT_S):
            while (memory := (await report(agent))["memory"])["stored_kv_cap_bytes"] is None:
                pass
        assert (memory["pressure"], memory["pressure_s"]) == ("soft", 42)
        cap_bytes = memory["stored_kv_cap_bytes"]
        assert 0 < cap_bytes < GIB
        assert memory["pressure_effect"].startswith(
            "its stored KV is reduced step by step, to 0.0 GiB"
        )
        status = (await agent.status()).pressure
        assert status == MemoryPressure("soft", 42, cap_bytes)
        supervisor.set_pressure(Pressure.NONE)
        after = (await agent.status()).pressure
        assert after == MemoryPressure("none", 0, cap_bytes), "it grows back first"


async def test_the_speed_of_an_engine_is_reported_after_its_end_too(tmp_path: Path) -> None:
    async with running(tmp_path, SCRIPT) as agent:
        await agent.chat(max_tokens=3)
        link = agent.app.agent._supervisor.engines()["scripted"].handle.link
        while link.stats is None:
            await report(agent)
        link._on_stats_report(replace(link.stats, prefill_rates=(PrefillRate(0, 500.0),)))
        speeds = [model.speed for model in (await agent.status()).models]
        assert speeds == [None, ModelSpeed((DepthSpeed(0, 500.0),))]
        (rate,) = (await report(agent))["models"][1]["engine"]["prefill_rates"]
        assert rate["tokens_per_s"] == 500.0
        answer = await agent.client.post("/fleet/unload", json={"model": "scripted"})
        assert answer.status_code == 200
        status = await agent.status()
        assert [model.state for model in status.models] == ["on_disk", "on_disk"]
        assert [model.speed for model in status.models] == speeds


@pytest.mark.parametrize(("method", "status"), [("GET", 401), ("POST", 401)])
async def test_wants_the_token(tmp_path: Path, method: str, status: int) -> None:
    async with (
        running(tmp_path) as agent,
        httpx.AsyncClient(base_url=agent.client.base_url) as stranger,
    ):
        assert (await stranger.request(method, PATH)).status_code == status
        assert (await agent.client.post(PATH)).status_code == 405
