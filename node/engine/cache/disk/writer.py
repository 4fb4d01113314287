"""The writer of the disk tier: the only thread that changes its folder and its index."""

import logging
from pathlib import Path

from node.engine.cache.disk.file_index import FileRow, Index
from node.engine.cache.disk.files import Abandoned, file_path, store
from node.engine.cache.disk.folder import quarantine, wipe
from node.engine.cache.disk.shared import ClearJob, DeleteJob, Job, SaveJob, Shared, WriteJob
from node.engine.cache.parts import FileWriteFailed, FileWritten

SAVE_S = 5.0
"""Longest time until a use is saved in the index while nothing is written."""

logger = logging.getLogger(__name__)


class FileWriter:
    """Runs one job after the other."""

    def __init__(self, shared: Shared, folder: Path, index: Index) -> None:
        self._shared = shared
        self._files = shared.dependencies.files
        self._folder = folder
        self._index = index

    def run(self) -> None:
        """Runs until the tier closes and all jobs are done; closes the index."""
        try:
            while (job := self._next()) is not None:
                try:
                    self._do(job)
                except Exception as error:  # noqa: BLE001 - the thread's edge: jobs come after it
                    # Its remains are repaired at the next start.
                    logger.warning("The disk cache failed at %s: %s", type(job).__name__, error)
        finally:
            self._index.close()

    def _next(self) -> Job | None:
        shared = self._shared
        with shared.changed:
            shared.working = False
            shared.changed.notify_all()
            shared.changed.wait_for(lambda: shared.jobs or shared.closing, SAVE_S)
            if shared.closing and not shared.jobs and not shared.touched:
                return None
            shared.working = True
            return shared.jobs.popleft() if shared.jobs else SaveJob()

    def _do(self, job: Job) -> None:
        match job:
            case WriteJob():
                self._write(job)
            case DeleteJob(files, file):
                self._delete(files)
                if file:
                    self._index.delete((file,))
                    quarantine(self._files, file_path(self._folder, file))
            case ClearJob():
                try:
                    self._index.clear()
                finally:
                    wipe(self._folder, self._files)
            case SaveJob():
                self._index.touch(self._take_touched())

    def _write(self, job: WriteJob) -> None:
        shared, item = self._shared, job.item
        checksum = None
        failure: Exception | None = None
        try:
            checksum = self._store(job)
        except Abandoned:
            pass  # no longer needed, or no room: no failure of the disk
        except Exception as error:  # noqa: BLE001 - the engine waits for a report of each file
            failure = error
        with shared.changed:
            wanted = shared.catalog.get(item.file) is item
            del shared.writes[item.file]
            shared.queued_bytes -= item.nbytes
            if checksum is not None:
                shared.count_write(item.nbytes)
                shared.outage.succeeded()
            if failure is not None:
                shared.count_failed_write()
                shared.outage.failed(failure, shared.dependencies.monotonic_s())
            if checksum is not None and wanted:
                shared.catalog.written(item, checksum)
                shared.report(FileWritten(item.file, item.nbytes))
            else:
                if wanted:
                    shared.remove(item.file, report=False)
                shared.report(FileWriteFailed(item.file))
        if checksum is not None and not wanted:
            self._delete((item.file,))

    def _store(self, job: WriteJob) -> int:
        """Makes room, writes the file and then its row. Raises `Abandoned`, `OSError` and
        `sqlite3.Error`; then no trace of the file is left."""
        shared, item = self._shared, job.item
        with shared.changed:
            if not shared.is_needed(item) or shared.outage.paused(
                shared.dependencies.monotonic_s()
            ):
                raise Abandoned
            gone, room = self._make_room(item.nbytes)
        self._delete(gone)
        if not room:
            raise Abandoned
        path = file_path(self._folder, item.file)
        checksum = store(self._files, path, job.layout, lambda: shared.is_needed(item))
        with shared.changed:
            shared.budget.spend(item.nbytes, shared.dependencies.unix_s())
            day, day_bytes = shared.budget.day, shared.budget.written_bytes
            used = self._take_touched()
        try:
            self._index.add(_row(job, checksum), used, day, day_bytes)
        except BaseException:
            self._files.unlink(path)
            raise
        return checksum

    def _make_room(self, nbytes: int) -> tuple[tuple[int, ...], bool]:
        """Returns the files to delete, already removed from the catalog, and True if that is
        enough."""
        catalog, limits = self._shared.catalog, self._shared.limits
        gone: tuple[int, ...] = ()
        while catalog.nbytes + nbytes > limits.max_bytes or catalog.files >= limits.max_files:
            item = catalog.coldest(self._shared.awaited)
            if item is None:
                return gone, False
            gone += self._shared.remove(item.file, report=True)
        return gone, True

    def _delete(self, files: tuple[int, ...]) -> None:
        # Rows first: a killed process then leaves files without rows, which do no harm.
        self._index.delete(files)
        for file in files:
            self._files.unlink(file_path(self._folder, file))

    def _take_touched(self) -> dict[int, int]:
        with self._shared.changed:
            touched, self._shared.touched = self._shared.touched, {}
        return touched


def _row(job: WriteJob, checksum: int) -> FileRow:
    item = job.item
    return FileRow(
        item.file,
        item.kind,
        item.parent_file,
        job.parent_tokens,
        job.tokens,
        item.nbytes,
        checksum,
        item.used,
    )
