from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from registry import audit, db
from registry.db import ReadSession, Registry, WriteSession
from registry.errors import (
    ReadOnlyRegistry,
    RegistryClosed,
    RegistryFailed,
    RegistryLocked,
    UnsupportedUrl,
)
from registry.migrate import open_migrated
from registry.records import AuditRecord

ROOT = Path(db.__file__).parent.parent
HOLD = """
import asyncio, sys
from registry.db import Registry
async def main():
    await Registry.open(sys.argv[1])
    print("open", flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


async def value(session: ReadSession, pragma: str) -> object:
    row = await session.fetch_one(text(f"PRAGMA {pragma}"))
    assert row is not None
    return next(iter(row.values()))


async def note(session: WriteSession) -> None:
    await audit.add(session, AuditRecord(1.0, "test", "did", "it", ""))


async def count(registry: Registry) -> int:
    async with registry.read() as session:
        return len(await audit.recent(session, 1_000))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@contextlib.contextmanager
def unprivileged() -> Iterator[None]:
    """Root ignores file modes, so a test that runs as root becomes nobody for a while."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


async def test_what_is_written_is_on_the_disk_before_it_is_answered(registry: Registry) -> None:
    full = 2
    assert await registry.write(lambda s: value(s, "synchronous")) == full
    async with registry.read() as session:
        assert await value(session, "synchronous") == full


@pytest.mark.parametrize("prefix", ["", "sqlite:///", "sqlite+aiosqlite:///"])
async def test_opens_a_path_and_both_sqlite_urls(tmp_path: Path, prefix: str) -> None:
    opened = await Registry.open(f"{prefix}{tmp_path}/registry.db")
    assert opened.path == tmp_path.resolve() / "registry.db"
    await opened.close()
    assert opened.path.exists()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://router:hunter2@db/fleet",
        "mysql+aiomysql://db/fleet",
        "sqlite://",
        "sqlite:///:memory:",
        ":memory:",
        "",
        "sqlite:///registry.db?mode=ro",
        "sqlite://host/registry.db",
    ],
)
async def test_refuses_whatever_is_no_sqlite_file(url: str) -> None:
    with pytest.raises(UnsupportedUrl, match="keeps its registry in SQLite") as refusal:
        await Registry.open(url)
    assert "hunter2" not in str(refusal.value)


async def test_names_the_scheme_it_refuses() -> None:
    with pytest.raises(UnsupportedUrl, match="'postgresql' is not supported"):
        await Registry.open("postgresql://db/fleet")


