"""The disk tier: what it accepts, writes, reads, deletes and reports."""

import errno
import logging
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from node.engine.cache.disk.catalog import Item
from node.engine.cache.disk.file_index import FileRow, Index
from node.engine.cache.disk.files import Files
from node.engine.cache.disk.limits import DAY_S, Limits
from node.engine.cache.disk.shared import LEARN_SHARE, READ_BYTES_PER_S
from node.engine.cache.parts import (
    DiskTier,
    EntryKind,
    FileLost,
    FileRead,
    FileWriteFailed,
    FileWritten,
)
from node.ipc.disk_figures import DiskFigures
from node.prefixes.saved_positions import save_positions
from tests.node.engine.cache.disk_world import (
    ROOT,
    FailingFiles,
    GatedFiles,
    World,
    close_worlds,
    same,
    some_tensors,
    some_tokens,
)

FULL = OSError(errno.ENOSPC, "No space left on device")
BROKEN = OSError(errno.EIO, "Input/output error")
UNEXPECTED = ValueError("a fault of our own")


@pytest.fixture(autouse=True)
def _closed_in_the_end() -> Iterator[None]:
    yield
    close_worlds()


def _file_bytes(world: World) -> int:
    """Returns the size of one file of the default size."""
    file = world.written(1)
    size = world.path(file).stat().st_size
    world.tier.drop(file)
    assert world.reports() == []
    return size


# --- writing ---------------------------------------------------------------------------------


def test_a_written_file_is_read_back(tmp_path: Path) -> None:
    world = World(tmp_path)
    tier: DiskTier = world.tier
    file = world.written(5)
    tier.read(file)
    report = world.next_report()
    assert isinstance(report, FileRead)
    assert report.file == file
    assert same(report.tensors, some_tensors(5))
    assert tier.nbytes == world.path(file).stat().st_size


def test_the_order_is_write_fsync_rename_fsync_of_the_folder_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    class Watched(Files):
        def create(self, path: Path) -> int:
            seen.append(f"create {path.name}")
            return super().create(path)

        def write(self, descriptor: int, data: memoryview) -> None:
            seen.append("write")
            super().write(descriptor, data)

        def sync(self, descriptor: int) -> None:
            seen.append("sync")
            super().sync(descriptor)

        def rename(self, source: Path, target: Path) -> None:
            seen.append(f"rename {source.name} {target.name}")
            super().rename(source, target)

        def sync_folder(self, folder: Path) -> None:
            seen.append(f"sync_folder {folder.name}")
            super().sync_folder(folder)

    add = Index.add

    def watched_add(
        self: Index, row: FileRow, used: Mapping[int, int], day: int, day_bytes: int
    ) -> None:
        seen.append("index")
        add(self, row, used, day, day_bytes)

    monkeypatch.setattr(Index, "add", watched_add)
    world = World(tmp_path, files=Watched())
    file = world.written(1)
    assert list(dict.fromkeys(seen)) == [
        f"create {file}.tmp",
        "write",
        "sync",
        f"rename {file}.tmp {file}.safetensors",
        f"sync_folder {world.folder.name}",
        "index",
    ]
    assert seen[-4:] == list(dict.fromkeys(seen))[-4:]


def test_only_the_owner_can_read_the_files(tmp_path: Path) -> None:
    world = World(tmp_path / "kv")
    world.written(1)
    assert {path.stat().st_mode & 0o777 for path in world.folder.iterdir()} == {0o600}
    assert world.folder.stat().st_mode & 0o777 == 0o700
    assert world.home.stat().st_mode & 0o777 == 0o700


def test_a_full_queue_accepts_nothing(tmp_path: Path) -> None:
    files = GatedFiles()
    world = World(tmp_path, Limits(1 << 30, queue_files=2, queue_bytes=20_000), files)
    assert world.write(1) is not None
    assert world.write(2, nbytes=100_000) is None
    assert world.write(3) is not None
    assert world.write(4) is None
    files.gate.set()
    assert [type(report) for report in world.reports()] == [FileWritten, FileWritten]
    assert world.write(4) is not None


