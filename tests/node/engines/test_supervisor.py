"""The state machine of each model, with real engine processes that follow a script."""

import asyncio
import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from node.app import ScriptedStore, scripted_entries
from node.engine.scripted.cache import ScriptedCache
from node.engine.scripted.script import Script, ScriptedModel, encode_script
from node.engines import load_history, swap_policy
from node.engines import processes as engines_module
from node.engines.memory_budget import Budget
from node.engines.processes import Hooks
from node.engines.residency_policy import ResidencyPolicy
from node.engines.slot import EngineHandle, EngineKind
from node.engines.supervisor import Supervisor
from node.errors import DoesNotFit, LoadFailure, MemoryShort, ModelBusy, ShuttingDown, UnknownModel
from node.hardware import Machine
from node.ipc.generate import GenerateRequest
from node.ipc.messages import Pressure
from node.models.formats import ModelFormats
from node.models.store import Contents, ModelEntry
from node.protocol.lifecycle import ModelPolicy, Policies
from node.protocol.messages import ModelState
from node.settings import Settings
from serving.units import GIB
from tests.node.engines.processes import engine_pid

WAIT_S = 30.0


class LateClock:
    """The machine's clock, `late_s` later; it stands still at `stopped_s`."""

    def __init__(self) -> None:
        self.late_s = 0.0
        self.stopped_s: float | None = None

    def __call__(self) -> float:
        return (time.monotonic() if self.stopped_s is None else self.stopped_s) + self.late_s


class World:
    """A supervisor, its clock, and the states that it went through."""

    def __init__(
        self, supervisor: Supervisor, residency: ResidencyPolicy, clock: LateClock
    ) -> None:
        self.clock = clock
        self.supervisor = supervisor
        self.residency = residency
        self.states: list[ModelState] = []
        self.changed = asyncio.Event()

    def on_change(self) -> None:
        states = [model.state for model in self.supervisor.status()[:1]]
        # The progress of a load is reported, too.
        self.states += states if states != self.states[-1:] else []
        self.changed.set()

    async def until(self, state: ModelState) -> None:
        while self.supervisor.status()[0].state is not state:
            self.changed.clear()
            await self.changed.wait()

    async def entry(self, name: str = "scripted") -> ModelEntry:
        return await self.supervisor.find(name)

    def pin(self, *names: str) -> None:
        """Pins these models and no others, as a router does."""
        pinned = {name: ModelPolicy(pinned=True) for name in names}
        self.residency.set(Policies("router", pinned))

    async def touch(self, name: str = "scripted") -> EngineHandle:
        """One short request."""
        with self.supervisor.serving(await self.entry(name)) as lease:
            return await lease.ready()


@contextlib.asynccontextmanager
async def world(
    script: Script | None = None,
    *,
    budget_bytes: int = 64 * GIB,
    entries: Sequence[ModelEntry] | None = None,
    **fields: Any,
) -> AsyncIterator[World]:
    script = script or Script()
    store = ScriptedStore(scripted_entries(script) if entries is None else entries, ModelFormats())
    settings = Settings(home=Path("/nowhere"), engine="scripted", **fields)
    kind = EngineKind(settings, Machine("x", 64 * GIB), encode_script(script))
    residency, hooks = ResidencyPolicy(settings), Hooks(lambda: made.on_change())
    clock = LateClock()
    supervisor = Supervisor(store, Budget(budget_bytes), kind, residency, hooks, clock)
    made = World(supervisor, residency, clock)
    try:
        async with asyncio.timeout(WAIT_S):
            await supervisor.refresh()
            yield made
    finally:
        await supervisor.close(0.0)


async def test_many_that_wait_share_one_load() -> None:
    async with world(Script(load_delay_s=0.1)) as it:
        handles = await asyncio.gather(*(it.touch() for _ in range(20)))
        assert len({engine_pid(handle.link) for handle in handles}) == 1
        assert it.states == [ModelState.ON_DISK, ModelState.LOADING, ModelState.READY]