async def test_every_connection_has_wal_foreign_keys_and_a_busy_timeout(
    registry: Registry,
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        sessions = [await stack.enter_async_context(registry.read()) for _ in range(4)]
        for session in sessions:
            assert await value(session, "journal_mode") == "wal"
            assert await value(session, "foreign_keys") == 1
            assert await value(session, "busy_timeout") == 5_000
            assert await value(session, "query_only") == 1
    assert await registry.write(lambda s: value(s, "foreign_keys")) == 1
    assert await registry.write(lambda s: value(s, "busy_timeout")) == 5_000
    assert await registry.write(lambda s: value(s, "query_only")) == 0


@pytest.mark.parametrize(
    ("pragma", "expected"), [("synchronous", 2), ("fullfsync", 1), ("checkpoint_fullfsync", 1)]
)
async def test_what_was_written_outlives_a_loss_of_power(
    registry: Registry, pragma: str, expected: int
) -> None:
    """2 is FULL; the others have fsync reach the disk itself on macOS."""
    assert await registry.write(lambda session: value(session, pragma)) == expected


async def test_a_write_holds_the_write_lock_before_its_first_statement(
    registry: Registry,
) -> None:
    other = sqlite3.connect(registry.path, timeout=0)

    async def refused(session: WriteSession) -> str:
        await session.fetch_one(text("SELECT 1"))
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN IMMEDIATE")
        return "refused"

    try:
        assert await registry.write(refused) == "refused"
    finally:
        other.close()


async def test_the_files_are_private_while_open(tmp_path: Path) -> None:
    old_umask = os.umask(0)
    try:
        opened = await open_migrated(tmp_path / "new" / "registry.db")
    finally:
        os.umask(old_umask)
    names = {path.name: mode(path) for path in opened.path.parent.iterdir()}
    assert mode(opened.path.parent) == 0o700
    assert names.keys() >= {"registry.db", "registry.db-wal", "registry.db-shm"}
    assert set(names.values()) == {0o600}
    await opened.close()


async def test_a_file_that_was_readable_by_all_becomes_private(tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    path.touch(0o644)
    opened = await Registry.open(path)
    assert mode(path) == 0o600
    await opened.close()


async def test_closing_leaves_one_database_file_and_frees_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    first = await open_migrated(path)
    await first.write(note)
    await first.close()
    await first.close()
    assert {p.name for p in tmp_path.iterdir()} <= {"registry.db", "registry.db.lock"}
    second = await open_migrated(path)
    assert await count(second) == 1
    await second.close()


async def test_a_second_open_is_refused_and_names_the_process_that_has_it_open(
    registry: Registry,
) -> None:
    with pytest.raises(RegistryLocked) as refusal:
        await Registry.open(registry.path)
    assert str(registry.path) in str(refusal.value)
    assert f"process {os.getpid()}" in str(refusal.value)


async def test_a_link_to_the_database_shares_its_lock(registry: Registry, tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(registry.path)
    with pytest.raises(RegistryLocked):
        await Registry.open(link)


@pytest.mark.parametrize("pid", ["", "gibberish", "0", "-1", "4194305", "9" * 40])
async def test_a_pid_that_cannot_be_right_is_not_reported(registry: Registry, pid: str) -> None:
    registry.path.with_name("registry.db.pid").write_text(pid)
    with pytest.raises(RegistryLocked, match="in use by another process"):
        await Registry.open(registry.path)


async def test_a_killed_holder_leaves_the_registry_free(tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    holder = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLD, str(path), cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert holder.stdout is not None
        assert await asyncio.wait_for(holder.stdout.readline(), 60) == b"open\n"
        with pytest.raises(RegistryLocked, match=f"process {holder.pid}"):
            await Registry.open(path)
    finally:
        holder.kill()
        await asyncio.wait_for(holder.wait(), 60)
    await (await Registry.open(path)).close()


async def test_a_folder_that_cannot_be_is_reported_as_unwritable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ReadOnlyRegistry, match="cannot be written"):
        await Registry.open(tmp_path / "file" / "registry.db")


async def test_a_folder_in_place_of_the_file_is_refused_and_unlocked(tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    path.mkdir()
    with pytest.raises(ReadOnlyRegistry, match="directory"):
        await Registry.open(path)
    path.rmdir()
    await (await Registry.open(path)).close()


@pytest.mark.parametrize("locked", ["folder", "file"])
async def test_modes_that_forbid_writing_are_reported(locked: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, path = Path(name), Path(name) / "registry.db"
        path.touch(0o444)
        folder.chmod(0o555 if locked == "folder" else 0o777)
        with unprivileged(), pytest.raises(ReadOnlyRegistry, match="Permission denied"):
            await Registry.open(path)
        folder.chmod(0o700)


async def test_a_database_that_turned_read_only_is_reported_by_the_write(
    registry: Registry,
) -> None:
    await registry.write(lambda s: s.execute(text("PRAGMA query_only=ON")))
    with pytest.raises(ReadOnlyRegistry, match="readonly database"):
        await registry.write(note)


async def test_a_file_that_is_no_database_is_refused_and_unlocked(tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    path.write_bytes(b"no database at all" * 100)
    with pytest.raises(RegistryFailed, match="not a database"):
        await Registry.open(path)
    path.unlink()
    await (await Registry.open(path)).close()


async def test_a_writer_outside_the_lock_file_is_reported_as_locked(registry: Registry) -> None:
    await registry.write(lambda s: s.execute(text("PRAGMA busy_timeout=0")))
    other = sqlite3.connect(registry.path, isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(RegistryLocked):
            await registry.write(note)
        other.execute("ROLLBACK")
        await registry.write(note)
    finally:
        other.close()


async def test_a_read_session_cannot_write(registry: Registry) -> None:
    async with registry.read() as session:
        row = session.fetch_one(text("INSERT INTO meta VALUES ('a', 'b') RETURNING *"))
        with pytest.raises(Exception, match="readonly"):
            await row


async def test_a_read_session_sees_one_snapshot(registry: Registry) -> None:
    async with registry.read() as session:
        before = await audit.recent(session, 9)
        await registry.write(note)
        assert await audit.recent(session, 9) == before == []
    assert await count(registry) == 1


async def test_two_hundred_concurrent_writes_run_one_after_another(registry: Registry) -> None:
    async def increment(session: WriteSession) -> int:
        row = await session.fetch_one(text("SELECT value FROM meta WHERE key = 'n'"))
        new = 1 if row is None else int(row["value"]) + 1
        await session.execute(text(f"REPLACE INTO meta VALUES ('n', '{new}')"))
        return new

    results = await asyncio.gather(*(registry.write(increment) for _ in range(200)))
    assert results == list(range(1, 201))


async def test_a_failing_write_rolls_back_and_the_next_works(registry: Registry) -> None:
    async def fail(session: WriteSession) -> None:
        await note(session)
        raise LookupError("no")

    with pytest.raises(LookupError, match="no"):
        await registry.write(fail)
    assert await count(registry) == 0
    await registry.write(note)
    assert await count(registry) == 1


async def test_a_failing_statement_is_translated_without_its_values(registry: Registry) -> None:
    insert = text("INSERT INTO meta VALUES (:key, NULL)").bindparams(key="secret")
    with pytest.raises(RegistryFailed, match="NOT NULL") as failure:
        await registry.write(lambda s: s.execute(insert))
    assert "secret" not in f"{failure.value} {failure.value.__cause__}"


async def test_work_that_is_cancelled_within_does_not_stop_the_writer(registry: Registry) -> None:
    async def cancelled(session: WriteSession) -> None:
        await note(session)
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await registry.write(cancelled)
    await registry.write(note)
    assert await count(registry) == 1


class Gate:
    """A write that signals when it runs and waits to be released."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.opened = asyncio.Event()

    async def __call__(self, session: WriteSession) -> None:
        await note(session)
        self.entered.set()
        await self.opened.wait()


async def test_a_write_cancelled_while_it_waits_never_runs(registry: Registry) -> None:
    gate = Gate()
    first = asyncio.create_task(registry.write(gate))
    await asyncio.wait_for(gate.entered.wait(), 10)
    second = asyncio.create_task(registry.write(note))
    third = asyncio.create_task(registry.write(note))
    await asyncio.wait({second}, timeout=0.01)
    second.cancel()
    gate.opened.set()
    await asyncio.wait_for(asyncio.gather(first, third), 10)
    assert second.cancelled()
    assert await count(registry) == 2


async def test_a_write_whose_caller_is_cancelled_while_it_runs_is_committed(
    registry: Registry,
) -> None:
    gate = Gate()
    caller = asyncio.create_task(registry.write(gate))
    await asyncio.wait_for(gate.entered.wait(), 10)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    gate.opened.set()
    await registry.write(note)
    assert await count(registry) == 2


async def test_a_failure_nobody_waits_for_is_logged(
    registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()

    async def fail(session: WriteSession) -> None:
        await gate(session)
        raise LookupError("unheard")

    caller = asyncio.create_task(registry.write(fail))
    await asyncio.wait_for(gate.entered.wait(), 10)
    caller.cancel()
    gate.opened.set()
    await registry.write(note)
    assert "after its caller was cancelled" in caplog.text
    assert "unheard" in caplog.text


async def test_cancelled_reads_leave_the_registry_usable(registry: Registry) -> None:
    for _ in range(20):
        read = asyncio.create_task(count(registry))
        await asyncio.wait({read}, timeout=0.0005)
        read.cancel()
        await asyncio.wait({read})
    assert await count(registry) == 0


async def test_a_write_inside_a_write_is_refused_rather_than_stuck(registry: Registry) -> None:
    async def nested(session: WriteSession) -> None:
        await registry.write(note)

    with pytest.raises(RuntimeError, match="inside a write"):
        await registry.write(nested)


async def test_closing_finishes_the_writes_that_wait(tmp_path: Path) -> None:
    opened = await open_migrated(tmp_path / "registry.db")
    writes = [asyncio.create_task(opened.write(note)) for _ in range(20)]
    await asyncio.gather(*writes, asyncio.create_task(opened.close()))
    again = await open_migrated(tmp_path / "registry.db")
    assert await count(again) == 20
    await again.close()


async def test_closing_waits_for_open_reads(tmp_path: Path) -> None:
    opened = await open_migrated(tmp_path / "registry.db")
    async with opened.read() as session:
        closing = asyncio.create_task(opened.close())
        await asyncio.wait({closing}, timeout=0.05)
        assert not closing.done()
        assert await audit.recent(session, 1) == []
    await asyncio.wait_for(closing, 10)


async def test_closing_gives_up_a_write_that_never_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(db, "_DRAIN_S", 0.02)
    opened = await open_migrated(tmp_path / "registry.db")
    gate = Gate()
    stuck = asyncio.create_task(opened.write(gate))
    await asyncio.wait_for(gate.entered.wait(), 10)
    behind = asyncio.create_task(opened.write(note))
    await asyncio.wait_for(asyncio.create_task(opened.close()), 10)
    for write in (stuck, behind):
        with pytest.raises(RegistryClosed):
            await write
    again = await open_migrated(tmp_path / "registry.db")
    assert await count(again) == 0
    await again.close()


async def test_a_closed_registry_takes_no_work(tmp_path: Path) -> None:
    opened = await open_migrated(tmp_path / "registry.db")
    await opened.close()
    with pytest.raises(RegistryClosed, match="accepts no more work"):
        await opened.write(note)
    with pytest.raises(RegistryClosed):
        async with opened.read():
            pass
