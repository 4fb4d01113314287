"""Types that the prefix cache stores, as its index sees them: independent of MLX and of files.

A `Span` contains the KV of a run of tokens for all layers that can be split at any token. A
`Snapshot` contains the state that the other layers (recurrent states, rotating windows) need to
continue after one exact number of tokens. Both are evaluated and share no memory with a live batch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from node.ipc.disk_figures import DiskFigures

Tokens = NDArray[np.int32]
"""Token ids, one-dimensional and contiguous."""


class Tensor(NamedTuple):
    """An array as a file stores it."""

    dtype: str
    """In the spelling of safetensors: F32, F16, BF16, U32, I32 …"""
    shape: tuple[int, ...]
    data: memoryview
    """Contiguous bytes, format B; a view of the array's own memory where possible."""


Tensors = Mapping[str, Tensor]


class Span(Protocol):
    """The KV of a run of tokens."""

    @property
    def tokens(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    def split(self, at_tokens: int) -> tuple[Self, Self]:
        """Returns two spans that share no memory; 0 < at_tokens < tokens."""

    def tensors(self) -> Tensors:
        """Returns its arrays by name, for a file. Called on the engine's thread."""


class Snapshot(Protocol):
    """The state after a number of tokens."""

    @property
    def nbytes(self) -> int: ...

    def tensors(self) -> Tensors: ...


class EntryKind:
    SPAN = "span"
    SNAPSHOT = "snapshot"


@dataclass(frozen=True, slots=True)
class DiskEntry:
    """One file of the disk tier: a span, or a snapshot, which has no tokens of its own."""

    file: int
    """Its number in the index, never used twice."""
    kind: str
    """One of `EntryKind`."""
    parent_file: int
    """The span file that it continues; 0 for none."""
    parent_tokens: int
    """Number of tokens of the parent's span before this entry: all of them unless that span was
    split later. Without a parent, the number of the prompt's salt."""
    tokens: Tokens
    """The tokens of a span; empty for a snapshot."""
    nbytes: int

    @property
    def salt(self) -> int:
        """Salt number of an entry that begins a prompt; 0 for all others."""
        return 0 if self.parent_file else self.parent_tokens


@dataclass(frozen=True, slots=True)
class FileWritten:
    """The file is on disk and in the index."""

    file: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class FileWriteFailed:
    """The file was not written; no trace of it is left."""

    file: int


@dataclass(frozen=True, slots=True)
class FileRead:
    """The arrays of a file, verified by its checksum."""

    file: int
    tensors: Tensors


@dataclass(frozen=True, slots=True)
class FileLost:
    """The file is gone: evicted by a limit, or corrupt and quarantined. Files that continued it are
    reported one by one before it."""

    file: int


DiskReport = FileWritten | FileWriteFailed | FileRead | FileLost


class DiskTier(Protocol):
    """Files with spilled spans and snapshots. All methods are called on the engine's thread and
    return at once; the tier's own threads write and read."""

    @property
    def nbytes(self) -> int:
        """Size of all files in the index."""

    @property
    def read_bytes_per_s(self) -> float:
        """Measured read speed, with a prior."""

    @property
    def figures(self) -> DiskFigures:
        """Reads and writes since the start of its engine."""

    def entries(self) -> Sequence[DiskEntry]:
        """Returns the files of an earlier process, parents first; called once."""

    def write(
        self, kind: str, parent: tuple[int, int], tokens: Tokens, tensors: Tensors
    ) -> int | None:
        """Queues a file and returns its number. Returns None if the tier rejects it: the queue is
        full, the daily write limit is reached, or the file is larger than the tier. `parent` is
        (parent_file, parent_tokens). The tier reads the tensors' memory until it reports
        `FileWritten` or `FileWriteFailed`."""

    def read(self, file: int) -> None:
        """Queues a read; reported as `FileRead` or `FileLost`."""

    def touch(self, files: Sequence[int]) -> None:
        """Marks the files as used; a file's parents are always among them."""

    def drop(self, file: int) -> None:
        """Deletes the file. Not reported."""

    def poll(self) -> list[DiskReport]:
        """Returns the reports since the last call."""

    def flush(self, timeout_s: float) -> None:
        """Waits until all queued files are written."""

    def clear(self) -> None:
        """Deletes everything, queued files included."""

    def close(self) -> None:
        """Ends the threads; queued files are not written."""
