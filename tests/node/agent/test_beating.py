"""When an agent reports that it is there."""

import asyncio

import pytest

from node.agent import agent as agent_module
from node.protocol.messages import StatusEvent
from tests.node.agent.test_agent import WAIT_S, running


async def test_an_agent_beats_for_those_who_listen_and_for_nobody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agent_module, "HEARTBEAT_S", 0.0)
    beats: list[None] = []
    monkeypatch.setattr(agent_module.Agent, "_on_change", lambda _self: beats.append(None))
    async with running() as agent, asyncio.timeout(WAIT_S):
        beats.clear()
        for _ in range(20):
            await asyncio.sleep(0)
        assert beats == []
        events = agent.subscribe("", 0)
        assert isinstance((await anext(events))[0], StatusEvent)
        while not beats:
            await asyncio.sleep(0)
