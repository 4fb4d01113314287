"""Backups: a consistent copy of a registry in one file, what is in one, and its way back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar
from urllib.parse import quote

from registry.claim import claim, database_file
from registry.db import Registry, translated
from registry.errors import NewerBackup, NewerRegistry, NoBackup, RegistryFailed
from registry.migrate import migrate
from serving.processes.process_lock import write_private
from serving.whole_file import sync

T = TypeVar("T")
OnStep = Callable[[int, int], object]
"""Called with the number of pages that are copied, and that of all."""

_STEP_PAGES = 1_000
"""Pages that are copied while other threads wait for nothing but the interpreter."""
_MADE_AT = "backup_made_at_s"
"""Key of `meta` in a backup: when it was made."""
_OWN_TABLES = ("alembic_version", "meta")


def _ignore(_done: int, _all: int) -> None:
    return


@dataclass(frozen=True, slots=True)
class Contents:
    """A backup's revision, age and rows."""

    revision: str
    made_at_s: float | None
    """None for a file that is no backup but a registry itself."""
    rows: Mapping[str, int]
    """Number of rows by table, the registry's own values left out."""


@dataclass(frozen=True, slots=True)
class Restored:
    """A registry that was put in place."""

    path: Path
    contents: Contents
    revision: str
    """The revision after the migration."""
    replaced: Path | None
    """The registry that was there before; None if there was none."""


class Backups:
    """Makes backups of an open registry, one at a time."""

    def __init__(self, path: Path) -> None:
        """`path` is the registry's file."""
        self._path = path
        self._partial = path.with_name(f"{path.name}.copying")
        self._lock = asyncio.Lock()

    async def take(self) -> BinaryIO:
        """Returns a backup as an open file without a name. Writes go on meanwhile, and what is
        committed after the call is not in it.

        Raises RegistryFull or RegistryFailed.
        """
        async with self._lock:
            return await asyncio.to_thread(self._take)

    def _take(self) -> BinaryIO:
        try:
            back_up(self._path, self._partial)
            return self._partial.open("rb")
        finally:
            self._partial.unlink(missing_ok=True)


def back_up(registry: Path, target: Path, on_step: OnStep = _ignore) -> None:
    """Copies a registry, open or not, to `target`, which is replaced and private to its owner.

    Raises NoBackup if there is none, RegistryFull or RegistryFailed.
    """
    copy_database(registry, target, on_step)
    with _opened(target, "rw") as database, translated(target):
        database.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (_MADE_AT, str(time.time())))
    sync(target)


def copy_database(source: Path, target: Path, on_step: OnStep = _ignore) -> None:
    """Copies a database as it is at this moment, in one read transaction; `target` has no write-
    ahead log. Raises what `back_up` raises."""
    if not source.is_file():
        raise NoBackup(source, "there is no such file")
    with translated(target):
        _make_private(target)
        with _opened(source, "ro") as origin, _opened(target, "rw") as copy:
            # Within a read transaction SQLite never begins the copy anew, whatever is written.
            with translated(source):
                origin.execute("BEGIN")
                origin.execute("SELECT count(*) FROM sqlite_master").fetchone()
            copy.execute("PRAGMA synchronous=OFF")
            origin.backup(
                copy,
                pages=_STEP_PAGES,
                progress=lambda _status, left, pages: on_step(pages - left, pages),
            )
            copy.execute("PRAGMA journal_mode=DELETE")
    sync(target)


def read_contents(path: Path) -> Contents:
    """Checks a backup page by page and counts its rows. Raises NoBackup."""
    if not path.is_file():
        raise NoBackup(path, "there is no such file")
    with _opened(path, "ro") as database:
        return _named(path, lambda: _contents(path, database))


def first_fault(path: Path) -> str:
    """Reads a registry, open or not, page by page; returns what is damaged, or nothing."""
    try:
        with _opened(path, "ro") as database:
            (found,) = database.execute("PRAGMA quick_check(1)").fetchone()
    except (sqlite3.Error, NoBackup) as error:
        return str(error)
    return "" if found == "ok" else str(found)


