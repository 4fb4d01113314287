"""The link to a real engine process that follows a script."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from node.engine.scripted.cache import ScriptedCache
from node.engine.scripted.script import Script, ScriptedModel, encode_script
from node.engines.link import EngineLink
from node.engines.row_stream import RowStream
from node.errors import (
    EngineDied,
    EngineFault,
    EngineUnresponsive,
    LoadFailure,
    MemoryShort,
    RowRefused,
    ShuttingDown,
)
from node.hardware import PACKAGE_ROOT
from node.ipc.child_process import spawn
from node.ipc.generate import GenerateRequest
from node.ipc.messages import (
    BROKEN_STATUS,
    Broken,
    CacheEvent,
    CacheEventKind,
    Delta,
    EngineSpec,
    EngineStats,
    Marked,
    MemoryLease,
    Pressure,
    Progress,
)
from node.protocol.messages import FinishReason
from tests.fakes import AT_ONCE_S
from tests.node.engines.processes import engine_pid

WAIT_S = 30.0
pytestmark = pytest.mark.usefixtures("link_bytes")


def spec(script: Script) -> EngineSpec:
    lease = MemoryLease(0, 0, 0)
    return EngineSpec("scripted", "scripted", "", 4, lease, script_json=encode_script(script))


def request(uid: str = "u", *, max_tokens: int | None = 5) -> GenerateRequest:
    return GenerateRequest(uid, (1, 2, 3), max_tokens)


class Ends:
    """The last deltas of requests, as the link reports them."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[tuple[RowStream, Delta | None]] = asyncio.Queue()

    def __call__(self, row: RowStream, last: Delta | None) -> None:
        self.queue.put_nowait((row, last))


@contextlib.asynccontextmanager
async def linked(script: Script | None = None, **callbacks: Any) -> AsyncIterator[EngineLink]:
    link = EngineLink(**callbacks)
    try:
        async with asyncio.timeout(WAIT_S):
            await link.start(spec(script or Script()))
            yield link
    finally:
        await link.stop(0.0)


async def rest(row: RowStream) -> list[Delta]:
    """All deltas until the last."""
    deltas: list[Delta] = []
    while not deltas or deltas[-1].finish is None:
        deltas += await row.next()
    return deltas


async def test_a_request_is_accepted_and_ends_with_its_usage() -> None:
    ends = Ends()
    async with linked() as link:
        assert link.info is not None and link.info.max_rows == 4
        row = link.submit(request(), ends)
        assert link.open_rows == 1
        accepted = await row.until_accepted()
        assert accepted.prompt_tokens == 3
        deltas = await rest(row)
        assert [delta.token_count for delta in deltas] == [1, 2, 3, 4, 5]
        assert deltas[-1].finish is FinishReason.LENGTH
        assert deltas[-1].usage is not None
        assert await ends.queue.get() == (row, deltas[-1])
        assert link.open_rows == 0
        assert link.decoded_tokens == 5
        assert row.first_content_s is not None


async def test_a_request_that_cannot_be_sent_leaves_none_open() -> None:
    ends = Ends()
    async with linked() as link:
        with pytest.raises(UnicodeEncodeError):
            link.submit(GenerateRequest("u", (1,), 5, stops=("\ud800",)), ends)
        assert link.open_rows == 0
        await rest(link.submit(request(), ends))
        assert (await ends.queue.get())[0].uid == "u"
        assert ends.queue.empty()