def test_a_file_larger_than_the_queue_is_accepted_alone(tmp_path: Path) -> None:
    world = World(tmp_path, Limits(1 << 30, queue_bytes=1000))
    assert world.write(1, nbytes=50_000) is not None
    assert [type(report) for report in world.reports()] == [FileWritten]


def test_a_file_larger_than_the_tier_is_not_accepted(tmp_path: Path) -> None:
    assert World(tmp_path, Limits(10_000)).write(1, nbytes=20_000) is None


def test_a_file_that_continues_an_unknown_one_is_not_accepted(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert world.write(1, parent=7) is None
    snapshot = world.tier.write(EntryKind.SNAPSHOT, ROOT, some_tokens(1, 0), some_tensors(1))
    assert snapshot is not None
    assert world.write(2, parent=snapshot) is None


@pytest.mark.parametrize("call", ["write", "sync", "rename", "sync_folder"])
def test_a_failed_write_leaves_nothing_and_is_logged_once(
    call: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path, files=FailingFiles(call, FULL, times=2))
    files = [world.write(1), world.write(2)]
    assert world.reports() == [FileWriteFailed(file) for file in files if file]
    assert world.names() == set()
    assert world.tier.nbytes == 0
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    world.written(3)


def test_a_row_that_cannot_be_written_fails_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(Index, "add", fail)
    world = World(tmp_path)
    file = world.write(1)
    assert file is not None
    assert world.reports() == [FileWriteFailed(file)]
    assert world.tier.figures == DiskFigures(failed_writes=1)
    assert world.names() == set()


@pytest.mark.parametrize("call", ["write", "rename"])
def test_a_fault_of_our_own_fails_one_file_and_not_the_writer(call: str, tmp_path: Path) -> None:
    world = World(tmp_path, files=FailingFiles(call, UNEXPECTED, times=1))
    file = world.write(1)
    assert file is not None
    assert world.reports() == [FileWriteFailed(file)]
    assert world.names() == set()
    world.written(2)


def test_repeated_failures_stop_the_writing_for_a_minute(tmp_path: Path) -> None:
    files = FailingFiles("sync", BROKEN, times=3)
    world = World(tmp_path, files=files)
    # The fourth may be written before or after the third has failed.
    taken = [number for number in (world.write(seed) for seed in range(4)) if number is not None]
    assert [type(report) for report in world.reports()] == [FileWriteFailed] * len(taken)
    assert len(taken) >= 3 and files.calls == 3
    assert world.write(5) is None
    world.monotonic_s += 60
    world.written(5)


def test_a_file_fails_with_the_one_that_it_continues(tmp_path: Path) -> None:
    files = GatedFiles()
    world = World(tmp_path, files=files)
    world.write(0)
    first = world.write(1)
    assert first is not None
    second = world.write(2, parent=first)
    world.tier.drop(first)
    files.gate.set()
    reports = world.reports()
    assert reports[1:] == [FileWriteFailed(first), FileWriteFailed(second or 0)]
    assert len(world.names()) == 1


def test_a_day_has_its_bytes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    size = _file_bytes(World(tmp_path / "other"))
    world = World(tmp_path, Limits(1 << 30, max_bytes_per_day=2 * size))
    world.written(1)
    world.written(2)
    assert world.write(3) is None
    assert world.write(3) is None
    assert len(caplog.records) == 1
    world.reopen()
    assert world.write(3) is None
    world.unix_s += DAY_S
    world.written(3)


# --- reading ---------------------------------------------------------------------------------


def test_a_file_is_readable_before_it_is_written(tmp_path: Path) -> None:
    files = GatedFiles()
    world = World(tmp_path, files=files)
    file = world.write(1)
    assert file is not None
    world.tier.read(file)
    report = world.next_report()
    assert isinstance(report, FileRead)
    assert same(report.tensors, some_tensors(1))
    files.gate.set()


def test_files_that_are_read_get_their_memory_two_at_a_time(tmp_path: Path) -> None:
    world = World(tmp_path)
    files = [world.written(seed) for seed in range(5)]
    given: list[int] = []

    def memory(nbytes: int) -> memoryview:
        given.append(nbytes)
        return memoryview(bytearray(nbytes))

    world.use_memory(memory)
    with world.tier._shared.changed:
        for file in files:
            world.tier.read(file)
    assert len(given) == 2
    reports = [world.next_report() for _ in files]
    assert [report.file for report in reports] == files
    assert given == [world.path(file).stat().st_size for file in files]


def test_a_file_without_memory_to_read_it_into_is_lost_and_the_next_one_is_read(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    large, small = world.written(1, nbytes=8192), world.written(2)
    large_bytes = world.path(large).stat().st_size

    def memory(nbytes: int) -> memoryview:
        if nbytes == large_bytes:
            raise MemoryError
        return memoryview(bytearray(nbytes))

    world.use_memory(memory)
    with pytest.raises(MemoryError):
        world.tier.read(large)
    assert world.next_report() == FileLost(large)
    world.tier.read(small)
    report = world.next_report()
    assert isinstance(report, FileRead) and report.file == small


def test_a_read_of_an_unknown_file_is_lost(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.tier.read(12)
    assert world.next_report() == FileLost(12)


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"0")


@pytest.mark.parametrize("damage", [_flip, _cut, _lengthen])
def test_a_corrupt_file_is_quarantined_and_lost_after_those_that_continue_it(
    damage: object, tmp_path: Path
) -> None:
    assert callable(damage)
    world = World(tmp_path)
    first = world.written(1)
    second = world.written(2, parent=first)
    third = world.written(3, parent=second)
    other = world.written(4)
    damage(world.path(first))
    world.tier.read(first)
    assert [world.next_report() for _ in range(3)] == [
        FileLost(third),
        FileLost(second),
        FileLost(first),
    ]
    assert world.reports() == []
    assert world.names() == {f"{other}.safetensors", "quarantine"}
    assert [path.name for path in (world.folder / "quarantine").iterdir()] == [
        f"{first}.safetensors"
    ]
    assert [entry.file for entry in world.reopen().entries()] == [other]


def test_the_quarantine_keeps_the_newest_few(tmp_path: Path) -> None:
    world = World(tmp_path)
    files = [world.written(seed) for seed in range(6)]
    for file in files:
        _flip(world.path(file))
        world.tier.read(file)
        assert world.next_report() == FileLost(file)
    assert world.reports() == []
    kept = {path.name for path in (world.folder / "quarantine").iterdir()}
    assert kept == {f"{file}.safetensors" for file in files[2:]}


@pytest.mark.parametrize("error", [BROKEN, UNEXPECTED])
def test_a_file_that_cannot_be_read_is_lost(tmp_path: Path, error: Exception) -> None:
    world = World(tmp_path, files=FailingFiles("read", error, times=1))
    file = world.written(1)
    world.tier.read(file)
    assert world.next_report() == FileLost(file)
    gone = world.written(2)
    world.path(gone).unlink()
    world.tier.read(gone)
    assert world.next_report() == FileLost(gone)
    assert world.tier.figures.unreadable_files == 2


def test_the_rate_of_reading_is_learned(tmp_path: Path) -> None:
    class Slow(Files):
        def read(self, descriptor: int, into: memoryview) -> int:
            world.monotonic_s += 0.25
            return super().read(descriptor, into)

    world = World(tmp_path, files=Slow())
    small, large = world.written(1), world.written(2, nbytes=2 << 20)
    rates = [world.tier.read_bytes_per_s]
    size = world.tier.nbytes
    assert world.tier.figures == DiskFigures(written_files=2, written_bytes=size)
    for file in (small, large):
        world.tier.read(file)
        assert isinstance(world.next_report(), FileRead)
        rates.append(world.tier.read_bytes_per_s)
    # Two reads: the content, and a look whether it ends there.
    measured = world.path(large).stat().st_size / 0.5
    assert rates == [
        READ_BYTES_PER_S,
        READ_BYTES_PER_S,
        READ_BYTES_PER_S + LEARN_SHARE * (measured - READ_BYTES_PER_S),
    ]
    assert world.tier.figures == DiskFigures(2, size, 1.0, 0, 2, size)


# --- deleting --------------------------------------------------------------------------------


def test_over_the_byte_cap_the_least_recently_used_are_evicted(tmp_path: Path) -> None:
    size = _file_bytes(World(tmp_path / "other"))
    world = World(tmp_path, Limits(max_bytes=3 * size))
    first, second, third = (world.written(seed) for seed in range(3))
    world.tier.touch([first])
    fourth = world.write(4)
    assert fourth is not None
    assert world.reports() == [FileLost(second), FileWritten(fourth, size)]
    assert world.names() == {f"{file}.safetensors" for file in (first, third, fourth)}
    assert world.tier.nbytes == 3 * size


def test_over_the_file_cap_files_are_evicted_before_those_that_they_continue(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, Limits(1 << 30, max_files=3))
    first = world.written(1)
    second = world.written(2, parent=first)
    third = world.written(3, parent=second)
    for seed, lost in ((4, third), (5, second), (6, first)):
        world.write(seed)
        assert world.next_report() == FileLost(lost)
        assert isinstance(world.next_report(), FileWritten)


def test_what_a_new_file_continues_is_not_evicted_for_it(tmp_path: Path) -> None:
    size = _file_bytes(World(tmp_path / "other"))
    world = World(tmp_path, Limits(max_bytes=2 * size))
    first = world.written(1)
    second = world.written(2, parent=first)
    third = world.write(3, parent=second)
    assert third is not None
    assert world.reports() == [FileWriteFailed(third)]
    assert world.names() == {f"{first}.safetensors", f"{second}.safetensors"}


def test_uses_are_known_after_a_restart(tmp_path: Path) -> None:
    world = World(tmp_path)
    first, second, third = (world.written(seed) for seed in range(3))
    world.tier.touch([first])
    tier = world.reopen(Limits(1 << 30, max_files=2))
    assert [entry.file for entry in tier.entries()] == [first, third]
    assert world.names() == {f"{first}.safetensors", f"{third}.safetensors"}


def test_a_dropped_file_is_deleted_and_not_reported(tmp_path: Path) -> None:
    world = World(tmp_path)
    file = world.written(1)
    world.tier.drop(file)
    world.tier.drop(file)
    assert world.reports() == []
    assert world.names() == set()
    assert world.tier.nbytes == 0


def test_what_continues_a_dropped_file_is_reported(tmp_path: Path) -> None:
    world = World(tmp_path)
    first = world.written(1)
    second = world.written(2, parent=first)
    world.tier.drop(first)
    assert world.reports() == [FileLost(second)]
    assert world.names() == set()


def test_a_file_dropped_while_it_is_written_leaves_nothing(tmp_path: Path) -> None:
    files = GatedFiles()
    world = World(tmp_path, files=files)
    file = world.write(1)
    assert file is not None
    assert files.reached.wait(5)
    world.tier.drop(file)
    files.gate.set()
    assert world.reports() == [FileWriteFailed(file)]
    assert world.names() == set()


def test_a_file_dropped_while_its_row_is_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    add = Index.add

    def dropping_add(
        self: Index, row: FileRow, used: Mapping[int, int], day: int, day_bytes: int
    ) -> None:
        world.tier.drop(row.file)
        add(self, row, used, day, day_bytes)

    monkeypatch.setattr(Index, "add", dropping_add)
    file = world.write(1)
    assert file is not None
    assert world.reports() == [FileWriteFailed(file)]
    assert world.names() == set()
    assert world.reopen().entries() == []


def test_a_read_of_a_dropped_file_is_answered_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    file = world.written(1)
    shared = world.tier._shared
    with shared.changed:
        world.tier.read(file)
        world.tier.read(file)
        world.tier.drop(file)
    assert world.reports() == [FileLost(file)]


def test_clear_deletes_everything_also_what_is_queued(tmp_path: Path) -> None:
    files = GatedFiles()
    files.gate.set()
    world = World(tmp_path, files=files)
    world.written(1)
    corrupt = world.written(2)
    _flip(world.path(corrupt))
    world.tier.read(corrupt)
    assert world.next_report() == FileLost(corrupt)
    files.gate.clear()
    files.reached.clear()
    queued = [world.write(seed) for seed in (3, 4)]
    assert files.reached.wait(5)
    save_positions(world.folder, b"", [])
    world.tier.clear()
    assert world.tier.nbytes == 0
    fresh = world.write(5)
    files.gate.set()
    reports = world.reports()
    assert reports[:2] == [FileWriteFailed(file or 0) for file in queued]
    assert [type(report) for report in reports[2:]] == [FileWritten]
    assert world.names() == {f"{fresh}.safetensors"}
    index = b"".join(path.read_bytes() for path in world.folder.glob("index.sqlite*"))
    assert some_tokens(1).tobytes() not in index
    assert some_tokens(5).tobytes() in index


# --- beginning and ending --------------------------------------------------------------------


def test_entries_are_listed_parents_first(tmp_path: Path) -> None:
    world = World(tmp_path)
    first = world.written(1)
    second = world.written(2, parent=first)
    snapshot = world.tier.write(EntryKind.SNAPSHOT, (second, 5), some_tokens(0, 0), some_tensors(3))
    assert snapshot is not None
    world.tier.flush(5)
    entries = world.reopen().entries()
    assert [(e.file, e.kind, e.parent_file, e.parent_tokens) for e in entries] == [
        (first, EntryKind.SPAN, 0, 0),
        (second, EntryKind.SPAN, first, 8),
        (snapshot, EntryKind.SNAPSHOT, second, 5),
    ]
    assert [entry.tokens.tolist() for entry in entries] == [
        some_tokens(1).tolist(),
        some_tokens(2).tolist(),
        [],
    ]
    assert sum(entry.nbytes for entry in entries) == world.tier.nbytes
    assert world.tier.entries() == []
    world.tier.read(second)
    report = world.next_report()
    assert isinstance(report, FileRead)
    assert same(report.tensors, some_tensors(2))


def test_numbers_are_never_used_twice(tmp_path: Path) -> None:
    world = World(tmp_path)
    file = world.written(1)
    world.tier.drop(file)
    world.tier.flush(5)
    world.reopen()
    assert world.written(2) > file


def test_what_is_queued_at_the_end_is_not_written(tmp_path: Path) -> None:
    files = GatedFiles()
    world = World(tmp_path, files=files)
    queued = [world.write(1), world.write(2)]
    with world.tier._shared.changed:
        world.tier._shared.closing = True
    files.gate.set()
    world.tier.close()
    world.tier.close()
    assert world.tier.poll() == [FileWriteFailed(file or 0) for file in queued]
    assert world.write(3) is None
    assert world.names() == set()


def test_a_deletion_that_fails_is_logged_and_made_up_for_at_the_next_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Stubborn(Files):
        def unlink(self, path: Path) -> None:
            raise BROKEN

    world = World(tmp_path, files=Stubborn())
    file = world.written(1)
    world.tier.drop(file)
    assert world.reports() == []
    assert caplog.records[-1].levelno == logging.WARNING
    assert world.names() == {f"{file}.safetensors"}
    assert world.reopen().entries() == []
    assert world.names() == set()


def test_an_item_of_another_time_is_not_wanted(tmp_path: Path) -> None:
    world = World(tmp_path)
    file = world.written(1)
    assert not world.tier._shared.is_needed(Item(file, EntryKind.SPAN, 0, 1))
