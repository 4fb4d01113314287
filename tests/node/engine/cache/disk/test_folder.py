"""The folder of the disk tier: its lock, its start after anything, its end."""

import fcntl
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.engine.cache.disk.file_index import INDEX_NAME
from node.engine.cache.disk.folder import (
    FolderLock,
    TierBusy,
    TierUnavailable,
)
from node.engine.cache.disk.tier import open_tier
from tests.node.engine.cache.disk_world import FINGERPRINT, LIMITS, World, close_worlds


@pytest.fixture(autouse=True)
def _closed_in_the_end() -> Iterator[None]:
    yield
    close_worlds()


def _files(world: World) -> list[int]:
    return [entry.file for entry in world.reopen().entries()]


def _edit(world: World, statement: str) -> None:
    """Changes the index behind the tier's back."""
    world.tier.close()
    connection = sqlite3.connect(world.folder / INDEX_NAME)
    with connection:
        connection.execute(statement)
    connection.close()


def test_a_row_without_a_file_is_deleted_with_what_continues_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    first = world.written(1)
    second = world.written(2, parent=first)
    world.written(3, parent=second)
    other = world.written(4)
    world.tier.close()
    world.path(first).unlink()
    assert _files(world) == [other]
    assert world.names() == {f"{other}.safetensors"}
    assert _files(world) == [other]


def test_files_without_a_row_and_temporary_files_are_deleted(tmp_path: Path) -> None:
    world = World(tmp_path)
    file = world.written(1)
    world.path(99).write_bytes(b"orphan")
    (world.folder / "100.tmp").write_bytes(b"half")
    assert _files(world) == [file]
    assert world.names() == {f"{file}.safetensors"}


def test_a_file_of_the_wrong_size_is_quarantined(tmp_path: Path) -> None:
    world = World(tmp_path)
    first = world.written(1)
    world.written(2, parent=first)
    world.path(first).write_bytes(b"short")
    assert _files(world) == []
    assert world.names() == {"quarantine"}


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE file SET kind = 'other'",
        "UPDATE file SET tokens = x'010203'",
        "UPDATE file SET parent_file = 77",
        "UPDATE file SET parent_file = file",
    ],
)
def test_a_row_that_is_not_valid_is_deleted(statement: str, tmp_path: Path) -> None:
    world = World(tmp_path)
    world.written(1)
    _edit(world, statement)
    assert _files(world) == []
    assert world.names() == set()


@pytest.mark.parametrize(
    "content", [b"this is no database" * 100, b"SQLite format 3\0" + b"\xff" * 5000]
)
def test_a_damaged_index_is_moved_away_and_begun_anew(content: bytes, tmp_path: Path) -> None:
    world = World(tmp_path)
    world.written(1)
    world.tier.close()
    (world.folder / INDEX_NAME).write_bytes(content)
    assert _files(world) == []
    assert world.names() == {"quarantine"}
    assert (world.folder / "quarantine" / INDEX_NAME).read_bytes() == content
    file = world.written(2)
    assert _files(world) == [file]


def test_an_index_of_another_version_is_begun_anew(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.written(1)
    _edit(world, "PRAGMA user_version = 2")
    assert _files(world) == []


def test_the_second_process_is_refused_because_the_tier_is_busy(tmp_path: Path) -> None:
    world = World(tmp_path)
    with pytest.raises(TierBusy, match="Another process"):
        open_tier(tmp_path, LIMITS, FINGERPRINT)
    other = open_tier(tmp_path, LIMITS, "other")
    other.close()
    world.reopen()


def test_a_lock_on_a_wiped_folder_is_acquired_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    flock = fcntl.flock

    def wiping_flock(descriptor: int, operation: int) -> None:
        flock(descriptor, operation)
        calls.append(operation)
        if len(calls) == 1:
            (tmp_path / "lock").unlink()

    monkeypatch.setattr(fcntl, "flock", wiping_flock)
    lock = FolderLock(tmp_path)
    assert len(calls) == 2
    with pytest.raises(TierBusy):
        FolderLock(tmp_path)
    lock.release()


def test_a_disk_that_does_not_work_makes_the_tier_unavailable(tmp_path: Path) -> None:
    (tmp_path / "kv").write_text("a file")
    with pytest.raises(TierUnavailable):
        open_tier(tmp_path / "kv", LIMITS, FINGERPRINT)
    (tmp_path / FINGERPRINT / INDEX_NAME).mkdir(parents=True)
    for _ in range(2):
        with pytest.raises(TierUnavailable) as caught:
            open_tier(tmp_path, LIMITS, FINGERPRINT)
        assert not isinstance(caught.value, TierBusy)


@pytest.mark.parametrize("fingerprint", ["", "..", "a/b", ".hidden", "a\n"])
def test_a_fingerprint_is_the_name_of_a_folder(fingerprint: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        open_tier(tmp_path, LIMITS, fingerprint)