async def test_a_loaded_model_counts_its_tokens_and_another_has_no_counts() -> None:
    async with world() as it:
        assert it.supervisor.status()[0].decoded_tokens is None
        handle = await it.touch()
        row = handle.link.submit(GenerateRequest("u", (1, 2, 3), 9), lambda row, last: None)
        while not row.ended:
            await row.next()
        # Prefilled tokens follow within a second, with the engine's next report.
        assert it.supervisor.status()[0].decoded_tokens == 9


async def test_one_that_stops_waiting_does_not_cancel_the_load() -> None:
    async with world(Script(load_delay_s=0.1)) as it:
        first = asyncio.create_task(it.touch())
        second = asyncio.create_task(it.touch())
        await it.until(ModelState.LOADING)
        first.cancel()
        await second
        assert it.states.count(ModelState.LOADING) == 1
        with pytest.raises(asyncio.CancelledError):
            await first


async def test_a_load_that_nobody_waits_for_any_more_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(swap_policy, "ABANDONED_S", 0.05)
    async with world(Script(load_delay_s=60.0)) as it:
        only = asyncio.create_task(it.touch())
        await it.until(ModelState.LOADING)
        only.cancel()
        await it.until(ModelState.ON_DISK)
        assert it.supervisor.budget.leased_bytes == 0


async def test_a_model_whose_folder_is_another_one_now_keeps_its_engine_until_it_is_unloaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    old, new = (ModelEntry("a", tmp_path / name, GIB, 100, 0) for name in ("old", "new"))
    monkeypatch.setattr(ScriptedStore, "contents", lambda store: Contents((old,), ()))
    async with world(Script(models=(ScriptedModel("a"),))) as it:
        first = await it.touch("a")
        monkeypatch.setattr(ScriptedStore, "contents", lambda store: Contents((new,), ()))
        await it.supervisor.refresh()
        assert await it.touch("a") is first
        await it.supervisor.unload(await it.entry("a"))
        assert it.supervisor.status()[0].state is ModelState.ON_DISK
        await it.supervisor.refresh()
        assert (await it.touch("a")).entry.folder == new.folder
        assert not first.link.alive


async def test_an_older_look_at_the_disk_never_replaces_a_newer_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    old, new = (ModelEntry(name, tmp_path / name, GIB, 100, 0) for name in ("old", "new"))
    looks, began, goes_on = [(old,), (new,)], threading.Event(), threading.Event()

    def look(_store: ScriptedStore) -> Contents:
        found = looks.pop(0)
        if found == (old,):
            began.set()
            assert goes_on.wait(WAIT_S)
        return Contents(found, ())

    async with world() as it:
        monkeypatch.setattr(ScriptedStore, "contents", look)
        older = asyncio.create_task(it.supervisor.refresh())
        await asyncio.to_thread(began.wait, WAIT_S)
        newer = asyncio.create_task(it.supervisor.refresh())
        await asyncio.wait({newer}, timeout=0.05)
        goes_on.set()
        await asyncio.gather(older, newer)
        assert it.supervisor.names() == ["new"]


async def test_a_load_continues_for_a_client_that_retries() -> None:
    async with world(Script(load_delay_s=0.1)) as it:
        only = asyncio.create_task(it.touch())
        await it.until(ModelState.LOADING)
        only.cancel()
        await asyncio.wait({only})
        await it.touch()
        assert it.states.count(ModelState.LOADING) == 1


async def test_an_engine_is_not_stopped_while_it_serves() -> None:
    async with world() as it:
        entry = await it.entry()
        with it.supervisor.serving(entry) as lease:
            await lease.ready()
            with pytest.raises(ModelBusy, match="1 requests"):
                await it.supervisor.unload(entry)
            drain = asyncio.create_task(it.supervisor.drain(entry))
            await it.until(ModelState.DRAINING)
            late = asyncio.create_task(it.touch())
            await asyncio.wait({drain, late}, timeout=0.05)
            assert not drain.done() and not late.done()
        await drain
        await late
        assert it.states[-3:] == [ModelState.ON_DISK, ModelState.LOADING, ModelState.READY]


