"""The disk tier of the prefix cache: files with entries that memory has no room for.

    write() -> queue -> writer thread: temporary file, fsync, rename, fsync of the folder, row
    read()  -> queue -> reader thread: one buffer, its checksum, views of it
    poll()  <- reports

The engine's thread only changes the catalog, under a lock under which no I/O is done. The writer
makes every change of the folder and of the index, one after the other: a process killed at any
moment leaves complete files with rows, and at most one file without.
"""

import logging
import re
import sqlite3
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from node.engine.cache.disk.catalog import Catalog, Item
from node.engine.cache.disk.file_index import FileRow, Index
from node.engine.cache.disk.files import Files, file_path
from node.engine.cache.disk.folder import (
    FolderLock,
    TierUnavailable,
    make_folder,
    open_index,
    reconcile,
)
from node.engine.cache.disk.format import encode
from node.engine.cache.disk.limits import DayBudget, Limits
from node.engine.cache.disk.reader import FileReader
from node.engine.cache.disk.shared import (
    ClearJob,
    DeleteJob,
    ReadJob,
    SaveJob,
    Shared,
    TierDependencies,
    WriteJob,
)
from node.engine.cache.disk.writer import FileWriter
from node.engine.cache.parts import (
    DiskEntry,
    DiskReport,
    EntryKind,
    FileLost,
    FileRead,
    Tensors,
    Tokens,
)
from node.ipc.disk_figures import DiskFigures
from node.ipc.kv_files import POSITIONS_NAME

READS_AT_ONCE = 2
"""Number of files with memory: the one that is being read, and the next."""
CLOSE_S = 10.0
"""Seconds that `close` waits for each thread."""

logger = logging.getLogger(__name__)


def open_tier(
    folder: Path, limits: Limits, fingerprint: str, *, dependencies: TierDependencies | None = None
) -> "SsdTier":
    """Opens the tier in `folder/fingerprint`, with the files of an earlier process.

    Raises `TierBusy` if another process uses it, `TierUnavailable` if the disk fails, and
    `ValueError` if the fingerprint is no name of a folder.
    """
    if not re.fullmatch(r"\w[\w.-]*", fingerprint, re.ASCII):
        raise ValueError(f"{fingerprint!r} is no name of a folder.")
    own = folder / fingerprint
    dependencies = dependencies or TierDependencies()
    try:
        make_folder(own)
        lock = FolderLock(own)
        try:
            index = open_index(own)
            catalog, rows = _recover(own, index, limits, dependencies.files)
            budget = DayBudget(limits.max_bytes_per_day, *index.last_day())
            next_file = index.last_file() + 1
        except (OSError, sqlite3.Error):
            lock.release()
            raise
    except (OSError, sqlite3.Error) as error:
        raise TierUnavailable(f"The disk cache in {own} cannot be used: {error}") from error
    shared = Shared(catalog, limits, budget, dependencies)
    threads = FileWriter(shared, own, index), FileReader(shared, own)
    return SsdTier(own, shared, threads, lock, rows, next_file)


