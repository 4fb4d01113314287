"""What the engine's thread, the writer and the reader of the disk tier share."""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from node.engine.cache.disk.catalog import Catalog, Item
from node.engine.cache.disk.files import Files
from node.engine.cache.disk.format import Layout
from node.engine.cache.disk.limits import DayBudget, Limits, Outage
from node.engine.cache.parts import DiskReport, Lost, Tensors

READ_BYTES_PER_S = 500e6
"""Assumed until a file has been read."""
MIN_LEARN_BYTES = 1 << 20
"""Smaller files tell of the disk's latency only."""
LEARN_SHARE = 0.2
"""Weight of the newest file in the learned rate."""


@dataclass(frozen=True, slots=True)
class Seams:
    """What a tier needs of the world."""

    files: Files = field(default_factory=Files)
    unix_s: Callable[[], float] = time.time
    monotonic_s: Callable[[], float] = time.monotonic
    memory: Callable[[int], memoryview] = lambda nbytes: np.empty(nbytes, dtype=np.uint8).data
    """Writable memory for so many bytes of a file; called in the engine's thread."""
    wake: Callable[[], None] = lambda: None
    """Called, from any thread and with the tier's lock held, when there is something to poll; it
    must not wait and not call the tier."""


class WriteJob(NamedTuple):
    """A file to be written."""

    item: Item
    parent_tokens: int
    tokens: bytes
    layout: Layout
    tensors: Tensors
    """Kept for whoever reads the file before it is written."""


class ReadJob(NamedTuple):
    """A file to be read."""

    item: Item
    memory: memoryview
    """As long as the file; the arrays stay in it."""


class DeleteJob(NamedTuple):
    """Files to be deleted, those that continue others first."""

    files: tuple[int, ...]
    quarantine: int = 0
    """A file to be moved away after them; 0 for none."""


class ClearJob(NamedTuple):
    """Everything that was there is to be deleted."""


class SaveJob(NamedTuple):
    """The last uses are to be put into the index."""


Job = WriteJob | DeleteJob | ClearJob | SaveJob


class Shared:
    """Everything here is read and changed with `changed` held, unless said otherwise."""

    def __init__(self, catalog: Catalog, limits: Limits, budget: DayBudget, seams: Seams) -> None:
        self.changed = threading.Condition()
        self.catalog = catalog
        self.limits = limits
        self.budget = budget
        self.seams = seams
        self.outage = Outage()
        self.jobs: deque[Job] = deque()
        self.working = False
        """The writer is at a job."""
        self.writes: dict[int, WriteJob] = {}
        """Those that are queued, and the one at work."""
        self.queued_bytes = 0
        """Of `writes`."""
        self.reads: deque[ReadJob] = deque()
        self.awaited: set[int] = set()
        """Files whose read is not answered yet."""
        self.touched: dict[int, int] = {}
        """`used` of files that the index does not know yet."""
        self.reports: list[DiskReport] = []
        self.read_bytes_per_s = READ_BYTES_PER_S
        self.closing = False

    def report(self, report: DiskReport) -> None:
        self.reports.append(report)
        self.seams.wake()

    def add_job(self, job: Job) -> None:
        self.jobs.append(job)
        self.changed.notify_all()

    def wants(self, item: Item) -> bool:
        """Whether the file is still to be written; also without the lock, since each look is
        atomic and the answer is asked for again under the lock at the end."""
        return not self.closing and self.catalog.get(item.file) is item

    def awaits(self, file: int) -> bool:
        """Whether the file is still to be read; also without the lock."""
        return not self.closing and file in self.awaited

    def remove(self, file: int, *, tell: bool) -> tuple[int, ...]:
        """Takes the file and all that continue it out of the catalog, reports these as lost, and
        itself where `tell` says so or a read of it waits for an answer. Returns what is to be
        deleted from the disk, in this order. Those still to be written fail when their turn
        comes."""
        gone = []
        for item in self.catalog.remove(file):
            self.touched.pop(item.file, None)
            if item.on_disk:
                gone.append(item.file)
            if item.file in self.awaited or (item.on_disk and (tell or item.file != file)):
                self.report(Lost(item.file))
            self.awaited.discard(item.file)
        return tuple(gone)

    def learn(self, nbytes: int, seconds: float) -> None:
        """From one read."""
        if nbytes >= MIN_LEARN_BYTES and seconds > 0:
            rate = nbytes / seconds
            self.read_bytes_per_s += LEARN_SHARE * (rate - self.read_bytes_per_s)
