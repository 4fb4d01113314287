"""Tests schedules, keep-alives and pins on real agents, once, with moved clocks."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import apscheduler.executors.base
import apscheduler.schedulers.base
import apscheduler.triggers.interval
import pytest

from node.engines.supervisor import Supervisor
from node.protocol.messages import ModelState, ModelStatus
from registry import audit, nodes, schedules
from registry.records import NodeRecord, ScheduleRecord
from router.app import open_core
from router.core import Core
from router.settings import Settings
from router.upstream.credentials import NodeCredential
from tests.acceptance.processes import Agent, agent, run_cli
from tests.fakes import FakeClock
from tests.faults.rig import add_real, until_async
from tests.node.serving import RunningAgent, running
from tests.router.conftest import RunningRouter, running_router
from tests.router.lifecycle.test_lifecycle import pending

WAIT_S = 20.0
MODEL = "scripted"


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """The clock of schedules and of APScheduler, a minute before eight on a Friday."""
    clock = FakeClock(at("2026-11-27T07:59"))

    class Moved(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
            return datetime.fromtimestamp(clock.now_s, tz)

    for module in (
        apscheduler.executors.base,
        apscheduler.schedulers.base,
        apscheduler.triggers.interval,
    ):
        monkeypatch.setattr(module, "datetime", Moved)
    return clock


@pytest.fixture
def mac(tmp_path: Path) -> Iterator[Agent]:
    with agent(tmp_path / "mac", {}) as running:
        yield running


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.01)


def state(core: Core) -> ModelState | None:
    view = core.fleet.by_name("mac")
    models = view.status.models if view and view.reachable and view.status else ()
    return next((model.state for model in models if model.name == MODEL), None)


async def begin(core: Core, mac: Agent) -> None:
    """A fleet of one node with a schedule for working days."""
    record = NodeRecord(
        mac.get("/fleet/status")["node_id"],
        "mac",
        mac.url,
        "agent",
        NodeCredential(mac.token).text(),
        core.lifecycle.timetable.wall(),
    )
    await core.registry.write(partial(nodes.add, record=record))
    await asyncio.wait_for(core.watcher.watch(record), WAIT_S)
    daily = ScheduleRecord(
        "s", MODEL, record.id, "0 8 * * 1-5", "0 20 * * 1-5", "UTC", core.lifecycle.timetable.wall()
    )
    await core.registry.write(partial(schedules.add, record=daily))
    core.lifecycle.add_schedule(daily)


async def done(core: Core) -> list[tuple[str, str]]:
    async with core.registry.read() as session:
        entries = reversed(await audit.recent(session, 50))
    return [(each.actor, each.verb) for each in entries if each.verb.startswith("model.")]


async def test_a_schedule_loads_and_unloads_once_each_with_restarts_between(
    tmp_path: Path, mac: Agent, wall: FakeClock
) -> None:
    settings = Settings(home=tmp_path / "router")
    async with open_core(settings, wall) as core:
        await begin(core, mac)
        assert state(core) is ModelState.ON_DISK
        wall.now_s = at("2026-11-27T08:00")
        core.lifecycle.timers.wakeup()
        await until(lambda: state(core) is ModelState.READY and pending(core.lifecycle) is None)
    wall.advance(60)
    async with open_core(settings, wall) as core:
        await until(lambda: state(core) is ModelState.READY)
        core.lifecycle.timers.wakeup()
        await core.lifecycle.settle()
        assert await done(core) == [("schedule", "model.load")]
    wall.now_s = at("2026-11-27T20:00:01")
    async with open_core(settings, wall) as core:
        await until(lambda: state(core) is ModelState.ON_DISK)
        await until(lambda: pending(core.lifecycle) is None and not core.lifecycle.actions._tasks)
        await core.lifecycle.settle()
        assert await done(core) == [("schedule", "model.load"), ("schedule", "model.unload")]


# --- keep-alives and pins ---


@dataclass
class Pair:
    """A router and an agent, and the agent's clock."""

    home: Path
    router: RunningRouter
    agent: RunningAgent
    clock: FakeClock

    async def say(self, *command: str) -> str:
        """A `router` command that has to succeed."""
        url = f"http://127.0.0.1:{self.router.port}"
        call = partial(run_cli, "router", self.home, *command, "--router", url)
        done = await asyncio.to_thread(call)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    async def reported(self, fits: Callable[[ModelStatus], bool]) -> ModelStatus:
        """Returns the agent's status of its model once that fits and the router has received it,
        too."""

        async def ask() -> ModelStatus | None:
            model = (await self.agent.status()).models[0]
            view = self.router.core.fleet.by_name("mac")
            received = view.status.models[0] if view and view.status else model
            return model if fits(model) and fits(received) else None

        found = await until_async(ask)
        assert isinstance(found, ModelStatus)
        return found

    async def sweep(self) -> None:
        lifecycle = self.router.core.lifecycle
        await lifecycle.sweep()
        await until(lambda: not lifecycle.actions._tasks)


@asynccontextmanager
async def pair(home: Path, monkeypatch: pytest.MonkeyPatch, **fields: Any) -> AsyncIterator[Pair]:
    """They are one node's fleet, whose settings are `fields`."""
    clock = FakeClock()
    monkeypatch.setattr("node.agent.agent.Supervisor", partial(Supervisor, clock=clock))
    async with running_router(home) as router, running(home / "mac", **fields) as agent:
        await add_real(router, agent, "mac")
        yield Pair(home, router, agent, clock)


async def test_a_model_that_is_idle_for_its_keep_alive_is_unloaded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair(tmp_path, monkeypatch) as it:
        assert (await it.agent.chat(max_tokens=2)).status_code == 200
        assert "kept for 10 min" in await it.say("keep-alive", MODEL, "10m")
        await it.reported(lambda model: model.keep_alive_s == 600.0)
        it.clock.advance(599)
        await it.reported(lambda model: model.idle_s == 599.0)
        await it.agent.chat(max_tokens=2)
        it.clock.advance(599)
        await it.reported(lambda model: model.idle_s == 599.0)
        assert (await it.reported(lambda model: True)).state is ModelState.READY
        it.clock.advance(1)
        await it.reported(lambda model: model.idle_s == 600.0)
        await it.sweep()
        await it.reported(lambda model: model.state is ModelState.ON_DISK)
        it.clock.advance(3600)
        await it.sweep()
        orders = [each for each in await done(it.router.core) if each[1].startswith("model.")]
        assert orders == [("idle", "model.unload")]


async def test_a_pin_reaches_the_agent_and_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair(tmp_path, monkeypatch, keep_alives=(("", 60.0),)) as it:
        assert "it stays loaded there" in await it.say("pin", MODEL, "--node", "mac")
        model = await it.reported(lambda model: model.pinned and model.state is ModelState.READY)
        assert model.keep_alive_s == 60.0
        it.clock.advance(3600)
        await it.reported(lambda model: (model.idle_s or 0.0) >= 3600.0)
        await it.sweep()
        assert (await it.reported(lambda model: True)).state is ModelState.READY
        await it.say("unpin", MODEL, "--node", "mac")
        await it.reported(lambda model: not model.pinned)
        await it.sweep()
        await it.reported(lambda model: model.state is ModelState.ON_DISK)
