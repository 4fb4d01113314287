"""A process that spills at random until it is killed. Imports nothing slow."""

import os
import random
import signal
import threading
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from node.engine.cache.disk.file_index import FileRow, Index
from node.engine.cache.disk.files import Files
from node.engine.cache.disk.shared import TierDependencies
from node.engine.cache.disk.tier import SsdTier, open_tier
from node.engine.cache.parts import EntryKind, FileLost, FileWriteFailed, FileWritten
from tests.node.engine.cache.disk_world import (
    FINGERPRINT,
    LIMITS,
    ROOT,
    TIMEOUT_S,
    some_tensors,
    some_tokens,
)

KEPT_FILES = 30
LARGE_BYTES = 2 << 20
QUEUE_FILES = 4


def content_bytes(seed: int) -> int:
    """Returns the size of this seed's entry."""
    return LARGE_BYTES if seed % 20 == 0 else 64 + seed % 4000 * 16


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Spiller:
    """Writes and drops; reports what it does. The seed of an entry's contents is its
    `parent_tokens`."""

    def __init__(self, tier: SsdTier, woken: threading.Event, pipe: Connection) -> None:
        self._tier = tier
        self._woken = woken
        self._pipe = pipe
        self._kinds = {entry.file: entry.kind for entry in tier.entries()}
        self._parents: dict[int, int] = {}
        self._written = set(self._kinds)

    def run(self) -> None:
        self._pipe.send(("open", 0, 0))
        while True:
            if len(self._written) > KEPT_FILES:
                file = random.choice(sorted(self._written))
                self._pipe.send(("gone", file, 0))
                self._written.discard(file)
                self._tier.drop(file)
            self._write()
            if len(self._kinds.keys() - self._written) >= QUEUE_FILES:
                self._woken.wait(TIMEOUT_S)
            self._woken.clear()
            self._poll()

    def _write(self) -> None:
        seed = random.randrange(1, 1_000_000)
        spans = [file for file in sorted(self._written) if self._kinds[file] == EntryKind.SPAN]
        kind = random.choice((EntryKind.SPAN, EntryKind.SPAN, EntryKind.SNAPSHOT))
        parent = random.choice((0, *spans))
        tokens = some_tokens(seed, 8 if kind == EntryKind.SPAN else 0)
        tensors = some_tensors(seed, content_bytes(seed))
        file = self._tier.write(kind, (parent, seed), tokens, tensors)
        if file is not None:
            self._kinds[file] = kind
            self._parents[file] = parent

    def _poll(self) -> None:
        for report in self._tier.poll():
            match report:
                case FileWritten(file):
                    self._written.add(file)
                    self._pipe.send(("written", file, self._parents[file]))
                case FileLost(file) | FileWriteFailed(file):
                    self._written.discard(file)
                    self._kinds.pop(file, None)
                    self._pipe.send(("gone", file, 0))


def spill(home: Path, seed: int, pipe: Connection) -> None:
    """Runs until killed."""
    random.seed(seed)
    woken = threading.Event()
    tier = open_tier(home, LIMITS, FINGERPRINT, dependencies=TierDependencies(wake=woken.set))
    Spiller(tier, woken, pipe).run()


STEPS = (
    "before create",
    "after create",
    "half-way",
    "after write",
    "after sync",
    "after rename",
    "after sync_folder",
    "after index",
)


@dataclass
class DeadlyFiles(Files):
    """Kills its own process at one step of the second file."""

    step: str
    files: int = 0

    def reach(self, step: str) -> None:
        if self.files == 2 and step == self.step:
            die()

    def create(self, path: Path) -> int:
        self.files += 1
        self.reach("before create")
        descriptor = super().create(path)
        self.reach("after create")
        return descriptor

    def write(self, descriptor: int, data: memoryview) -> None:
        super().write(descriptor, data[: len(data) // 2])
        self.reach("half-way")
        super().write(descriptor, data[len(data) // 2 :])

    def sync(self, descriptor: int) -> None:
        self.reach("after write")
        super().sync(descriptor)
        self.reach("after sync")

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        self.reach("after rename")

    def sync_folder(self, folder: Path) -> None:
        super().sync_folder(folder)
        self.reach("after sync_folder")


def spill_until(home: Path, step: str) -> None:
    """Writes one file, then a second that continues it, and dies at the step."""
    files = DeadlyFiles(step)
    add = Index.add

    def deadly_add(
        self: Index, row: FileRow, used: dict[int, int], day: int, day_bytes: int
    ) -> None:
        add(self, row, used, day, day_bytes)
        files.reach("after index")

    Index.add = deadly_add  # type: ignore[method-assign, assignment]
    tier = open_tier(home, LIMITS, FINGERPRINT, dependencies=TierDependencies(files=files))
    first = tier.write(EntryKind.SPAN, ROOT, some_tokens(1), some_tensors(1))
    assert first is not None
    tier.write(EntryKind.SPAN, (first, 8), some_tokens(2), some_tensors(2))
    tier.flush(TIMEOUT_S)