async def test_a_module_in_the_current_folder_does_not_replace_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(PACKAGE_ROOT))
    for name in ("queue", "node"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')")
    monkeypatch.chdir(tmp_path)
    async with linked() as link:
        assert link.info is not None


async def test_an_abandoned_request_fails_at_once_and_ends_once() -> None:
    ends = Ends()
    async with linked(Script(stall_after_tokens=1)) as link:
        row = link.submit(request(), ends)
        await row.until_accepted()
        assert [delta.token_count for delta in await row.next()] == [1]
        link.abandon("u", ShuttingDown())
        link.abandon("u", ShuttingDown())
        with pytest.raises(ShuttingDown):
            await row.next()
        assert await ends.queue.get() == (row, None)
        # The engine has dropped it, so that the next one's answer is the next thing it sends.
        await rest(link.submit(request("v", max_tokens=1), ends))
        assert (await ends.queue.get())[0].uid == "v"
        assert ends.queue.empty()


async def test_queued_deltas_are_returned_together() -> None:
    ends = Ends()
    async with linked() as link:
        row = link.submit(request(max_tokens=50), ends)
        await ends.queue.get()
        assert len(await row.next()) == 50


async def test_silence_is_returned_as_no_deltas() -> None:
    async with linked(Script(first_token_delay_s=30)) as link:
        row = link.submit(request(), Ends())
        await row.until_accepted()
        assert await row.next(0.01) == []


async def test_a_refused_request_raises_and_has_no_last_delta() -> None:
    ends = Ends()
    async with linked() as link:
        row = link.submit(GenerateRequest("u", (), 1), ends)
        with pytest.raises(RowRefused, match="empty"):
            await row.until_accepted()
        assert await ends.queue.get() == (row, None)
        assert link.open_rows == 0


async def test_a_cancelled_request_is_marked_and_ends() -> None:
    marks: asyncio.Queue[Marked] = asyncio.Queue()
    async with linked(Script(wedge=True), on_marked=marks.put_nowait) as link:
        row = link.submit(request(), Ends())
        await row.until_accepted()
        link.cancel("u")
        link.cancel("nobody")
        assert (await marks.get()).uid == "u"
        assert (await rest(row))[-1].finish is FinishReason.CANCELLED


async def test_a_request_of_several_choices_ends_with_the_last_of_them() -> None:
    ends = Ends()
    async with linked(Script(outputs=("one", "two and three"))) as link:
        row = link.submit(GenerateRequest("u", (1, 2, 3), 9, choices=2), ends)
        assert (await row.until_accepted()).prompt_tokens == 3
        deltas: list[Delta] = []
        while not deltas or not deltas[-1].is_last:
            deltas += await row.next()
        assert [delta.choice for delta in deltas if delta.finish is not None] == [0, 1]
        assert await ends.queue.get() == (row, deltas[-1])
        assert (row.token_count, link.open_rows) == (5, 0)


@pytest.mark.parametrize(
    ("ends", "whole"),
    [
        ((FinishReason.STOP, FinishReason.STOP), FinishReason.STOP),
        ((FinishReason.LENGTH, FinishReason.STOP), FinishReason.LENGTH),
        ((FinishReason.ERROR, FinishReason.CANCELLED), FinishReason.ERROR),
    ],
)
def test_a_request_has_ended_as_the_gravest_of_its_choices(
    ends: tuple[FinishReason, FinishReason], whole: FinishReason
) -> None:
    row = RowStream("u", lambda row, last: None)
    for choice, finish in enumerate(ends):
        row.on_delta(Delta("u", (), 1, finish, choice=choice, open_choices=1 - choice))
        assert row.ended == bool(choice)
    assert row.finish is whole


async def test_a_killed_engine_fails_every_open_request() -> None:
    died = asyncio.Event()
    ends = Ends()
    async with linked(Script(wedge=True), on_died=died.set) as link:
        rows = [link.submit(request(uid), ends) for uid in "ab"]
        for row in rows:
            await row.until_accepted()
        os.kill(engine_pid(link), signal.SIGKILL)
        async with asyncio.timeout(AT_ONCE_S):
            await died.wait()
            for row in rows:
                with pytest.raises(EngineDied):
                    await row.next()
                assert await ends.queue.get() == (row, None)
        with pytest.raises(EngineDied):
            link.submit(request(), ends)


async def test_deltas_before_a_death_are_not_lost() -> None:
    died = asyncio.Event()
    async with linked(Script(crash_after_tokens=3), on_died=died.set) as link:
        row = link.submit(request(), Ends())
        await died.wait()
        assert [delta.token_count for delta in await row.next()] == [1, 2, 3]
        with pytest.raises(EngineDied):
            await row.next()


async def test_a_broken_engine_is_dead_at_its_last_report() -> None:
    died = asyncio.Event()
    script = Script(step_failure_after_tokens=2, step_failure_text="[METAL] No more.")
    async with linked(script, on_died=died.set) as link:
        ends = Ends()
        row = link.submit(request(), ends)
        await died.wait()
        with pytest.raises(EngineDied):
            link.submit(request("b"), ends)
        assert [delta.token_count for delta in await row.next()][:2] == [1, 2]
        with pytest.raises(EngineDied, match=r"\[METAL\] No more; the next request starts"):
            await row.next()
        assert await ends.queue.get() == (row, None)
        assert await link.stop(WAIT_S) == BROKEN_STATUS


async def test_a_last_report_is_the_end_before_the_process_has_exited() -> None:
    died = asyncio.Event()
    async with linked(on_died=died.set) as link:
        row = link.submit(request(), Ends())
        link.on_report(Broken("It broke."))
        assert died.is_set()
        with pytest.raises(EngineDied, match="It broke"):
            await row.until_accepted()


async def test_a_request_that_the_engine_fails_on_is_not_at_fault() -> None:
    async with linked(Script(failing_command="submit")) as link:
        with pytest.raises(EngineFault, match="failed on a command"):
            await link.submit(request(), Ends()).until_accepted()


async def test_a_lease_is_answered_by_an_engine_that_keeps_within_it() -> None:
    async with linked() as link:
        leases = [MemoryLease(0, 0, size) for size in (3, 2, 1)]
        answers = await asyncio.gather(*map(link.set_lease, leases))
        assert [stats.lease for stats in answers] == leases
        assert link.stats == answers[-1]


async def test_a_call_that_stops_waiting_for_its_answer_consumes_no_other() -> None:
    async with linked() as link:
        first = asyncio.create_task(link.set_lease(MemoryLease(0, 0, 1)))
        second = asyncio.create_task(link.set_lease(MemoryLease(0, 0, 2)))
        await asyncio.sleep(0)
        first.cancel()
        assert (await second).lease == MemoryLease(0, 0, 2)


async def test_a_clear_does_not_consume_the_answer_of_a_lease() -> None:
    script = Script(
        models=(ScriptedModel(kv_bytes_per_token=10),),
        cache=ScriptedCache(capacity_tokens=10),
        stall_after_tokens=1,
    )
    async with linked(script) as link:
        row = link.submit(request(), Ends())
        await row.next()
        lease = asyncio.create_task(link.set_lease(MemoryLease(0, 0, 0)))
        await asyncio.sleep(0)
        assert (await link.clear_cache()).entries == 0
        assert not lease.done(), "the request uses more than the lease"
        link.cancel("u")
        assert (await lease).live_kv_bytes == 0


async def test_a_clear_that_gets_no_answer_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.engines.link.CLEAR_S", 0.05)
    async with linked(Script(failing_command="clear_cache")) as link:
        with pytest.raises(EngineUnresponsive, match="did not clear"):
            await link.clear_cache()
        assert (await link.set_lease(MemoryLease(0, 0, 1))).lease == MemoryLease(0, 0, 1)


async def test_stats_are_reported_before_their_answers() -> None:
    reported: list[EngineStats] = []
    async with linked(on_stats=reported.append) as link:
        assert await link.set_lease(MemoryLease(0, 0, 1)) is reported[-1]


def test_progress_ends_with_the_prefill() -> None:
    row = RowStream("u", Ends())
    row.on_progress(Progress("u", 1, 3))
    assert row.progress == Progress("u", 1, 3)
    row.on_progress(Progress("u", 3, 3))
    assert row.progress is None, "what follows is decoding"


async def test_cache_events_are_reported_and_a_clear_evicts_all() -> None:
    events: asyncio.Queue[tuple[CacheEvent, ...]] = asyncio.Queue()
    script = Script(cache=ScriptedCache(capacity_tokens=10))
    async with linked(script, on_cache_events=events.put_nowait) as link:
        await rest(link.submit(request(), Ends()))
        (stored,) = await events.get()
        assert (stored.kind, stored.uid, stored.end_tokens) == (CacheEventKind.STORED, "u", 3)
        assert (await link.clear_cache()).entries == 0
        (evicted,) = await events.get()
        assert (evicted.kind, evicted.entry) == (CacheEventKind.EVICTED, stored.entry)


async def test_under_hard_pressure_nothing_is_stored_and_what_is_refused_may_be_retried() -> None:
    async with linked(Script(cache=ScriptedCache(capacity_tokens=10))) as link:
        link.set_pressure(Pressure.HARD)
        await rest(link.submit(request(), Ends()))
        stats = await link.set_lease(MemoryLease(0, 0, 0))
        assert (stats.entries, stats.stored_cap_bytes) == (0, 0)
        warm = msgspec.structs.replace(request("w"), warm=True)
        with pytest.raises(MemoryShort) as caught:
            await link.submit(warm, Ends()).until_accepted()
        assert "short of memory" in caught.value.message


async def test_a_dead_engine_answers_nothing() -> None:
    died = asyncio.Event()
    async with linked(on_died=died.set) as link:
        os.kill(engine_pid(link), signal.SIGSTOP)
        waiting = asyncio.create_task(link.set_lease(MemoryLease(0, 0, 0)))
        await asyncio.sleep(0)
        os.kill(engine_pid(link), signal.SIGKILL)
        with pytest.raises(EngineDied):
            await waiting
        await died.wait()
        with pytest.raises(EngineDied):
            await link.clear_cache()


async def test_progress_of_a_prefill_is_kept_until_content_arrives() -> None:
    script = Script(prefill_s_per_token=0.1, progress_interval_s=0.02)
    async with linked(script) as link:
        row = link.submit(request(), Ends())
        await row.until_accepted()
        while row.progress is None:
            assert await row.next(0.02) == []
        assert row.progress.total_tokens == 3
        await rest(row)
        assert row.progress is None


async def test_progress_of_a_load_is_reported() -> None:
    fractions: list[float] = []
    async with linked(Script(load_delay_s=0.1), on_progress=fractions.append):
        assert fractions[-1] == 1.0
        assert fractions == sorted(fractions)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (Script(load_failure="The weights are torn."), "The weights are torn."),
        (Script(load_out_of_memory=True), "out of memory"),
    ],
)
async def test_a_load_that_fails_raises_its_reason(script: Script, reason: str) -> None:
    link = EngineLink()
    async with asyncio.timeout(WAIT_S):
        with pytest.raises(LoadFailure, match=reason):
            await link.start(spec(script))
    assert not link.alive


