"""What the prefix cache is made of, as seen by its index: it knows nothing of MLX or files.

A `Span` holds the KV of a run of tokens for all layers that can be cut at any token. A `Snapshot`
holds what the other layers (recurrent states, rotating windows) need to continue after exactly so
many tokens. Both are detached from every live batch, and evaluated.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int32]
"""Token ids, one-dimensional and contiguous."""


class Tensor(NamedTuple):
    """An array as a file holds it."""

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
        """Two spans that share no memory, 0 < at_tokens < tokens."""

    def tensors(self) -> Tensors:
        """Its arrays by name, for a file. Called in the engine's thread."""


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
    """One file of the disk tier: a span, or a snapshot (of no tokens of its own)."""

    file: int
    """Its number in the index, never used twice."""
    kind: str
    """Of `EntryKind`."""
    parent_file: int
    """The span file that it continues; 0 for none."""
    parent_tokens: int
    """How many tokens of the parent's span come before this entry's; all of them unless the
    parent's span was split since. Without a parent, the number of the prompt's salt."""
    tokens: Tokens
    """Of a span, its own."""
    nbytes: int

    @property
    def salt(self) -> int:
        """Of an entry that begins a prompt."""
        return 0 if self.parent_file else self.parent_tokens


@dataclass(frozen=True, slots=True)
class Written:
    """The file is on disk and in the index."""

    file: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class WriteFailed:
    """The file is not there; nothing is left of it."""

    file: int


@dataclass(frozen=True, slots=True)
class Read:
    """The arrays of a file, checked against its checksum."""

    file: int
    tensors: Tensors


@dataclass(frozen=True, slots=True)
class Lost:
    """The file is gone: over a cap, or corrupt and quarantined. Files that continued it are told
    of one by one, before it."""

    file: int


DiskReport = Written | WriteFailed | Read | Lost


class DiskTier(Protocol):
    """Files that hold evicted spans and snapshots. All calls come from the engine's thread and
    return at once; threads of the tier's own write and read."""

    @property
    def nbytes(self) -> int:
        """Of all files in the index."""

    @property
    def read_bytes_per_s(self) -> float:
        """Learned, with a prior."""

    def entries(self) -> Sequence[DiskEntry]:
        """What an earlier process left, parents first; asked once."""

    def write(
        self, kind: str, parent: tuple[int, int], tokens: Tokens, tensors: Tensors
    ) -> int | None:
        """Queues a file; its number, or None where it is not taken: the queue is full, the write
        budget of the day is spent, or the file is larger than the tier. `parent` is
        (parent_file, parent_tokens). The tier reads the tensors' memory until it reports
        `Written` or `WriteFailed`."""

    def read(self, file: int) -> None:
        """Queues a read; reported as `Read` or `Lost`."""

    def touch(self, files: Sequence[int]) -> None:
        """The files were used now; a file's parents are always among them."""

    def drop(self, file: int) -> None:
        """Deletes the file. Not reported."""

    def poll(self) -> list[DiskReport]:
        """What has happened since the last call."""

    def flush(self, timeout_s: float) -> None:
        """Waits until all that is queued is written."""

    def clear(self) -> None:
        """Deletes everything, also what is queued."""

    def close(self) -> None:
        """Ends the threads; what is still queued is not written."""
