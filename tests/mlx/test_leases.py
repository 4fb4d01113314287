"""Two real engines under one budget: what each uses, what it gives back, what its disk keeps."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from node.engines.link import EngineLink
from node.engines.memory_budget import Budget
from node.engines.residency_policy import ResidencyPolicy
from node.engines.sizing import Room, needed_bytes
from node.engines.slot import EngineHandle, EngineKind
from node.engines.supervisor import Supervisor
from node.hardware import Machine
from node.ipc.generate import GenerateRequest, SamplingParams
from node.ipc.messages import EngineStats, RowUsage
from node.models.store import ModelStore
from node.settings import Settings
from serving.units import GIB
from tests.mlx.driver import prompt
from tests.mlx.tiny import make_tiny

pytestmark = pytest.mark.mlx

WAIT_S = 60.0
LIVE_BYTES = 4 << 20
LEFT_BYTES = 1 << 20
"""Bytes that the fixed shares of two engines leave for stored KV; less than one of them stores
alone."""
PROMPTS = [prompt(600, seed) for seed in range(6)]


@contextlib.asynccontextmanager
async def supervising(home: Path, disk_bytes: int) -> AsyncIterator[Supervisor]:
    settings = Settings(home=home, kv_live_bytes=LIVE_BYTES, kv_disk_bytes=disk_bytes, max_rows=4)
    store = ModelStore(settings.models_folder)
    room = Room(64 * GIB, 0, has_gpu=False)
    fixed_bytes = sum(needed_bytes(entry, room, settings) for entry in store.list())
    kind = EngineKind(settings, Machine("x", 64 * GIB))
    supervisor = Supervisor(
        store, Budget(fixed_bytes + LEFT_BYTES), kind, ResidencyPolicy(settings)
    )
    try:
        async with asyncio.timeout(WAIT_S):
            await supervisor.refresh()
            yield supervisor
    finally:
        await supervisor.close(10.0)


async def touch(supervisor: Supervisor, name: str) -> EngineHandle:
    with supervisor.serving(await supervisor.find(name)) as lease:
        return await lease.ready()


async def ask(
    handle: EngineHandle, uid: str, tokens: tuple[int, ...], *, warm: bool = False
) -> RowUsage:
    request = GenerateRequest(uid, tokens, 4, SamplingParams(temperature=0.0), warm=warm)
    row = handle.link.submit(request, lambda row, last: None)
    while True:
        deltas = await row.next()
        if deltas and deltas[-1].usage is not None:
            return deltas[-1].usage


def is_within(stats: EngineStats) -> bool:
    assert stats.lease is not None
    most_bytes = stats.lease.live_kv_bytes + stats.lease.stored_kv_bytes
    return stats.live_kv_bytes + stats.stored_kv_bytes <= most_bytes


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for name in "ab":
        make_tiny(tmp_path / "models" / name)
    return tmp_path


@pytest.mark.parametrize("disk_bytes", [0, 1 << 28], ids=["memory", "disk"])
async def test_a_second_load_shrinks_the_first_and_neither_exceeds_its_lease(
    home: Path, disk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[EngineStats] = []
    take_stats = EngineLink._on_stats_report

    def spy(link: EngineLink, stats: EngineStats) -> None:
        seen.append(stats)
        take_stats(link, stats)

    monkeypatch.setattr(EngineLink, "_on_stats_report", spy)
    async with supervising(home, disk_bytes) as supervisor:
        first = await touch(supervisor, "a")
        await first.link.set_lease(supervisor.budget.lease("a"))
        for number, tokens in enumerate(PROMPTS):
            await ask(first, f"{number}", tokens)
        full = await first.link.set_lease(supervisor.budget.lease("a"))
        assert full.stored_kv_bytes > LEFT_BYTES
        # The first is idle, and gives back all the same.
        second = await touch(supervisor, "b")
        for handle in (first, second):
            stats = await handle.link.set_lease(supervisor.budget.lease(handle.entry.name))
            assert stats.lease is not None and stats.lease.stored_kv_bytes <= LEFT_BYTES // 2
            assert is_within(stats)
        seen.clear()
        await asyncio.gather(
            *(
                ask(handle, f"again {number}", tokens)
                for handle in (first, second)
                for number, tokens in enumerate(PROMPTS)
            )
        )
        for handle in (first, second):
            await handle.link.set_lease(supervisor.budget.lease(handle.entry.name))
        assert len(seen) >= 2
        assert all(map(is_within, seen))


async def test_a_second_model_loads_beside_pinned_kv(home: Path) -> None:
    async with supervising(home, 0) as supervisor:
        first = await touch(supervisor, "a")
        await first.link.set_lease(supervisor.budget.lease("a"))
        for number, tokens in enumerate(PROMPTS[:3]):
            await ask(first, f"{number}", tokens, warm=True)
        pinned = await first.link.set_lease(supervisor.budget.lease("a"))
        assert LEFT_BYTES // 2 < pinned.pinned_kv_bytes < LEFT_BYTES
        await touch(supervisor, "b")
        stats = await first.link.set_lease(supervisor.budget.lease("a"))
        assert stats.pinned_kv_bytes == pinned.pinned_kv_bytes
        assert is_within(stats)
        assert (await ask(first, "again", PROMPTS[0])).cached_tokens == len(PROMPTS[0]) - 1


async def test_a_lone_request_takes_its_kv_from_the_disk_after_a_restart(home: Path) -> None:
    async with supervising(home, 1 << 28) as supervisor:
        await ask(await touch(supervisor, "a"), "before", PROMPTS[0])
    async with supervising(home, 1 << 28) as supervisor:
        handle = await touch(supervisor, "a")
        before = await handle.link.set_lease(supervisor.budget.lease("a"))
        assert before.stored_kv_bytes == 0 < before.disk_kv_bytes
        usage = await ask(handle, "after", PROMPTS[0])
        assert usage.cached_tokens == len(PROMPTS[0]) - 1