async def test_a_model_is_not_unloaded_while_it_loads() -> None:
    async with world(Script(load_delay_s=0.2)) as it:
        loading = asyncio.create_task(it.touch())
        await it.until(ModelState.LOADING)
        with pytest.raises(ModelBusy, match="being loaded"):
            await it.supervisor.unload(await it.entry())
        await loading


async def test_an_unload_ends_the_process_and_frees_its_memory() -> None:
    async with world() as it:
        handle = await it.touch()
        assert it.supervisor.budget.leased_bytes > GIB
        await it.supervisor.unload(await it.entry())
        assert it.supervisor.budget.leased_bytes == 0
        assert it.supervisor.status()[0].state is ModelState.ON_DISK
        with pytest.raises(ProcessLookupError):
            os.kill(engine_pid(handle.link), 0)
        await it.supervisor.unload(await it.entry())


async def test_a_dead_engine_is_started_again_by_the_next_request() -> None:
    async with world() as it:
        handle = await it.touch()
        os.kill(engine_pid(handle.link), signal.SIGKILL)
        await it.until(ModelState.ON_DISK)
        assert it.supervisor.budget.leased_bytes == 0
        again = await it.touch()
        assert engine_pid(again.link) != engine_pid(handle.link)


async def test_a_death_during_a_drain_ends_it() -> None:
    async with world() as it:
        entry = await it.entry()
        with it.supervisor.serving(entry) as lease:
            handle = await lease.ready()
            drain = asyncio.create_task(it.supervisor.drain(entry))
            await it.until(ModelState.DRAINING)
            os.kill(engine_pid(handle.link), signal.SIGKILL)
        await drain
        assert it.supervisor.status()[0].state is ModelState.ON_DISK


@pytest.mark.parametrize(
    ("script", "code"),
    [
        pytest.param(Script(unload_failure="It is stuck."), 1, id="fails"),
        pytest.param(Script(unload_delay_s=60), -9, id="hangs"),
    ],
)
async def test_an_unload_that_fails_or_hangs_frees_the_model_and_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, script: Script, code: int
) -> None:
    monkeypatch.setattr(engines_module, "STOP_GRACE_S", WAIT_S if code == 1 else 0.1)
    async with world(script) as it:
        await it.touch()
        await it.supervisor.unload(await it.entry())
        assert it.supervisor.status()[0].state is ModelState.ON_DISK
        assert it.supervisor.budget.leased_bytes == 0
        assert caplog.messages == [f"The engine of scripted ended with code {code}."]
        await it.touch()


async def test_a_failed_load_is_tried_again_after_a_cool_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world(Script(load_failure="Torn.")) as it:
        for _ in range(2):
            with pytest.raises(LoadFailure, match="Torn") as caught:
                await it.touch()
            assert caught.value.retry_after_s in range(1, 6)
        status = it.supervisor.status()[0]
        assert (status.state, status.reason) == (ModelState.FAILED, "Torn.")
        assert it.states.count(ModelState.LOADING) == 1
        assert it.supervisor.budget.leased_bytes == 0
        await it.supervisor.unload(await it.entry())
        assert it.supervisor.status()[0].state is ModelState.ON_DISK
        monkeypatch.setattr(load_history, "LOAD_COOL_DOWN_S", 0.0)
        for _ in range(2):
            with pytest.raises(LoadFailure):
                await it.touch()
        assert it.states.count(ModelState.LOADING) == 3


