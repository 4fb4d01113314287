"""Backups of a registry, and registries restored from them."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text

from registry import audit, backup
from registry.backup import Backups, back_up, read_contents, restore
from registry.db import Registry, WriteSession
from registry.errors import NewerBackup, NoBackup, RegistryFailed, RegistryLocked
from registry.migrate import open_migrated
from registry.records import AuditRecord
from tests.migrations.test_rows import at_revision


async def nothing(_registry: Registry) -> None:
    return


async def fill(registry: Registry, pairs: int) -> None:
    async def add(session: WriteSession) -> None:
        for _ in range(2 * pairs):
            await audit.add(session, AuditRecord(1.0, "boss", "did", "it", "x" * 2_000))

    await registry.write(add)


async def subjects(path: Path) -> list[str]:
    registry = await open_migrated(path)
    async with registry.read() as session:
        found = [entry.subject for entry in await audit.recent(session, 1_000)]
    await registry.close()
    return found


async def noted(path: Path, subject: str) -> None:
    """Makes a registry with one audit event."""
    registry = await open_migrated(path)
    await registry.write(lambda s: audit.add(s, AuditRecord(1.0, "boss", "did", subject, "")))
    await registry.close()


def raw(path: Path, sql: str) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute(sql)
        database.commit()


async def test_a_backup_is_one_moment_whatever_is_written_meanwhile(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each transaction adds two events, so that an odd number would be half of one."""
    await fill(registry, 20)
    monkeypatch.setattr(backup, "_STEP_PAGES", 5)
    steps: list[int] = []
    other = sqlite3.connect(registry.path, isolation_level=None)

    def write(done: int, _pages: int) -> None:
        steps.append(done)
        assert len(steps) < 1_000, "it begins anew at each write"
        values = "VALUES (1.0, 'boss', 'did', 'it', 'y')"
        other.execute("BEGIN IMMEDIATE")
        for _ in range(2):
            other.execute(f"INSERT INTO audit (at_s, actor, verb, subject, detail) {values}")
        other.execute("COMMIT")

    with closing(other):
        back_up(registry.path, tmp_path / "b", write)
    assert len(steps) > 3 and steps == sorted(steps)
    assert read_contents(tmp_path / "b").rows["audit"] == 40
    async with registry.read() as session:
        assert len(await audit.recent(session, 1_000)) == 40 + 2 * len(steps)


