"""State shared by the engine's thread, the writer and the reader of the disk tier."""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from node.engine.cache.disk.catalog import Catalog, Item
from node.engine.cache.disk.files import Files
from node.engine.cache.disk.format import Layout
from node.engine.cache.disk.limits import DayBudget, Limits, Outage
from node.engine.cache.parts import DiskReport, FileLost, Tensors
from node.ipc.disk_figures import DiskFigures

READ_BYTES_PER_S = 500e6
"""Assumed until a file has been read."""
MIN_LEARN_BYTES = 1 << 20
"""Smaller files measure only the disk's latency."""
LEARN_SHARE = 0.2
"""Weight of the newest file in the measured speed."""


@dataclass(frozen=True, slots=True)
class TierDependencies:
    """The tier's external dependencies."""

    files: Files = field(default_factory=Files)
    unix_s: Callable[[], float] = time.time
    monotonic_s: Callable[[], float] = time.monotonic
    memory: Callable[[int], memoryview] = lambda nbytes: np.empty(nbytes, dtype=np.uint8).data
    """Returns writable memory for the bytes of a file; called on the engine's thread."""
    wake: Callable[[], None] = lambda: None
    """Called when there is something to poll, from any thread and with the tier's lock held; it
    must not wait and not call the tier."""


class WriteJob(NamedTuple):
    """A file to be written."""

    item: Item
    parent_tokens: int
    tokens: bytes
    layout: Layout
    tensors: Tensors
    """Kept for reads of the file before it is written."""


class ReadJob(NamedTuple):
    """A file to be read."""

    item: Item
    memory: memoryview
    """Has the size of the file; the arrays remain views of it."""


class DeleteJob(NamedTuple):
    """Files to be deleted, children first."""

    files: tuple[int, ...]
    quarantine: int = 0
    """A file to be quarantined after them; 0 for none."""


class ClearJob(NamedTuple):
    """All existing files are to be deleted."""


class SaveJob(NamedTuple):
    """The last uses are to be saved in the index."""


Job = WriteJob | DeleteJob | ClearJob | SaveJob


class Shared:
    """All fields are read and changed with `changed` held, unless stated otherwise."""

    def __init__(
        self, catalog: Catalog, limits: Limits, budget: DayBudget, dependencies: TierDependencies
    ) -> None:
        self.changed = threading.Condition()
        self.catalog = catalog
        self.limits = limits
        self.budget = budget
        self.dependencies = dependencies
        self.outage = Outage()
        self.jobs: deque[Job] = deque()
        self.working = False
        """True while the writer runs a job."""
        self.writes: dict[int, WriteJob] = {}
        """Queued writes, and the one in progress."""
        self.queued_bytes = 0
        """Bytes of `writes`."""
        self.reads: deque[ReadJob] = deque()
        self.awaited: set[int] = set()
        """Files with a read that is not reported yet."""
        self.touched: dict[int, int] = {}
        """`used` of files that the index does not have yet."""
        self.reports: list[DiskReport] = []
        self.read_bytes_per_s = READ_BYTES_PER_S
        self.closing = False
        self.figures = DiskFigures()

    def report(self, report: DiskReport) -> None:
        self.reports.append(report)
        self.dependencies.wake()

    def add_job(self, job: Job) -> None:
        self.jobs.append(job)
        self.changed.notify_all()

    def is_needed(self, item: Item) -> bool:
        """Returns True if the file is still to be written. Also called without the lock: each read
        is atomic, and the result is checked again under the lock at the end."""
        return not self.closing and self.catalog.get(item.file) is item

    def awaits(self, file: int) -> bool:
        """Returns True if the file is still to be read. Also called without the lock."""
        return not self.closing and file in self.awaited

    def remove(self, file: int, *, report: bool) -> tuple[int, ...]:
        """Removes the file and all that continue it from the catalog. Reports those as lost, and
        the file itself if `report` is set or a read of it is awaited. Returns the files to delete
        from the disk, in this order. Queued writes among them fail when the writer reaches them."""
        gone = []
        for item in self.catalog.remove(file):
            self.touched.pop(item.file, None)
            if item.on_disk:
                gone.append(item.file)
            if item.file in self.awaited or (item.on_disk and (report or item.file != file)):
                self.report(FileLost(item.file))
            self.awaited.discard(item.file)
        return tuple(gone)

    def count_read(self, nbytes: int, seconds: float) -> None:
        """Counts a read, and updates the measured read speed."""
        before = self.figures
        self.figures = replace(
            before,
            read_files=before.read_files + 1,
            read_bytes=before.read_bytes + nbytes,
            read_s=before.read_s + seconds,
        )
        if nbytes >= MIN_LEARN_BYTES and seconds > 0:
            rate = nbytes / seconds
            self.read_bytes_per_s += LEARN_SHARE * (rate - self.read_bytes_per_s)

    def count_unreadable(self) -> None:
        count = self.figures.unreadable_files + 1
        self.figures = replace(self.figures, unreadable_files=count)

    def count_write(self, nbytes: int) -> None:
        before = self.figures
        self.figures = replace(
            before,
            written_files=before.written_files + 1,
            written_bytes=before.written_bytes + nbytes,
        )

    def count_failed_write(self) -> None:
        self.figures = replace(self.figures, failed_writes=self.figures.failed_writes + 1)
