"""A disk tier in a test: made-up tensors, a clock set by hand, reports waited for."""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from node.engine.cache.disk.files import Files
from node.engine.cache.disk.limits import Limits
from node.engine.cache.disk.shared import TierDependencies
from node.engine.cache.disk.tier import SsdTier, open_tier
from node.engine.cache.parts import (
    DiskReport,
    EntryKind,
    FileWritten,
    Tensor,
    Tensors,
    Tokens,
)

FINGERPRINT = "tiny-1"
LIMITS = Limits(max_bytes=1 << 30)
TIMEOUT_S = 20.0
ROOT = (0, 0)


def some_tokens(seed: int, count: int = 8) -> Tokens:
    return np.random.default_rng(seed).integers(0, 50_000, count, dtype=np.int32)


def some_tensors(seed: int, nbytes: int = 4096) -> Tensors:
    """Arrays of several dtypes, about so many bytes together, the same for the same seed."""
    content = np.random.default_rng(seed).bytes(nbytes)
    half = nbytes // 4 * 2
    quarter = (nbytes - half) // 4 * 2
    return {
        "0.keys": Tensor("BF16", (2, half // 4), memoryview(content)[:half]),
        "0.values": Tensor("F16", (quarter // 2,), memoryview(content)[half : half + quarter]),
        "1.state": Tensor("F32", (1, 1), memoryview(content)[:4]),
        "1.empty": Tensor("U8", (0, 3), memoryview(b"")),
    }


def same(left: Tensors, right: Tensors) -> bool:
    return left.keys() == right.keys() and all(
        (left[name].dtype, left[name].shape, bytes(left[name].data))
        == (right[name].dtype, right[name].shape, bytes(right[name].data))
        for name in left
    )


class GatedFiles(Files):
    """Lets the writer continue only while `gate` is set."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.reached = threading.Event()

    def create(self, path: Path) -> int:
        self.reached.set()
        assert self.gate.wait(TIMEOUT_S)
        return super().create(path)


class FailingFiles(Files):
    """Fails at the named call, `times` times."""

    def __init__(self, call: str, error: Exception, times: int = 1_000_000) -> None:
        self.call = call
        self.error = error
        self.times = times
        self.calls = 0

    def _pass(self, call: str) -> None:
        self.calls += call == self.call
        if call == self.call and self.times > 0:
            self.times -= 1
            raise self.error

    def write(self, descriptor: int, data: memoryview) -> None:
        self._pass("write")
        super().write(descriptor, data)

    def sync(self, descriptor: int) -> None:
        self._pass("sync")
        super().sync(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        self._pass("rename")
        super().rename(source, target)

    def sync_folder(self, folder: Path) -> None:
        self._pass("sync_folder")
        super().sync_folder(folder)

    def read(self, descriptor: int, into: memoryview) -> int:
        self._pass("read")
        return super().read(descriptor, into)


class World:
    """One folder, and the tier that is open on it."""

    made: ClassVar[list["World"]] = []

    def __init__(self, home: Path, limits: Limits = LIMITS, files: Files | None = None) -> None:
        self.home = home
        self.folder = home / FINGERPRINT
        self.limits = limits
        self.unix_s = 1_000_000.0
        self.monotonic_s = 50.0
        self._woken = threading.Semaphore(0)
        self._reports: deque[DiskReport] = deque()
        self._dependencies = TierDependencies(
            files=files or Files(),
            unix_s=lambda: self.unix_s,
            monotonic_s=lambda: self.monotonic_s,
            wake=self._woken.release,
        )
        self.tier = self._open()
        self.made.append(self)

    def reopen(self, limits: Limits | None = None) -> SsdTier:
        """Opens the tier as the next process would, with the same clocks."""
        self.tier.close()
        self.limits = limits or self.limits
        self._dependencies = replace(self._dependencies, files=Files())
        self.tier = self._open()
        return self.tier

    def use_memory(self, memory: Callable[[int], memoryview]) -> None:
        """Reads into this from now on."""
        self._dependencies = replace(self._dependencies, memory=memory)
        self.reopen()

    def write(self, seed: int, parent: int = 0, nbytes: int = 4096) -> int | None:
        """Queues a span whose contents depend on the seed."""
        point = (parent, 8 if parent else 0)
        return self.tier.write(EntryKind.SPAN, point, some_tokens(seed), some_tensors(seed, nbytes))

    def written(self, seed: int, parent: int = 0, nbytes: int = 4096) -> int:
        """A span that is on disk."""
        file = self.write(seed, parent, nbytes)
        assert file is not None
        while self.next_report() != FileWritten(file, self.path(file).stat().st_size):
            pass
        return file

    def next_report(self) -> DiskReport:
        """Waits for it."""
        while not self._reports:
            assert self._woken.acquire(timeout=TIMEOUT_S), "nothing was reported"
            self._reports.extend(self.tier.poll())
        return self._reports.popleft()

    def reports(self) -> list[DiskReport]:
        """All, once nothing is queued any more."""
        self.tier.flush(TIMEOUT_S)
        found = [*self._reports, *self.tier.poll()]
        self._reports.clear()
        return found

    def path(self, file: int) -> Path:
        return self.folder / f"{file}.safetensors"

    def names(self) -> set[str]:
        """Returns the names in the folder, besides index and lock."""
        return {
            path.name
            for path in self.folder.iterdir()
            if not path.name.startswith("index.sqlite") and path.name != "lock"
        }

    def _open(self) -> SsdTier:
        return open_tier(self.home, self.limits, FINGERPRINT, dependencies=self._dependencies)


def close_worlds() -> None:
    """Ends the threads of all tiers that a test has opened."""
    while World.made:
        World.made.pop().tier.close()
