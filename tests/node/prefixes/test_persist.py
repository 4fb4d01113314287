"""Tests what an agent keeps of a disk cache, from one engine of a model to the next."""

import asyncio
from array import array
from pathlib import Path

import pytest

from node.agent.events import EventHub
from node.agent.prefixes import PrefixFeed
from node.ipc.kv_files import POSITIONS_NAME
from node.ipc.messages import CacheEvent, CacheEventKind, Loaded
from node.models.store import ModelEntry
from node.prefixes import persist as keeper_module
from node.prefixes.digest import PrefixDigest
from node.protocol.chain.prefix import Chain
from node.protocol.prefixes import Tier

WAIT_S = 30.0
POSITIONS = 100
FILED, SPILLED = CacheEventKind.FILED, CacheEventKind.SPILLED


def entry_of(folder: Path) -> ModelEntry:
    folder.mkdir(exist_ok=True)
    return ModelEntry("m", folder, 0, 1000, 0)


def event(kind: CacheEventKind, file: int, uid: str = "") -> CacheEvent:
    return CacheEvent(kind, 1, 0, 0, POSITIONS, POSITIONS, uid, file)


class Life:
    """An agent with one engine, whose disk cache has one file."""

    def __init__(self, home: Path) -> None:
        self.disk = home / "kv"
        self.disk.mkdir(exist_ok=True)
        self.feed = PrefixFeed(EventHub())
        info = Loaded(0, 1000, 4, 100, disk_folder=str(self.disk))
        self.feed.on_loaded(entry_of(home / "model"), info)

    @property
    def digest(self) -> PrefixDigest:
        found = self.feed.digest("m")
        assert found is not None
        return found

    def serve(self) -> None:
        hashes = array("Q", range(1, POSITIONS + 1))
        self.digest.on_request("r", Chain(hashes, hashes, hashes, 0), hashes, POSITIONS + 1)
        self.feed.on_cache_events("m", (event(CacheEventKind.STORED, 0, "r"),))
        self.digest.on_end("r")

    def report(self, kind: CacheEventKind, file: int) -> None:
        self.feed.on_cache_events("m", (event(kind, file),))

    async def until_reported(self) -> None:
        async with asyncio.timeout(WAIT_S):
            while not len(self.digest):
                await asyncio.sleep(0)


async def test_what_is_on_disk_is_reported_after_a_restart(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.serve()
    life.report(FILED, 7)
    await life.feed.close()
    life = Life(tmp_path)
    life.report(SPILLED, 7)
    await life.until_reported()
    entry = life.digest.entry(POSITIONS)
    assert entry is not None
    assert (entry.usable_tokens, entry.tier) == (POSITIONS, Tier.DISK)
    # Nor is it lost where nothing requests it before the next restart.
    life.feed.on_ended("m")
    await life.feed.close()
    life = Life(tmp_path)
    life.report(SPILLED, 7)
    await life.until_reported()
    await life.feed.close()


async def test_what_was_saved_waits_for_the_engine_and_is_restored_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper_module, "PIECE_POSITIONS", 1)
    life = Life(tmp_path)
    life.serve()
    life.report(FILED, 7)
    await life.feed.close()
    life = Life(tmp_path)
    read = next(iter(life.feed._saving))
    await asyncio.wait({read}, timeout=0.05)
    assert not len(life.digest)
    life.report(SPILLED, 7)
    await life.until_reported()
    await life.feed.close()


async def test_an_agent_that_is_killed_has_saved_what_it_knew_a_while_ago(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper_module, "SAVE_S", 0.001)
    life = Life(tmp_path)
    life.serve()
    life.report(FILED, 7)
    async with asyncio.timeout(WAIT_S):
        while not (life.disk / POSITIONS_NAME).exists():
            await asyncio.sleep(0)
    later = Life(tmp_path)
    later.report(SPILLED, 7)
    await later.until_reported()
    await later.feed.close()
    await life.feed.close()


async def test_nothing_is_reported_of_another_file_or_of_none(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.serve()
    life.report(FILED, 7)
    await life.feed.close()
    for events in ((), (event(SPILLED, 8),)):
        life = Life(tmp_path)
        life.feed.on_cache_events("m", events)
        tasks = tuple(life.feed._saving)
        digest = life.digest
        await asyncio.wait(tasks, timeout=0.05)
        await life.feed.close()
        assert not len(digest)


async def test_an_engine_that_ends_at_once_leaves_what_was_saved(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.serve()
    life.report(FILED, 7)
    await life.feed.close()
    await Life(tmp_path).feed.close()
    life = Life(tmp_path)
    life.report(SPILLED, 7)
    await life.until_reported()
    await life.feed.close()


async def test_what_is_cleared_is_not_saved(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.serve()
    life.report(FILED, 7)
    life.report(CacheEventKind.EVICTED, 0)
    await life.feed.close()
    life = Life(tmp_path)
    life.report(SPILLED, 7)
    digest = life.digest
    await asyncio.wait(tuple(life.feed._saving), timeout=0.05)
    await life.feed.close()
    assert not len(digest)


async def test_without_a_disk_cache_nothing_is_kept() -> None:
    feed = PrefixFeed(EventHub())
    feed.on_loaded(ModelEntry("m", Path(), 0, 1000, 0), Loaded(0, 1000, 4, 100))
    assert not feed._saving
    await feed.close()