async def test_a_backup_is_a_private_file_without_a_log_beside_it(
    registry: Registry, tmp_path: Path
) -> None:
    file = tmp_path / "b"
    file.write_text("old")
    file.chmod(0o644)
    back_up(registry.path, file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    contents = read_contents(file)
    assert contents.made_at_s is not None and contents.rows["nodes"] == 0
    assert sorted(path.name for path in tmp_path.glob("b*")) == ["b"]


async def test_an_open_registry_gives_a_backup_without_a_name(registry: Registry) -> None:
    await fill(registry, 1)
    with await Backups(registry.path).take() as file:
        assert os.fstat(file.fileno()).st_nlink == 0
        assert file.read(15) == b"SQLite format 3"
    assert not list(registry.path.parent.glob("*.copying"))


async def test_what_is_no_registry_is_named_with_the_reason(
    registry: Registry, tmp_path: Path
) -> None:
    with pytest.raises(NoBackup, match="no such file"):
        read_contents(tmp_path / "none")
    (tmp_path / "text").write_text("text")
    with pytest.raises(NoBackup, match="not a database"):
        read_contents(tmp_path / "text")
    raw(tmp_path / "other", "CREATE TABLE t (x)")
    with pytest.raises(NoBackup, match="another database"):
        read_contents(tmp_path / "other")
    await fill(registry, 10)
    back_up(registry.path, tmp_path / "b")
    whole = (tmp_path / "b").read_bytes()
    (tmp_path / "cut").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(NoBackup, match=r"damaged|malformed"):
        read_contents(tmp_path / "cut")
    with pytest.raises(RegistryFailed):
        back_up(tmp_path / "text", tmp_path / "c")


async def test_a_restored_registry_replaces_the_old_one_which_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "home" / "registry.db"
    await noted(path, "before")
    back_up(path, tmp_path / "b")
    await noted(path, "after")
    done, _ = await restore(tmp_path / "b", path, nothing)
    assert await subjects(path) == ["before"]
    assert done.replaced is not None
    assert await subjects(done.replaced) == ["after", "before"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not list(path.parent.glob("*.restoring*"))


async def test_changes_that_only_the_log_of_a_killed_router_has_are_kept_too(
    tmp_path: Path,
) -> None:
    path = tmp_path / "registry.db"
    await noted(path, "before")
    back_up(path, tmp_path / "b")
    with closing(sqlite3.connect(path)) as killed:
        killed.execute("UPDATE audit SET subject='logged'")
        killed.commit()
        log = {end: path.with_name(path.name + end).read_bytes() for end in ("-wal", "-shm")}
    for end, data in log.items():
        path.with_name(path.name + end).write_bytes(data)
    done, _ = await restore(tmp_path / "b", path, nothing)
    assert await subjects(path) == ["before"]
    assert done.replaced is not None and await subjects(done.replaced) == ["logged"]


async def test_a_backup_goes_where_there_is_no_registry(tmp_path: Path) -> None:
    await noted(tmp_path / "registry.db", "it")
    back_up(tmp_path / "registry.db", tmp_path / "b")
    done, _ = await restore(tmp_path / "b", tmp_path / "new" / "registry.db", nothing)
    assert done.replaced is None
    assert await subjects(done.path) == ["it"]


async def test_an_older_backup_is_migrated(tmp_path: Path) -> None:
    file = tmp_path / "b"
    old = await at_revision(
        file,
        "0004",
        "INSERT INTO audit (at_s, actor, verb, subject, detail) "
        "VALUES (1.0, 'boss', 'did', 'it', '')",
    )
    await old.close()
    done, _ = await restore(file, tmp_path / "registry.db", nothing)
    assert (done.contents.revision, done.contents.made_at_s) == ("0004", None)
    assert done.revision > "0004"
    assert await subjects(done.path) == ["it"]
    assert read_contents(file).revision == "0004"


Spoil = Callable[[Path], None]


def newer(file: Path) -> None:
    raw(file, "UPDATE alembic_version SET version_num='9999'")


@pytest.mark.parametrize(
    ("spoil", "error"),
    [(newer, NewerBackup), (lambda file: file.write_text("text"), NoBackup)],
    ids=["newer", "text"],
)
@pytest.mark.parametrize("there", [True, False])
async def test_a_backup_that_is_refused_changes_nothing(
    tmp_path: Path, spoil: Spoil, error: type[Exception], there: bool
) -> None:
    path = tmp_path / "home" / "registry.db"
    await noted(tmp_path / "b", "it")
    spoil(tmp_path / "b")
    if there:
        await noted(path, "own")
    with pytest.raises(error):
        await restore(tmp_path / "b", path, nothing)
    if there:
        assert await subjects(path) == ["own"]
    else:
        assert not path.exists()


async def failing(registry: Registry) -> None:
    await registry.write(lambda s: s.execute(text("DELETE FROM audit")))
    raise LookupError


@pytest.mark.parametrize("prepare", [failing])
async def test_a_preparation_that_fails_changes_nothing(
    tmp_path: Path, prepare: Callable[[Registry], Awaitable[None]]
) -> None:
    path = tmp_path / "registry.db"
    await noted(path, "own")
    back_up(path, tmp_path / "b")
    with pytest.raises(LookupError):
        await restore(tmp_path / "b", path, prepare)
    assert await subjects(path) == ["own"]
    assert not list(tmp_path.glob("*restoring*")) and not list(tmp_path.glob("*replaced*"))


async def test_a_registry_in_use_is_not_replaced(registry: Registry, tmp_path: Path) -> None:
    back_up(registry.path, tmp_path / "b")
    with pytest.raises(RegistryLocked, match="in use by process"):
        await restore(tmp_path / "b", registry.path, nothing)
