"""Tests the actions that a node takes by itself, with real engine processes that follow a
script."""

import asyncio
import os
import signal
from contextlib import AbstractAsyncContextManager
from typing import Any, cast

import pytest

from node.agent.watchdog import LOAD_STALL_S, UNWATCHED_S, Watchdog
from node.engine.scripted.script import Script
from node.engines.supervisor import Supervisor
from node.errors import EngineDied, LoadFailure, UnknownModel
from node.ipc.generate import GenerateRequest
from node.ipc.long_step import PATIENCE, LongStepWatch
from node.models.store import ModelEntry
from node.protocol.lifecycle import POLICIES_LAPSE_S, ModelPolicy, Policies
from node.protocol.messages import ModelState, ModelStatus
from serving.units import GIB
from tests.node.engines.processes import engine_pid
from tests.node.engines.test_residency_policy import residency_policy
from tests.node.engines.test_supervisor import World
from tests.node.engines.test_supervisor import world as any_world
from tests.node.protocol import idle_cases
from tests.node.protocol.idle_cases import IdleCase

KEEP_ALIVE_S = 100.0
STALL_S = 50.0
WAIT_S = 20.0


def world(script: Script | None = None, **fields: Any) -> AbstractAsyncContextManager[World]:
    return any_world(script, keep_alives=(("", KEEP_ALIVE_S),), **fields)


class Watched:
    """A world and its watchdog."""

    def __init__(self, it: World, *, is_watched: bool = False) -> None:
        self.residency = it.residency
        self.is_watched = is_watched
        self._it = it
        self.watchdog = Watchdog(it.supervisor, self.residency, lambda: self.is_watched, STALL_S)

    async def check_after(self, seconds: float) -> ModelState:
        """Runs the watchdog so many seconds later."""
        self._it.clock.late_s += seconds
        await self.watchdog.check()
        return self._it.supervisor.status()[0].state


class PlayedSupervisor:
    """A supervisor whose only model has this status."""

    def __init__(self, status: ModelStatus) -> None:
        self.time_s = 0.0
        self.unloaded: list[tuple[int, float]] = []
        """Generation and least idle time of each unload."""
        self._status = status

    def now_s(self) -> float:
        return self.time_s

    def status(self) -> tuple[ModelStatus, ...]:
        return (self._status,)

    async def find(self, name: str) -> str:
        return name

    async def unload(self, _entry: str, generation: int, min_idle_s: float) -> None:
        self.unloaded.append((generation, min_idle_s))


@pytest.mark.parametrize("case", idle_cases.CASES, ids=lambda case: case.name)
async def test_every_case_of_the_idle_rule(case: IdleCase) -> None:
    played = PlayedSupervisor(case.status())
    watchdog = Watchdog(cast(Supervisor, played), residency_policy(), lambda: False, STALL_S)
    played.time_s = UNWATCHED_S
    await watchdog.check()
    assert played.unloaded == ([(3, idle_cases.KEEP_ALIVE_S)] if case.is_idle else [])


async def test_an_idle_model_is_unloaded_where_no_router_watches() -> None:
    async with world() as it:
        node = Watched(it)
        await it.touch()
        assert await node.check_after(KEEP_ALIVE_S - 10.0) is ModelState.READY
        assert await node.check_after(20.0) is ModelState.ON_DISK


async def test_a_router_that_watches_unloads_itself_and_is_waited_for_a_minute() -> None:
    async with world() as it:
        node = Watched(it, is_watched=True)
        await it.touch()
        assert await node.check_after(10 * KEEP_ALIVE_S) is ModelState.READY
        node.is_watched = False
        assert await node.check_after(UNWATCHED_S - 10.0) is ModelState.READY
        assert await node.check_after(20.0) is ModelState.ON_DISK


