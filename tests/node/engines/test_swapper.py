"""Which models are loaded and unloaded, with real engine processes that follow a script."""

import asyncio
import logging

import pytest

from node.engine.scripted.script import Script, ScriptedModel
from node.engines import swap_policy
from node.engines.lease import ANOTHER_IN_USE, BEING_UNLOADED, ModelAwaited
from node.errors import MemoryShort
from node.ipc.messages import Pressure
from node.protocol.messages import ModelState
from serving.units import GIB
from tests.node.engines.test_supervisor import world

TWO = Script(models=(ScriptedModel("a"), ScriptedModel("b")))
ROOM_FOR_ONE = 2 * GIB


async def test_a_waiting_request_gets_the_memory_of_a_model_that_is_pinned_no_more() -> None:
    script = Script(models=(ScriptedModel("a"), ScriptedModel("b"), ScriptedModel("c")))
    async with world(script, budget_bytes=5 * GIB, min_residency_s=0.0) as it:
        it.pin("a")
        first = await it.touch("a")
        with it.supervisor.serving(await it.entry("b")) as busy:
            await busy.ready()
            late = asyncio.create_task(it.touch("c"))
            await asyncio.wait({late}, timeout=0.05)
            assert first.link.alive and not late.done()
            it.pin()
            it.supervisor.on_residency_change()
            await it.until(ModelState.DRAINING)
            late.cancel()


async def test_an_idle_model_is_unloaded_for_another_one_and_its_memory_is_leased_again() -> None:
    async with world(TWO, budget_bytes=ROOM_FOR_ONE, min_residency_s=0.0) as it:
        first = await it.touch("a")
        second = await it.touch("b")
        assert not first.link.alive and second.link.alive
        assert it.supervisor.budget.leased_bytes == 1.75 * GIB
        assert [model.state for model in it.supervisor.status()] == [
            ModelState.ON_DISK,
            ModelState.READY,
        ]


async def test_a_busy_model_serves_new_requests_while_another_one_is_waited_for() -> None:
    async with world(TWO, budget_bytes=ROOM_FOR_ONE, min_residency_s=0.0) as it:
        with it.supervisor.serving(await it.entry("a")) as lease:
            handle = await lease.ready()
            late = asyncio.create_task(it.touch("b"))
            for _ in range(3):
                assert await it.touch("a") is handle
            assert not late.done()
        assert (await late).link.alive
        assert not handle.link.alive


async def test_after_the_longest_wait_a_busy_model_accepts_nothing_new() -> None:
    async with world(
        TWO, budget_bytes=ROOM_FOR_ONE, min_residency_s=0.0, max_swap_wait_s=0.05
    ) as it:
        order = []

        async def request(name: str) -> None:
            with it.supervisor.serving(await it.entry(name)) as lease:
                await lease.ready()
                order.append(name)

        with it.supervisor.serving(await it.entry("a")) as lease:
            await lease.ready()
            waiting = [asyncio.create_task(request("b"))]
            while not it.supervisor._swapper.is_closed("a"):
                await asyncio.sleep(0)
            waiting.append(asyncio.create_task(request("a")))
            await asyncio.wait(waiting, timeout=0.05)
            assert order == []
        await asyncio.gather(*waiting)
        assert order == ["b", "a"]


async def test_a_waiting_request_reports_what_it_waits_for() -> None:
    slow = Script(load_delay_s=0.1, models=TWO.models)
    async with world(
        slow, budget_bytes=ROOM_FOR_ONE, min_residency_s=0.0, max_swap_wait_s=0.05
    ) as it:
        a, b = await it.entry("a"), await it.entry("b")
        with it.supervisor.serving(a) as first, it.supervisor.serving(b) as other:
            loading = asyncio.create_task(first.ready())
            while (seen := first.awaited()) is None or not seen.progress:
                await asyncio.sleep(0)
            assert (seen.name, seen.blocked_by) == ("a", None)
            await loading
            with it.supervisor.serving(a) as third:
                assert first.awaited() is None and third.awaited() is None
                late = asyncio.create_task(other.ready())
                await asyncio.sleep(0)
                assert other.awaited() == ModelAwaited("b", 0.0, ANOTHER_IN_USE)
                while third.awaited() is None:
                    await asyncio.sleep(0)
                assert third.awaited() == ModelAwaited("a", 0.0, ANOTHER_IN_USE)
                assert first.awaited() is None
                drain = asyncio.create_task(it.supervisor.drain(a))
                await asyncio.sleep(0)
                assert third.awaited() == ModelAwaited("a", 0.0, BEING_UNLOADED)
            first.close()
            await drain
            await late
            assert other.awaited() is None


async def test_a_model_stays_for_its_minimum_residency() -> None:
    async with world(TWO, budget_bytes=ROOM_FOR_ONE, min_residency_s=0.3) as it:
        await it.touch("a")
        # Which was some time before, on a machine that is busy.
        ready_s = it.supervisor._slots.named("a").ready_s
        await it.touch("b")
        assert it.clock() - ready_s >= 0.3


async def test_under_hard_pressure_no_load_begins_and_a_request_that_waits_for_one_fails() -> None:
    async with world(TWO, budget_bytes=ROOM_FOR_ONE, min_residency_s=0.0) as it:
        with it.supervisor.serving(await it.entry("a")) as running:
            await running.ready()
            late = asyncio.create_task(it.touch("b"))
            await asyncio.sleep(0)
            it.supervisor.set_pressure(Pressure.HARD)
            with pytest.raises(MemoryShort):
                await late
        assert it.supervisor.status()[0].state is ModelState.READY


async def test_the_load_of_a_pinned_model_continues_though_nobody_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(swap_policy, "ABANDONED_S", 0.0)
    async with world(Script(load_delay_s=0.1)) as it:
        it.pin("scripted")
        only = asyncio.create_task(it.touch())
        await it.until(ModelState.LOADING)
        only.cancel()
        await it.until(ModelState.READY)


async def test_a_load_is_cancelled_once_however_often_it_is_checked(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(swap_policy, "ABANDONED_S", 0.0)
    async with world(Script(load_delay_s=60.0)) as it:
        only = asyncio.create_task(it.touch())
        await it.until(ModelState.LOADING)
        only.cancel()
        await asyncio.wait({only})
        while it.supervisor.status()[0].state is ModelState.LOADING:
            it.supervisor._swapper.decide()
            await asyncio.sleep(0)
        assert [text for text in caplog.messages if "cancelled" in text] == [
            "No request waits for scripted: its load is cancelled."
        ]
