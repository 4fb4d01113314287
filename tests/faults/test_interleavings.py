"""10,000 random interleavings of requests and unloads: none stops an engine that has a request."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from node.engine.script import Script, ScriptedModel
from node.errors import ModelBusy
from node.link import EngineLink
from node.memory import GIB
from node.types import EngineStats, Loaded, MemoryLease
from tests.node.test_supervisor import World, world

ROUNDS = 1000
ROOM_FOR_ONE_BYTES = 2 * GIB
SCRIPT = Script(models=(ScriptedModel("a"), ScriptedModel("b")))


class Engines:
    """In place of engine processes: they take some turns of the loop to start and to stop."""

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.chance = random.Random(seed)
        self.held: Counter[EngineLink] = Counter()
        """Requests that an engine serves."""
        self.stopped: set[EngineLink] = set()
        self.faults: list[str] = []
        engines = self

        async def start(link: EngineLink, *_: Any) -> Loaded:
            await engines.pause()
            link.alive = True
            return Loaded(weight_bytes=GIB, context_tokens=4096, max_rows=4, vocab_size=9)

        async def stop(link: EngineLink, grace_s: float) -> int:
            engines.check(link)
            engines.stopped.add(link)
            await engines.pause()
            engines.check(link)
            link.alive = False
            return 0

        async def set_lease(link: EngineLink, lease: MemoryLease) -> EngineStats:
            await engines.pause()
            return EngineStats(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, lease=lease)

        monkeypatch.setattr(EngineLink, "start", start)
        monkeypatch.setattr(EngineLink, "stop", stop)
        monkeypatch.setattr(EngineLink, "set_lease", set_lease)

    def check(self, link: EngineLink) -> None:
        if self.held[link]:
            self.faults.append("an engine was stopped that had a request")

    async def pause(self) -> None:
        for _ in range(self.chance.randrange(4)):
            await asyncio.sleep(0)

    async def request(self, it: World, name: str) -> None:
        await self.pause()
        with it.supervisor.serving(await it.entry(name)) as lease:
            handle = await lease.ready()
            if handle.link in self.stopped:
                self.faults.append("a request got an engine that was stopped")
            self.held[handle.link] += 1
            try:
                await self.pause()
            finally:
                self.held[handle.link] -= 1

    async def unload(self, it: World, name: str) -> bool:
        await self.pause()
        entry = await it.entry(name)
        try:
            # Both ways in which a model goes: at once or not at all, or after its last request.
            await self.chance.choice((it.supervisor.unload, it.supervisor.drain))(entry)
        except ModelBusy:
            return False
        return True

    async def leave(self, it: World, name: str) -> None:
        """A request whose caller leaves at any time."""
        task = asyncio.create_task(self.request(it, name))
        await self.pause()
        if not task.cancel():
            await task
        await asyncio.wait({task})


@pytest.mark.parametrize("seed", range(10))
async def test_no_engine_is_stopped_while_it_has_a_request(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = Engines(seed, monkeypatch)
    unloaded = 0
    async with world(SCRIPT) as it:
        for _ in range(ROUNDS):
            names = engines.chance.choices("ab", k=5)
            first, second, third = (engines.request(it, name) for name in names[:3])
            *_, told, _ = await asyncio.gather(
                first, second, third, engines.unload(it, names[3]), engines.leave(it, names[4])
            )
            unloaded += bool(told)
            assert engines.faults == []
    assert unloaded > ROUNDS // 20
    assert engines.held.total() == 0


@pytest.mark.parametrize("seed", range(3))
async def test_no_engine_makes_room_while_it_has_a_request(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = Engines(seed, monkeypatch)
    async with world(
        SCRIPT, budget_bytes=ROOM_FOR_ONE_BYTES, min_residency_s=0.0, max_swap_wait_s=0.0
    ) as it:
        for _ in range(ROUNDS // 2):
            *names, left = engines.chance.choices("ab", k=5)
            requests = (engines.request(it, name) for name in names)
            await asyncio.gather(*requests, engines.leave(it, left))
            assert engines.faults == []
            assert len(it.supervisor.engines()) <= 1
    assert len(engines.stopped) > ROUNDS // 20
    assert engines.held.total() == 0