async def test_an_idle_model_that_is_removed_meanwhile_ends_no_care(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world() as it:
        node = Watched(it)
        await it.touch()

        async def gone(name: str) -> ModelEntry:
            raise UnknownModel

        monkeypatch.setattr(it.supervisor, "find", gone)
        assert await node.check_after(2 * KEEP_ALIVE_S) is ModelState.READY


async def test_a_model_that_serves_is_not_idle() -> None:
    async with world() as it:
        node = Watched(it)
        with it.supervisor.serving(await it.entry()) as lease:
            await lease.ready()
            assert await node.check_after(10 * KEEP_ALIVE_S) is ModelState.READY


async def test_a_pinned_model_is_loaded_and_stays() -> None:
    async with world(pins=("scripted",)) as it:
        node = Watched(it)
        await node.watchdog.check()
        await it.until(ModelState.READY)
        assert await node.check_after(10 * KEEP_ALIVE_S) is ModelState.READY


async def test_while_the_node_rests_no_pin_of_its_own_loads_what_a_router_has_unloaded() -> None:
    async with world(pins=("scripted",)) as it:
        node = Watched(it, is_watched=True)
        await node.watchdog.check()
        await asyncio.wait(node.watchdog._loading)
        node.residency.set(Policies("r", {}, in_maintenance=True))
        (before,) = it.supervisor.status()
        assert not before.pinned
        await it.supervisor.unload(await it.entry(), before.generation)
        for _ in range(3):
            assert await node.check_after(5.0) is ModelState.ON_DISK
            assert not node.watchdog._loading
        assert it.supervisor.status()[0].generation == before.generation
        node.residency.set(Policies("r", {}))
        await node.watchdog.check()
        await it.until(ModelState.READY)


async def test_a_load_of_a_pin_ends_where_the_node_is_to_rest() -> None:
    async with world(Script(load_delay_s=60.0), pins=("scripted",)) as it:
        node = Watched(it, is_watched=True)
        await node.watchdog.check()
        await it.until(ModelState.LOADING)
        node.residency.set(Policies("r", {}, in_maintenance=True))
        await node.watchdog.check()
        await asyncio.wait(node.watchdog._loading)
        assert it.supervisor.status()[0].leases == 0


async def test_the_pin_of_a_router_that_vanishes_lapses_and_the_model_may_leave() -> None:
    async with world() as it:
        node = Watched(it)
        await it.touch()
        node.residency.set(Policies("r", {"scripted": ModelPolicy(pinned=True)}))
        assert await node.check_after(0.0) is ModelState.READY
        assert await node.check_after(POLICIES_LAPSE_S - 10.0) is ModelState.READY
        assert await node.check_after(20.0) is ModelState.ON_DISK


async def test_an_engine_within_a_long_step_is_given_a_multiple_of_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    killed: list[str] = []
    async with world(Script(endless_step_s=100.0)) as it:
        node = Watched(it)
        handle = await it.touch()
        monkeypatch.setattr(it.supervisor, "kill", lambda name, reason: killed.append(name))
        handle.link._long_step = LongStepWatch(it.clock)
        with it.supervisor.serving(await it.entry()) as lease:
            await lease.ready()
            handle.link.submit(GenerateRequest("u", (1, 2, 3), 9), lambda row, last: None)
            async with asyncio.timeout(WAIT_S):
                while not handle.link._long_step._expected_s:
                    await asyncio.sleep(0)
            for _ in range(int(PATIENCE * 100.0) // 40):
                await node.check_after(40.0)
            await node.check_after(STALL_S - 10.0)
            assert not killed
            await node.check_after(40.0)
            assert killed == ["scripted"]


async def test_an_engine_that_hangs_is_killed_and_its_request_fails() -> None:
    async with world(Script(wedge=True)) as it:
        node = Watched(it)
        handle = await it.touch()
        with it.supervisor.serving(await it.entry()) as lease:
            await lease.ready()
            row = handle.link.submit(GenerateRequest("u", (1, 2, 3), 9), lambda row, last: None)
            await node.watchdog.check()
            await node.check_after(STALL_S - 10.0)
            assert handle.link.alive
            await node.check_after(20.0)
            with pytest.raises(EngineDied):
                while not row.ended:
                    await row.next()


async def test_a_load_that_hangs_is_ended_and_its_waiter_fails() -> None:
    async with world(Script(load_delay_s=60.0)) as it:
        node, waiting = Watched(it), asyncio.create_task(it.touch())
        link = None
        while link is None or link._process is None:
            await asyncio.sleep(0)
            link = it.supervisor._slots.of(await it.entry()).link
        os.kill(engine_pid(link), signal.SIGSTOP)
        assert await node.check_after(0.0) is ModelState.LOADING
        assert await node.check_after(LOAD_STALL_S - 10.0) is ModelState.LOADING
        assert link.alive
        await node.check_after(20.0)
        with pytest.raises(LoadFailure):
            await waiting


async def test_why_a_pinned_model_is_not_loaded_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with world(budget_bytes=GIB, pins=("scripted",)) as it:
        node = Watched(it)
        for _ in range(3):
            await node.watchdog.check()
            await asyncio.wait(node.watchdog._loading)
        assert len(caplog.messages) == 1 and "is not loaded" in caplog.messages[0]


async def test_an_engine_that_is_stopped_is_killed_too() -> None:
    async with world(Script()) as it:
        node = Watched(it)
        handle = await it.touch()
        os.kill(engine_pid(handle.link), signal.SIGSTOP)
        row = handle.link.submit(GenerateRequest("u", (1, 2, 3), 9), lambda row, last: None)
        await node.watchdog.check()
        await node.check_after(STALL_S + 10.0)
        with pytest.raises(EngineDied):
            while not row.ended:
                await row.next()


async def test_a_prefill_that_goes_on_is_no_stall() -> None:
    script = Script(prefill_s_per_token=0.001, progress_interval_s=0.01)
    async with world(script) as it:
        node = Watched(it)
        handle = await it.touch()
        row = handle.link.submit(GenerateRequest("u", tuple(range(500)), 1), lambda row, last: None)
        seen_tokens = -1
        while not row.ended:
            await row.next()
            done_tokens = it.supervisor.status()[0].work_tokens
            if done_tokens != seen_tokens:
                seen_tokens = done_tokens
                await node.check_after(STALL_S - 10.0)
        assert it.clock.late_s >= 2 * (STALL_S - 10.0) and handle.link.alive
