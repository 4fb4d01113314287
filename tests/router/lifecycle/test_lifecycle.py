"""Tests the effects of policies and schedules, on a node that follows orders, over real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import apscheduler.executors.base
import apscheduler.schedulers.base
import apscheduler.triggers.interval
import msgspec
import pytest

from node.protocol.lifecycle import PATH_PULL, PATH_SHARE, PATH_UNLOAD, Share
from node.protocol.messages import PATH_LOAD, ModelState, StatusEvent, encode_status
from registry import audit, nodes, policies, schedules
from registry.records import PolicyRecord, ScheduleRecord
from router.app import open_core
from router.core import Core
from router.lifecycle.lifecycle import Lifecycle
from router.settings import Settings
from tests.fakes import FakeClock
from tests.router.conftest import (
    WAIT_S,
    Request,
    ScriptedNode,
    StartNode,
    model_status,
    node_record,
    node_status,
)


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


DAILY = ScheduleRecord("s", "m", "id-a", "0 8 * * *", "0 20 * * *", "UTC", at("2026-11-27T00:00"))


@dataclass
class Playing:
    """A node agent that loads and unloads as ordered, and reports it."""

    node: ScriptedNode
    fields: dict[str, Any] = field(default_factory=dict)
    orders: list[tuple[str, str]] = field(default_factory=list)
    refuses: bool = False

    def status(self) -> StatusEvent:
        return StatusEvent(node_status(model_status("m", **self.fields), node_id="id-a"))

    async def show(self, **fields: Any) -> None:
        self.fields |= fields
        self.node.first_events = (self.status(),)
        await self.node.tell(self.status())

    async def script(self, request: Request) -> None:
        model = json.loads(request.body)["model"]
        self.orders.append((request.target, model))
        if self.refuses:
            await request.answer(b'{"message": "It is in use."}', "409 Conflict")
            return
        state = ModelState.READY if request.target == PATH_LOAD else ModelState.ON_DISK
        await request.answer(b"{}")
        await self.show(state=state)


@pytest.fixture
async def playing(start_node: StartNode) -> Playing:
    async def late(request: Request) -> None:
        await found.script(request)

    node = await start_node(late)
    found = Playing(node, {"state": ModelState.ON_DISK})
    await found.show()
    return found


@asynccontextmanager
async def running(home: Path, playing: Playing, wall: FakeClock) -> AsyncIterator[Core]:
    async with open_core(Settings(home=home), wall) as core:
        async with core.registry.read() as session:
            known = await nodes.list_all(session)
        if not known:
            record = node_record(playing.node.url)
            await core.registry.write(partial(nodes.add, record=record))
            await asyncio.wait_for(core.watcher.watch(record), WAIT_S)
        await until(lambda: bool(playing.node.policies) and core.fleet.snapshot[0].reachable)
        yield core


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.005)


def pending(lifecycle: Lifecycle) -> str | None:
    """The pending action of the schedule `s`."""
    record = lifecycle.timetable.find("s")
    return record.pending if record else None


async def put(core: Core, record: PolicyRecord) -> None:
    await core.registry.write(partial(policies.put, record=record))
    core.lifecycle.put_policy(record)


async def add(core: Core, record: ScheduleRecord) -> None:
    await core.registry.write(partial(schedules.add, record=record))
    core.lifecycle.add_schedule(record)


async def audited(core: Core) -> list[tuple[str, str]]:
    async with core.registry.read() as session:
        entries = reversed(await audit.recent(session, 50))
    return [(each.actor, each.verb) for each in entries if each.verb.startswith("model.")]


async def test_a_pin_is_pushed_and_brought_about_and_outlives_the_router(
    tmp_path: Path, playing: Playing
) -> None:
    wall = FakeClock(at("2026-11-27T07:00"))
    async with running(tmp_path, playing, wall) as core:
        await put(core, PolicyRecord("m", "id-a", pinned=True, keep_alive_s=None))
        await until(lambda: bool(playing.orders))
        await until(lambda: len(playing.node.policies) == 2)
        assert playing.node.policies[-1]["models"] == {"m": {"pinned": True}}
        await until(lambda: core.fleet.snapshot[0].status is not None)
    await playing.show(state=ModelState.ON_DISK, pinned=True)
    playing.node.policies.clear()
    async with running(tmp_path, playing, wall) as core:
        await until(lambda: len(playing.orders) == 2)
        assert playing.node.policies == [
            {"router_id": core.router_id, "models": {"m": {"pinned": True}}}
        ]
    assert playing.orders == [(PATH_LOAD, "m")] * 2


async def test_a_scheduled_load_and_unload_each_happen_once_over_a_restart(
    tmp_path: Path, playing: Playing
) -> None:
    wall = FakeClock(at("2026-11-27T07:59"))
    async with running(tmp_path, playing, wall) as core:
        await add(core, DAILY)
        await core.lifecycle.settle()
        assert playing.orders == []
        wall.now_s = at("2026-11-27T08:00")
        await core.lifecycle.settle()
        await until(lambda: pending(core.lifecycle) is None)
        await core.lifecycle.settle()
        assert playing.node.policies[-1]["models"] == {"m": {"pinned": True}}
    async with running(tmp_path, playing, wall) as core:
        await core.lifecycle.settle()
        assert playing.orders == [(PATH_LOAD, "m")]
        assert core.lifecycle.timetable.records[0].load_fired_s == at("2026-11-27T08:00")
    wall.now_s = at("2026-11-27T20:30")
    async with running(tmp_path, playing, wall) as core:
        await until(lambda: pending(core.lifecycle) is None and len(playing.orders) == 2)
        assert playing.node.policies[-1]["models"] == {}
        await until(lambda: not core.lifecycle.actions._tasks)
        assert await audited(core) == [("schedule", "model.load"), ("schedule", "model.unload")]
    assert playing.orders == [(PATH_LOAD, "m"), (PATH_UNLOAD, "m")]


async def test_a_load_that_is_due_while_its_node_is_away_waits_for_it(
    tmp_path: Path, playing: Playing
) -> None:
    wall = FakeClock(at("2026-11-27T07:59"))
    async with running(tmp_path, playing, wall) as core:
        await add(core, replace(DAILY, unload_cron=None))
        view = core.fleet.snapshot[0]
        core.fleet.lost(view.node_id, "gone")
        wall.now_s = at("2026-11-27T08:00")
        await core.lifecycle.settle()
        assert pending(core.lifecycle) == "load"
        assert view.status is not None and playing.orders == []
        core.fleet.on_status(view.node_id, view.status)
        await until(lambda: pending(core.lifecycle) is None)
        assert playing.orders == [(PATH_LOAD, "m")]


async def test_a_model_that_left_before_a_missed_unload_is_not_loaded_again(
    tmp_path: Path, playing: Playing
) -> None:
    wall = FakeClock(at("2026-11-27T08:00"))
    async with running(tmp_path, playing, wall) as core:
        await add(core, replace(DAILY, load_cron="0 8 * * 1-5", unload_cron="0 20 * * 1-5"))
        await core.lifecycle.settle()
        await until(lambda: playing.orders == [(PATH_LOAD, "m")])
    await playing.show(state=ModelState.ON_DISK)
    playing.node.policies.clear()
    wall.now_s = at("2026-11-29T10:00")
    async with running(tmp_path, playing, wall) as core:
        await until(lambda: not core.lifecycle.actions._tasks)
        assert playing.node.policies[-1]["models"] == {}
    assert playing.orders == [(PATH_LOAD, "m")]


async def test_what_a_schedule_could_not_do_is_done_after_a_restart_and_once(
    tmp_path: Path, playing: Playing
) -> None:
    wall = FakeClock(at("2026-11-27T20:00"))
    await playing.show(state=ModelState.READY, leases=1)
    async with running(tmp_path, playing, wall) as core:
        await add(core, replace(DAILY, load_cron=None))
        await core.lifecycle.settle()
        assert pending(core.lifecycle) == "unload"
    wall.advance(3600)
    async with running(tmp_path, playing, wall) as core:
        assert pending(core.lifecycle) == "unload"
        await playing.show(leases=0)
        await until(lambda: pending(core.lifecycle) is None)
    assert playing.orders == [(PATH_UNLOAD, "m")]
    await playing.show(state=ModelState.READY)
    async with running(tmp_path, playing, wall) as core:
        await core.lifecycle.settle()
        await until(lambda: not core.lifecycle.actions._tasks)
        assert pending(core.lifecycle) is None
    assert playing.orders == [(PATH_UNLOAD, "m")]


async def test_an_idle_model_is_unloaded_and_one_in_use_is_no_error(
    tmp_path: Path, playing: Playing, caplog: pytest.LogCaptureFixture
) -> None:
    wall = FakeClock(at("2026-11-27T07:59"))
    async with running(tmp_path, playing, wall) as core:
        playing.refuses = True
        await playing.show(state=ModelState.READY, keep_alive_s=60.0, idle_s=61.0, generation=4)
        await until(lambda: core.fleet.snapshot[0].status == playing.status().status)
        await core.lifecycle.sweep()
        await until(lambda: len(playing.orders) == 1 and not core.lifecycle.actions._tasks)
        assert await audited(core) == []
        await core.lifecycle.sweep()
        assert len(playing.orders) == 1, "it is ordered again only after a while"
    playing.refuses = False
    async with running(tmp_path, playing, wall) as core:
        await core.lifecycle.sweep()
        await until(lambda: len(playing.orders) == 2 and not core.lifecycle.actions._tasks)
        assert await audited(core) == [("idle", "model.unload")]
        body = json.loads(playing.node.requests[-1].body)
        assert body == {"model": "m", "generation": 4, "min_idle_s": 60.0}
    assert "in use" not in caplog.text


async def test_maintenance_empties_a_node_and_nothing_is_loaded_there(
    tmp_path: Path, playing: Playing
) -> None:
    wall = FakeClock(at("2026-11-27T07:59"))
    async with running(tmp_path, playing, wall) as core:
        own = {"router_id": core.router_id}
        await put(core, PolicyRecord("m", "", pinned=True, keep_alive_s=None))
        await until(lambda: playing.orders == [(PATH_LOAD, "m")])
        core.fleet.set_state("id-a", "maintenance")
        await until(lambda: playing.orders == [(PATH_LOAD, "m"), (PATH_UNLOAD, "m")])
        await until(
            lambda: playing.node.policies[-1] == {**own, "models": {}, "in_maintenance": True}
        )
        core.lifecycle.reconcile()
        await until(lambda: not core.lifecycle.actions._tasks)
        assert len(playing.orders) == 2
        core.fleet.set_state("id-a", "active")
        await until(lambda: playing.node.policies[-1] == {**own, "models": {"m": {"pinned": True}}})
        core.lifecycle.forget_node("id-a")
        assert core.lifecycle.policies.records != ()


async def test_a_node_that_leaves_is_sent_empty_policies(
    tmp_path: Path, playing: Playing, caplog: pytest.LogCaptureFixture
) -> None:
    wall = FakeClock(at("2026-11-27T07:59"))
    async with running(tmp_path, playing, wall) as core:
        await put(core, PolicyRecord("m", "", pinned=True, keep_alive_s=None))
        await until(lambda: playing.node.policies[-1]["models"] != {})
        await core.lifecycle.actions.withdraw_policies("id-a")
        assert playing.node.policies[-1] == {"router_id": core.router_id, "models": {}}
        pushes = len(playing.node.policies)
        core.lifecycle.reconcile()
        await until(lambda: not core.lifecycle.actions._tasks)
        assert len(playing.node.policies) == pushes, "a pin of every node is not pushed to it again"
        core.fleet.lost("id-a", "gone")
        await core.lifecycle.actions.withdraw_policies("id-a")
        assert len(playing.node.policies) == pushes
        core.lifecycle.forget_node("id-a")


async def test_a_node_that_does_not_answer_leaves_all_the_same(
    tmp_path: Path, playing: Playing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.lifecycle.action_runner.WITHDRAW_S", 0.0)
    wall = FakeClock(at("2026-11-27T07:59"))
    async with running(tmp_path, playing, wall) as core:
        await core.lifecycle.actions.withdraw_policies("id-a")
        await core.watcher.unwatch("id-a")
        core.lifecycle.forget_node("id-a")


async def test_why_what_is_pending_failed_is_reported_until_it_is_done_or_its_node_is_gone(
    tmp_path: Path, playing: Playing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.lifecycle.action_runner.LOAD_RETRY_S", 0.0)
    wall = FakeClock(at("2026-11-27T08:00"))
    playing.refuses = True
    async with running(tmp_path, playing, wall) as core:
        lifecycle = core.lifecycle
        for schedule_id, node_id in (("s", "id-a"), ("anywhere", "")):
            record = replace(DAILY, id=schedule_id, node_id=node_id, unload_cron=None)
            await add(core, record)
        await lifecycle.settle()
        await until(lambda: lifecycle.pending_error("s") is not None)
        for schedule_id in ("s", "anywhere"):
            assert "It is in use." in str(lifecycle.pending_error(schedule_id))
        playing.refuses = False
        lifecycle.reconcile()
        await until(lambda: pending(lifecycle) is None)
        assert lifecycle.pending_error("s") is None
        lifecycle.forget_node("id-a")
        assert not len(lifecycle.actions.attempts)


async def test_the_timers_themselves_fire_a_schedule_and_an_idle_unload(
    tmp_path: Path, playing: Playing, monkeypatch: pytest.MonkeyPatch
) -> None:
    wall = FakeClock(at("2026-11-27T07:59:59"))

    class Moved(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
            return datetime.fromtimestamp(wall.now_s, tz)

    for module in (
        apscheduler.executors.base,
        apscheduler.schedulers.base,
        apscheduler.triggers.interval,
    ):
        monkeypatch.setattr(module, "datetime", Moved)
    async with running(tmp_path, playing, wall) as core:
        await add(core, replace(DAILY, unload_cron=None))
        wall.now_s = at("2026-11-27T08:00")
        core.lifecycle.timers.wakeup()
        await until(lambda: playing.orders == [(PATH_LOAD, "m")])
        await playing.show(keep_alive_s=60.0, idle_s=61.0)
        await until(lambda: core.fleet.snapshot[0].status == playing.status().status)
        await until(lambda: not core.lifecycle.actions._tasks)
        wall.advance(6)
        core.lifecycle.timers.wakeup()
        await until(lambda: len(playing.orders) == 2)
        assert playing.orders[1] == (PATH_UNLOAD, "m")


@dataclass
class Giving:
    """A node agent that has the model, and gives tickets for it or does not."""

    name: str
    gives: bool = True
    requested: int = 0

    @property
    def status(self) -> StatusEvent:
        whole = model_status("m", state=ModelState.ON_DISK)
        return StatusEvent(node_status(whole, node_id=f"id-{self.name}"))

    async def script(self, request: Request) -> None:
        assert request.target == PATH_SHARE
        self.requested += 1
        if self.gives:
            share = Share(f"ticket-{self.name}", "hub:org/m@c", ())
            await request.answer(msgspec.json.encode(share))
        else:
            await request.answer(b'{"message": "Its files cannot be read."}', "500 Broken")


async def test_a_copy_that_was_cut_short_goes_on_with_a_new_ticket_from_another_node(
    tmp_path: Path, playing: Playing, start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.lifecycle.attempts.RETRY_S", 0.0)
    tickets: list[str] = []

    async def pulling(request: Request) -> None:
        assert request.target == PATH_PULL
        order = json.loads(request.body)
        assert (order["model"], order["resumes"]) == ("m", True)
        tickets.append(order["peer"]["share"]["ticket"])
        begun = node_status(model_status("m", state=ModelState.PULLING), node_id="id-a")
        await request.answer(encode_status(begun), "202 Accepted")
        await playing.show(wants_peer=False)

    playing.node.script = pulling
    givers = [Giving("b", gives=False), Giving("c"), Giving("d")]
    async with running(tmp_path, playing, FakeClock(at("2026-11-27T07:00"))) as core:
        for each in givers:
            node = await start_node(each.script, first_events=(each.status,))
            record = node_record(node.url, each.name)
            await asyncio.wait_for(core.watcher.watch(record), WAIT_S)

        async def again(count: int) -> None:
            await playing.show(state=ModelState.PULLING, wants_peer=True)
            await until(lambda: len(tickets) == count and not core.lifecycle.actions._tasks)

        await again(1)
        await again(2)
        assert ("resume", "model.pull") in await audited(core)
    assert sorted(tickets) == ["ticket-c", "ticket-d"]
    assert givers[0].requested