async def restore(
    backup: Path, url: str | Path, prepare: Callable[[Registry], Awaitable[T]]
) -> tuple[Restored, T]:
    """Puts a backup in the place of the registry at `url`, which is kept beside it.

    The backup is copied, checked, migrated and handed to `prepare` first; until all of that has
    succeeded the registry stays as it is. Raises NoBackup, NewerBackup, and RegistryLocked while
    another process has the registry.
    """
    path = database_file(url)
    read_contents(backup)
    lock = claim(path)
    staged = path.with_name(f"{path.name}.restoring")
    try:
        copy_database(backup, staged)
        contents = read_contents(staged)
        revision, prepared = await _prepared(backup, staged, prepare)
        replaced = _set_aside(path)
        staged.replace(path)
        sync(path.parent)
    finally:
        for left in (staged, *_beside(staged)):
            left.unlink(missing_ok=True)
        if path.exists() and not path.stat().st_size:
            path.unlink()
        lock.release()
    return Restored(path, contents, revision, replaced), prepared


async def _prepared(
    backup: Path, staged: Path, prepare: Callable[[Registry], Awaitable[T]]
) -> tuple[str, T]:
    registry = await Registry.open(staged)
    try:
        done = await migrate(registry)
        prepared = await prepare(registry)
    except NewerRegistry as error:
        raise NewerBackup(backup, error.revision) from error
    finally:
        await registry.close()
    return done.after, prepared


def _set_aside(path: Path) -> Path | None:
    """Renames the registry with its write-ahead log, which may hold its last changes if its
    process was killed."""
    if not path.stat().st_size:
        return None
    stamp = time.strftime("%Y%m%d-%H%M%S")
    number = 0
    while (kept := path.with_name(f"{path.stem}-replaced-{stamp}{number or ''}.db")).exists():
        number += 1
    path.rename(kept)
    for log, kept_log in zip(_beside(path)[:2], _beside(kept)[:2], strict=True):
        if log.exists():
            log.rename(kept_log)
    return kept


def _beside(path: Path) -> tuple[Path, ...]:
    """The files that SQLite and the lock make beside a database."""
    return tuple(path.with_name(path.name + end) for end in ("-wal", "-shm", ".lock", ".pid"))


def _contents(path: Path, database: sqlite3.Connection) -> Contents:
    tables = {
        row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type='table'")
    }
    if not tables.issuperset(_OWN_TABLES):
        raise NoBackup(path, "it is another database")
    revisions = [row[0] for row in database.execute("SELECT version_num FROM alembic_version")]
    if len(revisions) != 1:
        raise NoBackup(path, "it has no revision")
    (found,) = database.execute("PRAGMA integrity_check(1)").fetchone()
    if found != "ok":
        raise NoBackup(path, f"it is damaged: {found}")
    made = database.execute("SELECT value FROM meta WHERE key=?", (_MADE_AT,)).fetchone()
    rows = {
        name: int(database.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0])
        for name in sorted(tables.difference(_OWN_TABLES))
        if not name.startswith("sqlite_")
    }
    return Contents(revisions[0], float(made[0]) if made else None, rows)


def _named(path: Path, work: Callable[[], T]) -> T:
    """Runs what reads a database; if it fails, the file is none."""
    try:
        return work()
    except (sqlite3.Error, ValueError) as error:
        raise NoBackup(path, str(error)) from error


@contextlib.contextmanager
def _opened(path: Path, mode: str) -> Iterator[sqlite3.Connection]:
    """A connection without transactions of its own; `mode` is SQLite's, `ro` or `rw`."""
    uri = f"file:{quote(str(path.resolve()))}?mode={mode}"
    try:
        connection = sqlite3.connect(uri, uri=True, isolation_level=None)
    except sqlite3.Error as error:
        raise NoBackup(path, str(error)) from error
    with contextlib.closing(connection):
        yield connection


def _make_private(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
        write_private(path, "", os.O_EXCL)
    except OSError as error:
        raise RegistryFailed(path, error.strerror or str(error)) from error
