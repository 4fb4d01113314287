"""The open registry: one lock file, one queue of writes, a few connections for reading."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Executable, RowMapping, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import (
    DBAPIError,
    IntegrityError,
    InterfaceError,
    ProgrammingError,
    SQLAlchemyError,
)
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from registry.claim import claim, database_file
from registry.errors import (
    ReadOnlyRegistry,
    RefusedRow,
    RegistryClosed,
    RegistryError,
    RegistryFailed,
    RegistryFull,
    RegistryLocked,
)
from registry.trouble import Trouble
from serving.processes.process_lock import ProcessLock

T = TypeVar("T")

_LOG = logging.getLogger(__name__)
_REFUSALS = (OverflowError, UnicodeEncodeError, IntegrityError, InterfaceError, ProgrammingError)
"""Errors for a value that no column can store: sqlite3's own, and Python's from within it."""
_BUSY_TIMEOUT_MS = 5_000
_DURABLE = ("synchronous=FULL", "fullfsync=ON", "checkpoint_fullfsync=ON")
"""Makes writes survive a power loss: on macOS a plain sync leaves data in the disk's cache."""
_DRAIN_S = 10.0
_READERS = 4


class ReadSession:
    """One consistent view of the registry; made by `Registry.read`, passed to what queries it."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def fetch_all(self, statement: Executable) -> Sequence[RowMapping]:
        """All rows of the statement, by column name."""
        return (await self._connection.execute(statement)).mappings().all()

    async def fetch_one(self, statement: Executable) -> RowMapping | None:
        """The statement's only row, or None; more than one row is a RegistryFailed."""
        return (await self._connection.execute(statement)).mappings().one_or_none()


class WriteSession(ReadSession):
    """A ReadSession inside a transaction that may write; made by `Registry.write`."""

    async def execute(
        self, statement: Executable, rows: Sequence[dict[str, Any]] | None = None
    ) -> int:
        """Run the statement, once for each of `rows` if given; the number of rows changed."""
        # SQLAlchemy promises the count of an INSERT only with this option.
        result = await self._connection.execute(
            statement, rows, execution_options={"preserve_rowcount": True}
        )
        return result.rowcount

    async def execute_text(self, sql: str, rows: Sequence[tuple[Any, ...]]) -> int:
        """The same for a statement in SQLite's words with one `?` for each value of a row. Raises
        RefusedRow, after which the transaction goes on with the rows before that one."""
        kept = {"preserve_rowcount": True}
        try:
            return (await self._connection.exec_driver_sql(sql, list(rows), kept)).rowcount
        except _REFUSALS as error:
            raise RefusedRow from error

    async def run_sync(self, work: Callable[[Connection], T]) -> T:
        """Run plain SQLAlchemy code on this transaction's connection; for Alembic."""
        return await self._connection.run_sync(work)


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    work: Callable[[WriteSession], Awaitable[Any]]
    done: asyncio.Future[Any]
    changes_schema: bool