async def test_an_engine_that_dies_while_it_loads_is_a_failed_load() -> None:
    link = EngineLink(on_progress=lambda fraction: os.kill(engine_pid(link), signal.SIGKILL))
    async with asyncio.timeout(WAIT_S):
        with pytest.raises(LoadFailure, match="ended while it loaded"):
            await link.start(spec(Script(load_delay_s=30)))


async def test_a_cancelled_start_leaves_no_process() -> None:
    loading = asyncio.Event()
    link = EngineLink(on_progress=lambda fraction: loading.set())
    start = asyncio.create_task(link.start(spec(Script(load_delay_s=30))))
    async with asyncio.timeout(WAIT_S):
        await loading.wait()
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
    with pytest.raises(ProcessLookupError):
        os.kill(engine_pid(link), 0)


async def test_a_start_that_is_cancelled_before_its_load_is_sent_ends_its_process() -> None:
    link, waiting = EngineLink(), await spawn("node.engine.worker", "scripted")
    starting = asyncio.create_task(link.start(spec(Script()), waiting))
    await asyncio.sleep(0)
    starting.cancel()
    await asyncio.wait({starting})
    assert waiting.process.returncode == -signal.SIGKILL


async def test_a_cancelled_stop_does_not_end_the_wait_of_another_one() -> None:
    async with linked() as link:
        first = asyncio.create_task(link.stop(0.0))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait({first})
        # On a busy machine the engine may have ended by itself before it is killed.
        assert await link.stop(0.0) in (0, -signal.SIGKILL)