async def test_a_load_that_fails_unexpectedly_is_a_failed_one_and_not_retried_at_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: object) -> None:
        raise ZeroDivisionError("Nobody thought of that.")

    monkeypatch.setattr(engines_module.EngineProcesses, "_started", fail)
    async with world() as it:
        with pytest.raises(LoadFailure, match="agent failed while it loaded"):
            await it.touch()
        assert it.supervisor.status()[0].state is ModelState.FAILED
        assert it.states.count(ModelState.LOADING) == 1
        assert it.supervisor.budget.leased_bytes == 0
    assert "Nobody thought of that." in caplog.text


async def test_what_does_not_fit_beside_what_is_pinned_is_refused_and_changes_nothing() -> None:
    script = Script(models=(ScriptedModel("a"), ScriptedModel("b")))
    async with world(script, budget_bytes=2 * GIB) as it:
        it.pin("a")
        await it.touch("a")
        with pytest.raises(DoesNotFit, match=r"b needs 1\.6 GiB, but 0\.2 GiB .* 1\.4 GiB too few"):
            await it.touch("b")
        assert it.supervisor.budget.leased_bytes == 1.75 * GIB
        await it.supervisor.unload(await it.entry("a"))
        await it.touch("b")


async def test_an_unload_on_a_condition_that_does_not_hold_is_refused() -> None:
    async with world() as it:
        await it.touch()
        entry, (status,) = await it.entry(), it.supervisor.status()
        with pytest.raises(ModelBusy, match="loaded again"):
            await it.supervisor.unload(entry, generation=status.generation + 1)
        with pytest.raises(ModelBusy, match="used meanwhile"):
            await it.supervisor.unload(entry, generation=status.generation, min_idle_s=60.0)
        it.clock.late_s = 60.0
        it.pin("scripted")
        with pytest.raises(ModelBusy, match="pinned"):
            await it.supervisor.unload(entry, generation=status.generation, min_idle_s=60.0)
        it.pin()
        await it.supervisor.unload(entry, generation=status.generation, min_idle_s=60.0)
        assert it.supervisor.status()[0].state is ModelState.ON_DISK


async def test_the_status_reports_what_a_model_takes_and_how_it_is_used() -> None:
    async with world(Script(load_delay_s=0.05), budget_bytes=2 * GIB) as it:
        (before,) = it.supervisor.status()
        assert (before.memory_bytes, before.generation, before.idle_s) == (1.75 * GIB, 0, None)
        with it.supervisor.serving(await it.entry()) as lease:
            await lease.ready()
            (leased,) = it.supervisor.status()
            assert (leased.leases, leased.idle_s, leased.generation > 0) == (1, None, True)
            assert leased.load_s is not None and leased.load_s >= 0.05
        it.clock.late_s = 5.0
        (idle,) = it.supervisor.status()
        assert idle.leases == 0
        assert idle.idle_s == pytest.approx(5.0, abs=0.5)


async def test_an_engine_killed_in_its_load_leaves_nothing_behind() -> None:
    own = psutil.Process()
    others = set(own.children())
    async with world(Script(load_delay_s=60.0)) as it:
        waiting = asyncio.create_task(it.touch())
        await it.until(ModelState.LOADING)
        while not (engines := set(own.children()) - others):
            await asyncio.sleep(0)
        engines.pop().kill()
        with pytest.raises(LoadFailure, match="ended while it loaded"):
            await waiting
        assert it.supervisor.budget.leased_bytes == 0
        assert it.supervisor.status()[0].state is ModelState.FAILED


KV = 64 * 1024
CACHE = ScriptedCache(capacity_tokens=1_000_000)


def stored_bytes(handle: EngineHandle) -> int:
    assert handle.link.stats is not None
    return handle.link.stats.stored_kv_bytes


async def generate(handle: EngineHandle, uid: str, tokens: tuple[int, ...]) -> None:
    row = handle.link.submit(GenerateRequest(uid, tokens, 1), lambda row, last: None)
    while not row.ended:
        await row.next()


async def until_leased(handle: EngineHandle, accept: Callable[[int], bool]) -> int:
    """Waits for a lease with such an amount of stored KV."""
    while True:
        lease = handle.link.stats.lease if handle.link.stats else None
        if lease is not None and accept(lease.stored_kv_bytes):
            return lease.stored_kv_bytes
        await asyncio.sleep(0)


