"""Spans of KV and snapshots as MLX arrays, and their file format."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import mlx.core as mx
import numpy as np

from node.engine.cache.parts import Tensor, Tensors
from node.engine.kv.codec import Parts, detached

RUN_TOKENS = 1024
"""Most tokens of one run: a split copies a part of one run only."""
RUNS = "kv.runs"
"""Name of the tensor with the number of tokens of each run."""

_FILE_TYPES = {
    mx.float32: ("F32", np.float32),
    mx.float16: ("F16", np.float16),
    mx.bfloat16: ("BF16", np.uint16),
    mx.uint32: ("U32", np.uint32),
    mx.int32: ("I32", np.int32),
    mx.int64: ("I64", np.int64),
    mx.uint8: ("U8", np.uint8),
    mx.bool_: ("BOOL", np.bool_),
}
_NUMPY_TYPES: dict[str, Any] = dict(_FILE_TYPES.values())
_ARRAY_TYPES = {name: dtype for dtype, (name, _) in _FILE_TYPES.items()}
_ROW_BYTES = 1 << 20


def tensor_of(array: mx.array) -> Tensor:
    """Returns a view of an evaluated array's own memory, which it keeps alive."""
    name, _ = _FILE_TYPES[array.dtype]
    # The buffer protocol has no bfloat16.
    numbers: Any = array.view(mx.uint16) if name == "BF16" else array
    view = memoryview(numbers)
    data = view.cast("B") if view.nbytes else memoryview(b"")
    return Tensor(name, tuple(array.shape), data)


def array_memory(nbytes: int) -> memoryview:
    """Returns the writable memory of a new array, which it keeps alive: `array_of` of a part of it
    makes no copy. Call it on the thread that owns MLX; any thread may write to the memory."""
    # In two dimensions: MLX counts each one in 32 bits.
    rows = -(-nbytes // _ROW_BYTES)
    array = mx.zeros((rows, min(nbytes, _ROW_BYTES)), dtype=mx.uint8)
    mx.eval(array)
    view: Any = array
    return memoryview(view).cast("B")[:nbytes] if nbytes else memoryview(b"")


def array_of(tensor: Tensor) -> mx.array:
    """Returns a view of the tensor's memory if that belongs to an array, which any view of it keeps
    alive; otherwise a copy. Raises `ValueError` if its bytes do not match its shape."""
    if tensor.dtype not in _NUMPY_TYPES:
        raise ValueError(f"there is no array type {tensor.dtype}")
    numbers = np.frombuffer(tensor.data, dtype=_NUMPY_TYPES[tensor.dtype]).reshape(tensor.shape)
    owner = tensor.data.obj
    if not isinstance(owner, mx.array):
        array = mx.array(numbers)
        return array.view(mx.bfloat16) if tensor.dtype == "BF16" else array
    begin = numbers.ctypes.data - np.asarray(owner).ctypes.data
    flat = mx.as_strided(owner.view(mx.uint8), (tensor.data.nbytes,), (1,), begin)
    return flat.view(_ARRAY_TYPES[tensor.dtype]).reshape(tensor.shape)


def integers(*values: int) -> Tensor:
    numbers: Any = np.array(values, dtype=np.int32)
    return Tensor("I32", (len(values),), memoryview(numbers).cast("B"))


def integers_of(tensor: Tensor) -> list[int]:
    """Inverse of `integers`."""
    return np.frombuffer(tensor.data, dtype=np.int32).tolist()


def tensor_named(tensors: Tensors, name: str) -> Tensor:
    """Raises `ValueError` if there is none."""
    try:
        return tensors[name]
    except KeyError as error:
        raise ValueError(f"there is no tensor {name}") from error


def kv_name(leaf: int, run: int, part: str) -> str:
    """Returns the name of a span's tensor."""
    return f"kv.{leaf}.{run}.{part}"


def array_name(leaf: int, part: str) -> str:
    """Returns the name of a snapshot's tensor."""
    return f"leaf.{leaf}.{part}"


def offset_name(leaf: int) -> str:
    """Returns the name of the tensor with the number of tokens that a window has processed."""
    return array_name(leaf, "offset")


@dataclass(frozen=True, slots=True)
class KvRun:
    """The KV of consecutive tokens; evaluated, in memory of its own."""

    tokens: int
    leaves: Mapping[int, Parts]
    """By the leaf's number, as encoded by the codec."""

    def cut(self, begin: int, end: int) -> "KvRun":
        """Returns a copy of the tokens from begin to end."""
        leaves = {
            number: tuple(detached(part[:, :, begin:end]) for part in parts)
            for number, parts in self.leaves.items()
        }
        mx.eval(list(leaves.values()))
        return KvRun(end - begin, leaves)


@dataclass(frozen=True)
class KvSpan:
    """The `Span` of all leaves that can be cut at any token; a recurrent model has none."""

    runs: tuple[KvRun, ...]
    part_names: tuple[str, ...]
    """Array names of the codec."""
    in_one_buffer: bool = False
    """True if all runs are views of the memory of one file, so that any part keeps all of it."""

    @cached_property
    def tokens(self) -> int:
        return sum(run.tokens for run in self.runs)

    @cached_property
    def nbytes(self) -> int:
        return sum(
            part.nbytes for run in self.runs for parts in run.leaves.values() for part in parts
        )

    def split(self, at_tokens: int) -> tuple["KvSpan", "KvSpan"]:
        if not 0 < at_tokens < self.tokens:
            raise ValueError(f"a span of {self.tokens} tokens has no inner cut at {at_tokens}")
        head: list[KvRun] = []
        tail: list[KvRun] = []
        begin = 0
        for run in self.runs:
            at, begin = at_tokens - begin, begin + run.tokens
            if 0 < at < run.tokens:
                head.append(run.cut(0, at))
                tail.append(run.cut(at, run.tokens))
            else:
                own = run.cut(0, run.tokens) if self.in_one_buffer else run
                (head if at > 0 else tail).append(own)
        return KvSpan(tuple(head), self.part_names), KvSpan(tuple(tail), self.part_names)

    def pieces(self, leaf: int, begin: int, end: int) -> Iterator[Parts]:
        """Returns the encoded KV of one leaf, for the tokens from begin to end; views."""
        first = 0
        for run in self.runs:
            low, high = max(begin - first, 0), min(end - first, run.tokens)
            if (low, high) == (0, run.tokens):
                yield run.leaves[leaf]
            elif low < high:
                yield tuple(part[:, :, low:high] for part in run.leaves[leaf])
            first += run.tokens

    def tensors(self) -> Tensors:
        tensors = {RUNS: integers(*(run.tokens for run in self.runs))}
        for index, run in enumerate(self.runs):
            for leaf, parts in run.leaves.items():
                for name, part in zip(self.part_names, parts, strict=True):
                    tensors[kv_name(leaf, index, name)] = tensor_of(part)
        return tensors


@dataclass(frozen=True)
class LayerSnapshot:
    """The `Snapshot` of all leaves that cannot be cut: recurrent states, and windows in temporal
    order."""

    arrays: Mapping[str, mx.array]
    """By their names in a file."""
    offsets: Mapping[str, int]
    """Number of tokens that each window has processed, by the name of its tensor."""

    @cached_property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays.values())

    def tensors(self) -> Tensors:
        tensors = {name: tensor_of(array) for name, array in self.arrays.items()}
        return tensors | {name: integers(offset) for name, offset in self.offsets.items()}