class SsdTier:
    """A `DiskTier` over one folder."""

    def __init__(
        self,
        folder: Path,
        shared: Shared,
        threads: tuple[FileWriter, FileReader],
        lock: FolderLock,
        rows: Iterable[FileRow],
        next_file: int,
    ) -> None:
        self.folder = folder
        self._shared = shared
        writer, reader = threads
        self._lock: FolderLock | None = lock
        self._rows = list(rows)
        self._next_file = next_file
        self._unread: deque[Item] = deque()
        """Files to be read that have no memory yet."""
        self._reading: set[int] = set()
        """Files to be read that have memory."""
        self._threads = [
            threading.Thread(target=writer.run, name="disk-cache-writer", daemon=True),
            threading.Thread(target=reader.run, name="disk-cache-reader", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def nbytes(self) -> int:
        """Size of all complete files."""
        return self._shared.catalog.nbytes

    @property
    def read_bytes_per_s(self) -> float:
        return self._shared.read_bytes_per_s

    @property
    def figures(self) -> DiskFigures:
        return self._shared.figures

    def entries(self) -> Sequence[DiskEntry]:
        """Returns the files of an earlier process, parents first; called once."""
        rows, self._rows = self._rows, []
        return [
            DiskEntry(
                row.file,
                row.kind,
                row.parent_file,
                row.parent_tokens,
                np.frombuffer(row.tokens, dtype=np.int32),
                row.nbytes,
            )
            for row in rows
        ]

    def write(
        self, kind: str, parent: tuple[int, int], tokens: Tokens, tensors: Tensors
    ) -> int | None:
        """See `DiskTier`. Also returns None if the parent is unknown, or writing is paused after
        failures. A file dropped before it is written is still reported, as `FileWriteFailed`."""
        layout = encode(tensors)
        parent_file, parent_tokens = parent
        shared = self._shared
        with shared.changed:
            if not self._takes(layout.nbytes, parent_file):
                return None
            file, self._next_file = self._next_file, self._next_file + 1
            item = Item(file, kind, parent_file, layout.nbytes)
            shared.catalog.add(item)
            job = WriteJob(item, parent_tokens, _int32_bytes(tokens), layout, tensors)
            shared.writes[file] = job
            shared.queued_bytes += layout.nbytes
            shared.add_job(job)
        return file

    def read(self, file: int) -> None:
        """See `DiskTier`. A file that is not written yet is reported at once, from memory."""
        shared = self._shared
        with shared.changed:
            item = shared.catalog.get(file)
            if item is None:
                shared.report(FileLost(file))
            elif not item.on_disk:
                shared.report(FileRead(file, shared.writes[file].tensors))
            elif file not in shared.awaited:
                shared.awaited.add(file)
                self._unread.append(item)
        self._start_reads()

    def touch(self, files: Sequence[int]) -> None:
        with self._shared.changed:
            self._shared.touched.update(self._shared.catalog.touch(files))

    def drop(self, file: int) -> None:
        """See `DiskTier`. Files that continue it are deleted too, and reported."""
        with self._shared.changed:
            if file in self._shared.catalog:
                self._shared.add_job(DeleteJob(self._shared.remove(file, report=False)))

    def poll(self) -> list[DiskReport]:
        with self._shared.changed:
            reports, self._shared.reports = self._shared.reports, []
        self._start_reads()
        return reports

    def flush(self, timeout_s: float) -> None:
        """Waits until all queued writes and deletions are done."""
        shared = self._shared
        with shared.changed:
            shared.add_job(SaveJob())
            shared.changed.wait_for(lambda: not shared.jobs and not shared.working, timeout_s)

    def clear(self) -> None:
        """See `DiskTier`. The files are gone once `flush` returns."""
        shared = self._shared
        with shared.changed:
            for file in shared.awaited:
                shared.report(FileLost(file))
            shared.awaited.clear()
            shared.reads.clear()
            self._unread.clear()
            shared.touched.clear()
            shared.catalog.clear()
            self._rows = []
            shared.add_job(ClearJob())

    def close(self) -> None:
        """Ends the threads. Queued writes are reported as `FileWriteFailed`; deletions are still
        done."""
        with self._shared.changed:
            self._shared.closing = True
            self._shared.changed.notify_all()
        for thread in self._threads:
            thread.join(CLOSE_S)
        if any(thread.is_alive() for thread in self._threads):
            # The threads still run: the lock stays until the process ends.
            logger.warning("The disk does not respond; the disk cache is left as it is.")
        elif self._lock is not None:
            self._lock.release()
            self._lock = None

    def _start_reads(self) -> None:
        """Allocates memory for the next files, a few at a time: the allocation takes as long as a
        copy, on the engine's thread."""
        shared = self._shared
        while self._unread:
            with shared.changed:
                self._reading &= shared.awaited
            if len(self._reading) >= READS_AT_ONCE:
                return
            item = self._unread.popleft()
            if not shared.awaits(item.file):
                continue
            # Without the lock: it may take a while, and the writer needs the lock.
            try:
                job = ReadJob(item, shared.dependencies.memory(item.nbytes))
            except BaseException:
                # Else rows would wait for ever for a read that has not begun.
                with shared.changed:
                    shared.add_job(DeleteJob(shared.remove(item.file, report=True)))
                raise
            self._reading.add(item.file)
            with shared.changed:
                shared.reads.append(job)
                shared.changed.notify_all()

    def _takes(self, nbytes: int, parent_file: int) -> bool:
        shared, limits = self._shared, self._shared.limits
        if shared.closing or nbytes > limits.max_bytes:
            return False
        if parent_file:
            parent = shared.catalog.get(parent_file)
            if parent is None or parent.kind != EntryKind.SPAN:
                return False
        if shared.writes and (
            len(shared.writes) >= limits.queue_files
            or shared.queued_bytes + nbytes > limits.queue_bytes
        ):
            return False
        if shared.outage.paused(shared.dependencies.monotonic_s()):
            return False
        return shared.budget.allows(shared.queued_bytes + nbytes, shared.dependencies.unix_s())


def _int32_bytes(tokens: Tokens) -> bytes:
    return np.ascontiguousarray(tokens, dtype=np.int32).tobytes()


def _recover(
    folder: Path, index: Index, limits: Limits, files: Files
) -> tuple[Catalog, list[FileRow]]:
    """Reads the files in the folder, and deletes those beyond the limits. Raises `OSError` and
    `sqlite3.Error`."""
    rows = reconcile(folder, index, files)
    catalog = Catalog()
    catalog.restore(
        Item(
            row.file,
            row.kind,
            row.parent_file,
            row.nbytes,
            row.checksum,
            row.used,
            on_disk=True,
        )
        for row in rows
    )
    gone = []
    while catalog.nbytes > limits.max_bytes or catalog.files > limits.max_files:
        coldest = catalog.coldest(busy=())
        if coldest is None:
            break
        catalog.remove(coldest.file)
        gone.append(coldest.file)
    index.delete(gone)
    for file in gone:
        files.unlink(file_path(folder, file))
    if gone and not catalog.files:
        files.unlink(folder / POSITIONS_NAME)
    return catalog, [row for row in rows if row.file in catalog]
