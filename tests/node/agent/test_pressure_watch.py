"""From the machine's memory to a refusal of requests."""

import asyncio
import logging
from pathlib import Path

import pytest

from node.agent import agent as agent_module
from node.agent import pressure_watch
from node.darwin import Kernel
from node.engine.scripted.script import Script, ScriptedModel
from node.hardware import MemoryReading
from serving import sleep_watch
from serving.sleep_watch import SleepGauge, watch_sleep
from tests.fakes import FakeClock
from tests.node.kernels import PlayedKernel
from tests.node.serving import WAIT_S, running

SCRIPT = Script(models=(ScriptedModel(kv_bytes_per_token=1024),))


async def test_large_requests_are_refused_while_memory_is_very_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reading = MemoryReading(kernel_level=1)
    kernel = PlayedKernel({})
    monkeypatch.setattr(pressure_watch, "this_kernel", lambda: kernel)

    def read_memory(given: Kernel | None) -> MemoryReading:
        assert given is kernel
        return reading

    monkeypatch.setattr(pressure_watch, "read_memory", read_memory)
    monkeypatch.setattr(pressure_watch, "WATCH_S", 0.001)
    async with (
        running(tmp_path, SCRIPT, kv_live_bytes=16 * 1024**2) as agent,
        asyncio.timeout(WAIT_S),
    ):

        async def until(level: str) -> None:
            while (await agent.client.get("/v1/node/status")).json()["memory"]["pressure"] != level:
                pass

        assert (await agent.chat(max_tokens=1)).status_code == 200
        reading = MemoryReading(1 << 29, kernel_level=4, swap_bytes=1 << 31)
        await until("hard")
        assert (await agent.chat(max_tokens=1)).status_code == 200, "a small one"
        large = "word " * 2000
        refused = await agent.chat(large, max_tokens=1)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "10")
        assert refused.json()["error"]["code"] == "memory_pressure"
        body = {
            "model": "scripted",
            "max_tokens": 1,
            "messages": [{"role": "user"} | {"content": large}],
        }
        refused = await agent.client.post("/v1/messages", json=body)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "10")
        assert refused.json()["error"]["type"] == "overloaded_error"
        reading = MemoryReading(kernel_level=1)
        await until("none")
        assert (await agent.chat(max_tokens=1)).status_code == 200
    logged = [line for line in caplog.messages if line.startswith("Memory pressure")]
    assert [line.partition(", after")[0] for line in logged] == [
        f"Memory pressure of this machine is now {level}" for level in ("hard", "soft", "none")
    ]
    assert "s of none: it stores no KV, loads no model, and serves small" in logged[0]
    assert logged[0].endswith("There are 0.5 GiB available, 2.0 GiB in swap.")


async def test_an_agent_logs_when_its_machine_has_slept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    wall, monotonic = FakeClock(), FakeClock()
    gauge = SleepGauge(wall, monotonic)
    monkeypatch.setattr(sleep_watch, "CHECK_S", 0.0)
    monkeypatch.setattr(agent_module, "watch_sleep", lambda: watch_sleep(gauge=gauge))
    async with running(tmp_path) as agent, asyncio.timeout(WAIT_S):
        wall.advance(3600)
        while not any("has slept for 3600 s" in line for line in caplog.messages):
            await agent.status()
