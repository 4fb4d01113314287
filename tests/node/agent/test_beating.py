"""When an agent sends heartbeats."""

import asyncio

import pytest

from node.agent import agent as agent_module
from node.protocol.messages import StatusEvent
from tests.node.agent.test_agent import WAIT_S, running


async def test_an_agent_sends_heartbeats_to_those_who_listen_and_to_nobody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agent_module, "HEARTBEAT_S", 0.0)
    heartbeats: list[None] = []
    monkeypatch.setattr(agent_module.Agent, "_on_change", lambda _self: heartbeats.append(None))
    async with running() as agent, asyncio.timeout(WAIT_S):
        heartbeats.clear()
        for _ in range(20):
            await asyncio.sleep(0)
        assert heartbeats == []
        events = agent.subscribe("", 0)
        assert isinstance((await anext(events))[0], StatusEvent)
        while not heartbeats:
            await asyncio.sleep(0)