async def test_a_second_load_shrinks_the_lease_of_stored_kv_and_an_unload_restores_it() -> None:
    models = (ScriptedModel("a", kv_bytes_per_token=KV), ScriptedModel("b", kv_bytes_per_token=KV))
    async with world(Script(models=models, cache=CACHE), budget_bytes=6 * GIB) as it:
        first = await it.touch("a")
        alone_bytes = await until_leased(first, lambda size: size > 0)
        assert alone_bytes == (6 * GIB - it.supervisor.budget.leased_bytes) * 9 // 10
        # More than a half of it is in use.
        for uid, length in enumerate((12_000, 12_001, 12_002)):
            await generate(first, str(uid), tuple(range(length)))
        await first.link.set_lease(it.supervisor.budget.lease("a"))
        full_bytes = stored_bytes(first)
        assert full_bytes > alone_bytes // 2
        second = await it.touch("b")
        assert stored_bytes(first) < full_bytes
        shared_bytes = await until_leased(second, lambda size: size > 0)
        assert await until_leased(first, lambda size: size < alone_bytes) == shared_bytes
        assert stored_bytes(first) <= shared_bytes
        assert it.supervisor.engines()["a"].cache_events == {"stored": 3, "evicted": 3}
        leased_bytes = it.supervisor.budget.leased_bytes + it.supervisor.budget.stored_bytes
        assert leased_bytes <= 6 * GIB
        await it.supervisor.unload(await it.entry("a"))
        assert await until_leased(second, lambda size: size > shared_bytes) < 6 * GIB


async def test_an_engine_that_keeps_what_it_must_give_back_fails_the_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("node.engines.memory_budget.GIVE_BACK_S", 0.05)
    script = Script(models=(ScriptedModel("a"), ScriptedModel("b")))
    async with world(script) as it:
        first = await it.touch("a")
        await until_leased(first, lambda size: size > 0)
        os.kill(engine_pid(first.link), signal.SIGSTOP)
        with pytest.raises(LoadFailure, match="a did not give back memory"):
            await it.touch("b")
        assert it.supervisor.budget.room_bytes("a") == 64 * GIB


async def test_pinned_kv_is_not_freed_for_a_second_model() -> None:
    models = (ScriptedModel("a", kv_bytes_per_token=KV), ScriptedModel("b", kv_bytes_per_token=KV))
    async with world(Script(models=models, cache=CACHE), budget_bytes=6 * GIB) as it:
        it.pin("a")
        first = await it.touch("a")
        await until_leased(first, lambda size: size > 0)
        before_bytes = it.supervisor.budget.leased_bytes
        row = first.link.submit(
            GenerateRequest("w", tuple(range(30_000)), 1, warm=True), lambda row, last: None
        )
        while not row.ended:
            await row.next()
        while it.supervisor.budget.leased_bytes == before_bytes:
            await asyncio.sleep(0)
        assert it.supervisor.budget.leased_bytes == before_bytes + 30_000 * KV
        with pytest.raises(DoesNotFit):
            await it.touch("b")
        await first.link.clear_cache()
        assert it.supervisor.budget.leased_bytes == before_bytes
        await it.touch("b")


async def test_an_engine_that_was_late_gets_its_lease_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("node.engines.memory_budget.GIVE_BACK_S", 0.05)
    script = Script(models=(ScriptedModel("a"), ScriptedModel("b")))
    async with world(script) as it:
        first = await it.touch("a")
        alone_bytes = await until_leased(first, lambda size: size > 0)
        os.kill(engine_pid(first.link), signal.SIGSTOP)
        with pytest.raises(LoadFailure, match="a did not give back memory"):
            await it.touch("b")
        before = first.link.stats
        os.kill(engine_pid(first.link), signal.SIGCONT)
        # The cut waits in its queue; what the failed load left is sent after it.
        while first.link.stats is before:
            await asyncio.sleep(0)
        assert await until_leased(first, lambda size: size >= alone_bytes) == alone_bytes