async def test_a_stop_fails_open_requests_and_is_not_a_death() -> None:
    died = asyncio.Event()
    async with linked(Script(wedge=True), on_died=died.set) as link:
        row = link.submit(request(), Ends())
        await row.until_accepted()
        await link.stop(5.0)
        with pytest.raises(EngineDied):
            await row.next()
        await link.stop(5.0)
    assert not died.is_set()


async def test_an_engine_that_ignores_the_request_to_end_is_killed() -> None:
    async with linked() as link:
        os.kill(engine_pid(link), signal.SIGSTOP)
        await link.stop(0.1)
        with pytest.raises(ProcessLookupError):
            os.kill(engine_pid(link), 0)


async def test_an_engine_does_not_outlive_its_agent(tmp_path: Path) -> None:
    program = """
import asyncio, os
from node.engines.link import EngineLink
from node.ipc.messages import EngineSpec, MemoryLease
async def main():
    link = EngineLink()
    await link.start(EngineSpec('scripted', 'scripted', '', 4, MemoryLease(0, 0, 0)))
    print(link._process.pid, flush=True)
    os._exit(1)
asyncio.run(main())
"""
    file = tmp_path / "agent.py"
    file.write_text(program)
    agent = await asyncio.create_subprocess_exec(
        sys.executable, str(file), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await agent.communicate()
    try:
        engine = psutil.Process(int(output))
    except psutil.NoSuchProcess:
        return
    _gone, alive = await asyncio.to_thread(psutil.wait_procs, [engine], 1)
    # Where nothing reaps orphans, what has ended stays as a zombie.
    assert all(each.status() == psutil.STATUS_ZOMBIE for each in alive)