class Registry:
    """The registry while this process holds it open; every method belongs to one event loop."""

    def __init__(self, path: Path, lock: ProcessLock) -> None:
        """For `Registry.open` alone, which makes the file safe and takes the lock."""
        self.path = path
        self._lock = lock
        self._writer_engine = _engine(path, begin="BEGIN IMMEDIATE", pool_size=1)
        self._reader_engine = _engine(path, begin="BEGIN", pool_size=_READERS)
        self._queue: asyncio.Queue[_Job | None] = asyncio.Queue()
        self._running: asyncio.Task[Any] | None = None
        self._writer: asyncio.Task[None] | None = None
        self._closing = False
        self.trouble = Trouble()
        self._reads = 0
        self._no_reads = asyncio.Event()
        self._no_reads.set()

    @classmethod
    async def open(cls, url: str | Path) -> Registry:
        """Open a path, `sqlite:///path` or `sqlite+aiosqlite:///path`; runs no migration.

        Raises UnsupportedUrl, ReadOnlyRegistry, RegistryLocked, or RegistryFailed when the
        file is no SQLite database or its disk cannot do WAL.
        """
        path = database_file(url)
        lock = claim(path)
        registry = cls(path, lock)
        try:
            await registry._start()
        except BaseException:
            await registry.close()
            raise
        return registry

    @contextlib.asynccontextmanager
    async def read(self) -> AsyncIterator[ReadSession]:
        """A session on one snapshot; keep it short, since it holds one of a few connections.

        Raises RegistryClosed, or RegistryFailed when the database fails.
        """
        if self._closing:
            raise RegistryClosed
        self._reads += 1
        self._no_reads.clear()
        try:
            with translated(self.path):
                async with self._reader_engine.connect() as connection:
                    yield ReadSession(connection)
        finally:
            self._reads -= 1
            if not self._reads:
                self._no_reads.set()

    async def write(self, work: Callable[[WriteSession], Awaitable[T]]) -> T:
        """Queue `work`, run it in one transaction, and hand back what it returned or raised.

        An exception rolls the transaction back. A caller cancelled before its turn writes
        nothing; one cancelled later has its work finished and committed all the same.
        `work` must await nothing but its session: all other writes wait for it.
        Raises RegistryClosed, RegistryLocked, ReadOnlyRegistry or RegistryFailed.
        """
        return await self._submit(work, changes_schema=False)

    async def write_schema(self, work: Callable[[WriteSession], Awaitable[T]]) -> T:
        """Like `write`, with foreign keys off, and checked before the commit.

        SQLite's batch migrations drop and remake tables; with foreign keys on, the drop
        would delete the rows that refer to them.
        """
        return await self._submit(work, changes_schema=True)

    async def close(self) -> None:
        """Finish queued writes, checkpoint, close all files, release the lock; may be repeated.

        Waits at most 10 s each for writes and for reads; writes left then raise RegistryClosed.
        """
        if self._closing:
            return
        self._closing = True
        try:
            await self._drain()
        finally:
            await self._reader_engine.dispose()
            await self._writer_engine.dispose()
            self._lock.release()

    async def _start(self) -> None:
        with translated(self.path):
            async with self._writer_engine.connect() as connection:
                mode = await _pragma(connection, "journal_mode=WAL")
        if mode != "wal":
            raise RegistryFailed(self.path, "its disk does not support SQLite's WAL mode")
        self._writer = asyncio.create_task(self._serve(), name="registry writer")

    async def _submit(
        self, work: Callable[[WriteSession], Awaitable[T]], *, changes_schema: bool
    ) -> T:
        if self._closing or self._writer is None or self._writer.done():
            raise RegistryClosed
        if asyncio.current_task() is self._running:
            raise RuntimeError("a write inside a write would wait for itself; pass the session on")
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait(_Job(work, done, changes_schema))
        return await done

    async def _serve(self) -> None:
        try:
            while (job := await self._queue.get()) is not None:
                if not job.done.cancelled():
                    await self._run(job)
        finally:
            while not self._queue.empty():
                job = self._queue.get_nowait()
                if job is not None and not job.done.done():
                    job.done.set_exception(RegistryClosed())

    async def _run(self, job: _Job) -> None:
        # A task of its own: whatever it raises, CancelledError too, leaves the writer alive.
        task = self._running = asyncio.create_task(self._transact(job))
        try:
            await asyncio.wait({task})
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
            self._running = None
            self._settle(job, task)

    def _settle(self, job: _Job, task: asyncio.Task[Any]) -> None:
        """Hand the outcome to the caller, or to the log when the caller is gone."""
        error = None if task.cancelled() else task.exception()
        if not task.cancelled():
            self.trouble.on_write(error)
        if job.done.cancelled():
            if error is not None:
                _LOG.error("a write failed after its caller was cancelled", exc_info=error)
        elif error is not None:
            job.done.set_exception(error)
        elif not task.cancelled():
            job.done.set_result(task.result())
        elif self._closing:
            job.done.set_exception(RegistryClosed())
        else:
            job.done.cancel()

    async def _transact(self, job: _Job) -> Any:
        with translated(self.path):
            async with self._writer_engine.connect() as connection:
                if job.changes_schema:
                    return await self._transact_schema(job, connection)
                async with connection.begin():
                    return await job.work(WriteSession(connection))

    async def _transact_schema(self, job: _Job, connection: AsyncConnection) -> Any:
        await _pragma(connection, "foreign_keys=OFF")
        try:
            async with connection.begin():
                result = await job.work(WriteSession(connection))
                broken = await connection.exec_driver_sql("PRAGMA foreign_key_check")
                if (row := broken.first()) is not None:
                    raise RegistryFailed(self.path, f"a row of {row[0]} refers to a missing row")
                return result
        finally:
            await _pragma(connection, "foreign_keys=ON")

    async def _drain(self) -> None:
        self._queue.put_nowait(None)
        if self._writer is None:
            return
        try:
            await asyncio.wait({self._writer}, timeout=_DRAIN_S)
        finally:
            self._writer.cancel()
            await asyncio.wait({self._writer})
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._no_reads.wait(), _DRAIN_S)
        with translated(self.path):
            async with self._writer_engine.connect() as connection:
                await _pragma(connection, "wal_checkpoint(TRUNCATE)")


def _engine(path: Path, *, begin: str, pool_size: int) -> AsyncEngine:
    """An engine whose transactions start with `begin`; all but BEGIN IMMEDIATE only read."""
    engine = create_async_engine(
        URL.create("sqlite+aiosqlite", database=str(path)),
        pool_size=pool_size,
        max_overflow=0,
        hide_parameters=True,  # a logged statement would show credentials
        # Transactions start in on_begin alone: sqlite3 starts none before SELECT and DDL.
        connect_args={"isolation_level": None},
    )
    pragmas = [f"busy_timeout={_BUSY_TIMEOUT_MS}", "foreign_keys=ON", *_DURABLE]
    if begin != "BEGIN IMMEDIATE":
        pragmas.append("query_only=ON")

    def on_connect(connection: Any, _record: object) -> None:
        cursor = connection.cursor()
        for pragma in pragmas:
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    def on_begin(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    event.listen(engine.sync_engine, "connect", on_connect)
    event.listen(engine.sync_engine, "begin", on_begin)
    return engine


async def _pragma(connection: AsyncConnection, text: str) -> Any:
    """Run a pragma outside any transaction, where SQLAlchemy would begin one; its first value."""
    driver: Any = (await connection.get_raw_connection()).driver_connection
    rows = await driver.execute_fetchall(f"PRAGMA {text}")
    return rows[0][0] if rows else None


@contextlib.contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn the database's exceptions into ours, since no other package knows SQLAlchemy."""
    try:
        yield
    except (SQLAlchemyError, sqlite3.Error) as error:
        raise _named(error, path) from error
    except (OverflowError, UnicodeEncodeError) as error:
        raise RefusedRow from error


def _named(error: Exception, path: Path) -> RegistryError:
    cause = error.orig if isinstance(error, DBAPIError) else error
    name = getattr(cause, "sqlite_errorname", None) or ""
    if name == "SQLITE_FULL":
        return RegistryFull(path)
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
        return ReadOnlyRegistry(path, str(cause))
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return RegistryLocked(path)
    return RegistryFailed(path, str(cause))