async def test_the_progress_of_a_load_is_logged_at_each_quarter(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with world(Script(load_delay_s=0.4)) as it:
        await it.touch()
    logged = [text for text in caplog.messages if text.startswith("Loading ")]
    assert logged == [f"Loading scripted: {percent} %." for percent in (25, 50, 75)]


async def test_under_hard_pressure_what_is_loaded_serves_and_nothing_else_is_loaded() -> None:
    async with world(Script(models=(ScriptedModel("a"), ScriptedModel("b")))) as it:
        await it.touch("a")
        it.supervisor.set_pressure(Pressure.HARD)
        await it.touch("a")
        with pytest.raises(MemoryShort) as caught:
            await it.touch("b")
        assert (caught.value.status, caught.value.retry_after_s) == (503, 10)
        assert "no model is loaded" in caught.value.message
        it.supervisor.set_pressure(Pressure.SOFT)
        await it.touch("b")


async def test_pressure_reaches_engines_and_those_loaded_later() -> None:
    models = (ScriptedModel("a"), ScriptedModel("b"))
    async with world(Script(models=models, cache=CACHE)) as it:
        first = await it.touch("a")
        await generate(first, "u", (1, 2, 3))
        slow = asyncio.create_task(it.touch("b"))
        while it.supervisor.status()[1].state is not ModelState.LOADING:
            await asyncio.sleep(0)
        it.supervisor.set_pressure(Pressure.HARD)
        second = await slow
        for number, handle in enumerate((first, second)):
            await generate(handle, f"{number}", (4,))
        for handle, events in ((first, {"stored": 1, "evicted": 1}), (second, {})):
            await handle.link.set_lease(it.supervisor.budget.lease(handle.entry.name))
            assert it.supervisor.engines()[handle.entry.name].cache_events == events


async def test_the_sizes_of_an_engine_are_logged_at_its_load(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with world(max_rows=3) as it:
        handle = await it.touch()
        assert handle.info.max_rows == it.supervisor.status()[0].max_rows == 3
    lines = [text for text in caplog.messages if text.startswith("scripted: ")]
    assert "scripted: max_rows 3 (as set)" in lines
    for name in ("live KV", "stored KV", "prefill_chunk", "decode_stall_target", "snapshots"):
        assert [text.startswith(f"scripted: {name} ") for text in lines].count(True) == 1


async def test_two_names_of_one_folder_share_an_engine(tmp_path: Path) -> None:
    script = Script(models=(ScriptedModel("a"), ScriptedModel("b")))
    entries = [ModelEntry(name, tmp_path, GIB, 100, 0) for name in "ab"]
    async with world(script, entries=entries) as it:
        assert (await it.touch("a")).link is (await it.touch("b")).link
        assert {model.state for model in it.supervisor.status()} == {ModelState.READY}


async def test_an_unknown_name_is_answered_with_near_ones() -> None:
    async with world() as it:
        with pytest.raises(UnknownModel, match="Did you mean scripted"):
            await it.entry("scriptet")
        with pytest.raises(UnknownModel, match="node.$"):
            await it.entry("x" * 100_000)


async def test_a_close_ends_engines_and_loads() -> None:
    script = Script(
        models=(ScriptedModel("a"), ScriptedModel("b")),
    )
    async with world(script) as it:
        handle = await it.touch("a")
        loading = asyncio.create_task(it.touch("b"))
        while it.supervisor.status()[1].state is not ModelState.LOADING:
            await it.changed.wait()
            it.changed.clear()
        await it.supervisor.close(5.0)
        with pytest.raises(ShuttingDown):
            await loading
        with pytest.raises(ProcessLookupError):
            os.kill(engine_pid(handle.link), 0)
        with pytest.raises(ShuttingDown):
            await it.touch("b")
