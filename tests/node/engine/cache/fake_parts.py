"""Spans, snapshots and a disk tier that remember exactly which prompts their tokens belong to."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from node.engine.cache.config import EDGE_TOKENS, CacheConfig
from node.engine.cache.parts import (
    DiskEntry,
    DiskReport,
    EntryKind,
    FileLost,
    FileRead,
    FileWriteFailed,
    FileWritten,
    Tensor,
    Tensors,
    Tokens,
)
from node.engine.cache.prefix_cache import PrefixCache
from node.ipc.disk_figures import DiskFigures

TOKEN_BYTES = 10
SNAPSHOT_BYTES = 25

Prefix = tuple[int, ...]


def ids(*tokens: int) -> Tokens:
    return np.array(tokens, np.int32)


def count(begin: int, end: int) -> Tokens:
    """begin, begin + 1, … end - 1."""
    return np.arange(begin, end, dtype=np.int32)


@dataclass(frozen=True)
class FakeSpan:
    """For each of its tokens, the prompt up to and with that token."""

    cells: tuple[Prefix, ...]
    token_bytes: int = TOKEN_BYTES

    @property
    def tokens(self) -> int:
        return len(self.cells)

    @property
    def nbytes(self) -> int:
        return self.token_bytes * len(self.cells)

    def split(self, at_tokens: int) -> "tuple[FakeSpan, FakeSpan]":
        assert 0 < at_tokens < len(self.cells)
        head, tail = self.cells[:at_tokens], self.cells[at_tokens:]
        return FakeSpan(head, self.token_bytes), FakeSpan(tail, self.token_bytes)

    def tensors(self) -> Tensors:
        return _tensors([self.token_bytes, list(self.cells)])


@dataclass(frozen=True)
class FakeSnapshot:
    """The state after a prompt."""

    prefix: Prefix
    nbytes: int = SNAPSHOT_BYTES

    def tensors(self) -> Tensors:
        return _tensors([self.nbytes, self.prefix])


def _tensors(value: object) -> Tensors:
    data = json.dumps(value).encode()
    return {"cells": Tensor("U8", (len(data),), memoryview(data))}


def rebuild_span(tensors: Tensors) -> FakeSpan:
    token_bytes, cells = json.loads(bytes(tensors["cells"].data))
    return FakeSpan(tuple(tuple(prefix) for prefix in cells), token_bytes)


def rebuild_snapshot(tensors: Tensors) -> FakeSnapshot:
    nbytes, prefix = json.loads(bytes(tensors["cells"].data))
    return FakeSnapshot(tuple(prefix), nbytes)


def capture_of(
    tokens: Tokens, calls: list[tuple[int, int]] | None = None, token_bytes: int = TOKEN_BYTES
) -> Callable[[int, int], FakeSpan]:
    prompt = tuple(tokens.tolist())

    def capture(begin: int, end: int) -> FakeSpan:
        if calls is not None:
            calls.append((begin, end))
        return FakeSpan(tuple(prompt[: at + 1] for at in range(begin, end)), token_bytes)

    return capture


def store(cache: PrefixCache, tokens: Tokens, *, snapshot: bool = False, uid: str = "r1") -> int:
    prompt = tuple(tokens.tolist())
    new = (SNAPSHOT_BYTES, lambda: FakeSnapshot(prompt)) if snapshot else None
    return cache.store(tokens, capture_of(tokens), new, uid)


def make_config(
    *,
    budget_bytes: int = 100_000,
    snapshot_bytes: int = 0,
    needs_snapshot: bool = False,
    prefill_s: Callable[[int, int], float] = lambda begin, end: float(end - begin),
    edge_tokens: int = EDGE_TOKENS,
) -> CacheConfig:
    return CacheConfig(
        budget_bytes=budget_bytes,
        snapshot_bytes=snapshot_bytes,
        needs_snapshot=needs_snapshot,
        span_bytes_per_token=TOKEN_BYTES,
        rebuild_span=rebuild_span,
        rebuild_snapshot=rebuild_snapshot,
        prefill_s=prefill_s,
        edge_tokens=edge_tokens,
    )


@dataclass
class _Queued:
    entry: DiskEntry
    tensors: Tensors


@dataclass
class FakeTier:
    """Completes what was requested only on demand, in any order; refuses while set to."""

    refuses: bool = False
    queue_limit: int = 1_000
    read_bytes_per_s: float = 1e9
    files: dict[int, _Queued] = field(default_factory=dict)
    writing: dict[int, _Queued] = field(default_factory=dict)
    reading: list[int] = field(default_factory=list)
    touched: list[int] = field(default_factory=list)
    reports: list[DiskReport] = field(default_factory=list)
    last_file: int = 0
    figures: DiskFigures = field(default_factory=DiskFigures)

    @property
    def nbytes(self) -> int:
        return sum(each.entry.nbytes for each in self.files.values())

    def entries(self) -> Sequence[DiskEntry]:
        return [each.entry for each in self.files.values()]

    def write(
        self, kind: str, parent: tuple[int, int], tokens: Tokens, tensors: Tensors
    ) -> int | None:
        if self.refuses or len(self.writing) >= self.queue_limit:
            return None
        parent_file, parent_tokens = parent
        if parent_file and parent_file not in self.files and parent_file not in self.writing:
            return None
        assert kind == EntryKind.SPAN or parent_file != 0
        self.last_file += 1
        nbytes = len(tokens) * TOKEN_BYTES if kind == EntryKind.SPAN else SNAPSHOT_BYTES
        entry = DiskEntry(self.last_file, kind, parent_file, parent_tokens, tokens.copy(), nbytes)
        self.writing[self.last_file] = _Queued(entry, tensors)
        return self.last_file

    def read(self, file: int) -> None:
        if file in self.files:
            self.reading.append(file)
        else:
            self.reports.append(FileLost(file))

    def touch(self, files: Sequence[int]) -> None:
        for file in files:
            assert file not in self.files or self.files[file].entry.parent_file in (0, *files)
        self.touched.extend(files)

    def drop(self, file: int) -> None:
        assert not self._continuing(file), "a file that others continue"
        self.files.pop(file, None)
        self.writing.pop(file, None)
        self.reading = [each for each in self.reading if each != file]

    def poll(self) -> list[DiskReport]:
        reports, self.reports = self.reports, []
        return reports

    def flush(self, timeout_s: float) -> None:
        assert timeout_s > 0
        self.finish()

    def clear(self) -> None:
        self.files.clear()
        self.writing.clear()
        self.reading.clear()

    def close(self) -> None:
        self.writing.clear()

    # --- what a test makes happen ------------------------------------------------------------

    def finish(self) -> None:
        """All that is requested succeeds."""
        for file in list(self.writing):
            self.finish_write(file)
        for file in list(self.reading):
            self.finish_read(file)

    def finish_write(self, file: int) -> None:
        queued = self.writing.pop(file)
        self.files[file] = queued
        self.reports.append(FileWritten(file, queued.entry.nbytes))

    def fail_write(self, file: int) -> None:
        self._end_those_that_continue(file)
        del self.writing[file]
        self.reports.append(FileWriteFailed(file))

    def finish_read(self, file: int) -> None:
        self.reading.remove(file)
        self.reports.append(FileRead(file, self.files[file].tensors))

    def lose(self, file: int) -> None:
        self._end_those_that_continue(file)
        del self.files[file]
        self.reading = [each for each in self.reading if each != file]
        self.reports.append(FileLost(file))

    def _end_those_that_continue(self, file: int) -> None:
        for other in self._continuing(file):
            if other in self.writing:
                self.fail_write(other)
            else:
                self.lose(other)

    def _continuing(self, file: int) -> list[int]:
        both = {**self.files, **self.writing}
        return [number for number, each in both.items() if each.entry.parent_file == file]

    def restarted(self) -> "FakeTier":
        """The tier of a new process: what was written, parents first, and nothing that was only
        queued."""
        kept: dict[int, _Queued] = {}
        for number, each in sorted(self.files.items()):
            if each.entry.parent_file in (0, *kept):
                kept[number] = each
        return FakeTier(files=kept, last_file=self.last_file)


def evict(cache: PrefixCache, nbytes: int) -> int:
    """Lowers the cache's budget by so many bytes for a moment. How many were evicted, or will be
    once they are written."""
    budget, index = cache._budget, cache._index
    before = index.nbytes - index.leaving_bytes
    lease = budget._bytes, budget._snapshot_bytes
    # Below zero, what uses no bytes is evicted too.
    cache.set_lease(before + cache._promoter.reserved_bytes - nbytes, snapshot_bytes=1 << 62)
    budget.set(*lease)
    return before - (index.nbytes - index.leaving_bytes)
