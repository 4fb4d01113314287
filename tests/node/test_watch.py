"""From the machine's memory to a refusal of requests."""

import asyncio
from pathlib import Path

import pytest

from node.agent import watch
from node.hardware import MemoryReading
from tests.node.serving import WAIT_S, running


async def test_requests_are_refused_while_memory_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reading = MemoryReading(kernel_level=1)
    monkeypatch.setattr(watch, "read_memory", lambda kernel: reading)
    monkeypatch.setattr(watch, "WATCH_S", 0.001)
    async with running(tmp_path) as agent, asyncio.timeout(WAIT_S):

        async def until(level: str) -> None:
            while (await agent.client.get("/v1/node/status")).json()["memory"]["pressure"] != level:
                pass

        assert (await agent.chat(max_tokens=1)).status_code == 200
        reading = MemoryReading(kernel_level=4)
        await until("hard")
        refused = await agent.chat(max_tokens=1)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "10")
        assert refused.json()["error"]["code"] == "memory_pressure"
        reading = MemoryReading(kernel_level=1)
        await until("none")
        assert (await agent.chat(max_tokens=1)).status_code == 200
    assert "Memory pressure of this machine is now hard." in caplog.messages
