"""The reader of the disk tier: one thread that reads files and verifies them."""

import logging
from pathlib import Path

from node.engine.cache.disk.catalog import Item
from node.engine.cache.disk.files import Abandoned, file_path, load
from node.engine.cache.disk.format import decode
from node.engine.cache.disk.shared import DeleteJob, ReadJob, Shared
from node.engine.cache.parts import FileRead, Tensors

logger = logging.getLogger(__name__)


class FileReader:
    """Serves one read after the other."""

    def __init__(self, shared: Shared, folder: Path) -> None:
        self._shared = shared
        self._files = shared.dependencies.files
        self._folder = folder

    def run(self) -> None:
        """Runs until the tier closes."""
        while (job := self._next()) is not None:
            item = job.item
            began_s = self._shared.dependencies.monotonic_s()
            try:
                tensors = self._load(job)
            except Abandoned:
                continue
            except Exception as error:  # noqa: BLE001 - the thread's edge: rows wait for the file
                self._lose(item, error)
            else:
                self._deliver(item, tensors, self._shared.dependencies.monotonic_s() - began_s)

    def _next(self) -> ReadJob | None:
        shared = self._shared
        with shared.changed:
            while True:
                shared.changed.wait_for(lambda: shared.reads or shared.closing)
                if shared.closing:
                    return None
                job = shared.reads.popleft()
                if shared.catalog.get(job.item.file) is job.item and shared.awaits(job.item.file):
                    return job

    def _load(self, job: ReadJob) -> Tensors:
        file = job.item.file
        path = file_path(self._folder, file)
        checksum = job.item.checksum
        load(self._files, path, job.memory, checksum, lambda: self._shared.awaits(file))
        return decode(job.memory)

    def _deliver(self, item: Item, tensors: Tensors, seconds: float) -> None:
        shared = self._shared
        with shared.changed:
            shared.count_read(item.nbytes, seconds)
            if item.file in shared.awaited:
                shared.awaited.discard(item.file)
                shared.report(FileRead(item.file, tensors))

    def _lose(self, item: Item, error: Exception) -> None:
        shared = self._shared
        with shared.changed:
            if shared.catalog.get(item.file) is not item:
                return
            logger.warning("File %d of the disk cache is quarantined: %s", item.file, error)
            shared.count_unreadable()
            *deleted, quarantined = shared.remove(item.file, report=True)
            shared.add_job(DeleteJob(tuple(deleted), quarantined))
