"""Reads a GGUF file's header and tensors, and trusts none of its contents.

Every count, length and offset is checked against the file's size before it is used, so that a
damaged or hostile file causes an error and uses no memory.
"""

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_TENSORS = 100_000
MAX_KEYS = 100_000
MAX_DIMENSIONS = 4
MAX_HEADER_BYTES = 256 * 1024**2
"""A vocabulary of 256,000 tokens with its merges takes some 10 MB."""
MAX_VALUES = 2**22
"""Maximum of values in one list."""
DEFAULT_ALIGNMENT = 32

_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_U32, _U64 = _SCALARS[4], _SCALARS[10]

TENSOR_TYPES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    30: ("BF16", 1, 2),
}
"""Name, values per block and bytes per block of each readable type, by its number in ggml's `enum
ggml_type`."""
_UNREADABLE = {
    9: "Q8_1",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
}


class GgufError(Exception):
    """The file cannot be imported; the message is a sentence."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """The location of a tensor. `shape` is in row-major order, as in MLX."""

    name: str
    type_name: str
    shape: tuple[int, ...]
    start: int
    size_bytes: int


class GgufFile:
    """An open GGUF file: `metadata` and `tensors` are read and checked; data on demand."""

    def __init__(self, path: Path) -> None:
        """Raises `GgufError`."""
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "it is empty"
            raise GgufError(f"{path} cannot be read: {reason}.") from None
        try:
            reader = _HeaderReader(self._map, path.name)
            self.metadata, self.tensors = reader.read()
        except BaseException:
            self._map.close()
            raise

    def __enter__(self) -> "GgufFile":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._map.close()

    def pieces(self, info: TensorInfo, most_values: int) -> Iterator[bytes]:
        """Yields copies of the tensor's bytes in order: whole rows, together no more than
        `most_values` values unless a single row has more."""
        columns = info.shape[-1]
        rows = prod(info.shape) // columns
        row_bytes = info.size_bytes // rows
        step_bytes = max(1, most_values // columns) * row_bytes
        end = info.start + info.size_bytes
        for start in range(info.start, end, step_bytes):
            yield self._map[start : min(start + step_bytes, end)]


class _HeaderReader:
    def __init__(self, data: mmap.mmap, name: str) -> None:
        self._data = data
        self._size = len(data)
        self._name = name
        self._at = 0

    def read(self) -> tuple[dict[str, Any], dict[str, TensorInfo]]:
        if self._take(4) != MAGIC:
            raise GgufError(f"{self._name} is not a GGUF file.")
        version = self._scalar(_U32)
        if version not in VERSIONS:
            raise GgufError(
                f"{self._name} has GGUF version {version}; versions 2 and 3 are readable "
                "(a big-endian file is not)."
            )
        tensor_count = self._count(MAX_TENSORS, 24, "tensors")
        key_count = self._count(MAX_KEYS, 13, "metadata entries")
        metadata: dict[str, Any] = {}
        for _ in range(key_count):
            key = self._string()
            metadata[key] = self._value(self._scalar(_U32))
        return metadata, self._tensors(tensor_count, metadata)

    def _tensors(self, count: int, metadata: dict[str, Any]) -> dict[str, TensorInfo]:
        heads = [self._tensor_head() for _ in range(count)]
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if type(alignment) is not int or not 1 <= alignment <= 2**20:
            raise self._damaged("its alignment is out of range")
        base = -(-self._at // alignment) * alignment
        tensors: dict[str, TensorInfo] = {}
        for name, shape, kind, offset in heads:
            type_name, size_bytes = self._sized(name, shape, kind)
            start = base + offset
            if start + size_bytes > self._size:
                raise self._damaged(f"the tensor {name} lies beyond its end")
            if name in tensors:
                raise self._damaged(f"it has two tensors {name}")
            tensors[name] = TensorInfo(name, type_name, shape, start, size_bytes)
        self._check_apart(tensors)
        return tensors

    def _check_apart(self, tensors: dict[str, TensorInfo]) -> None:
        end = 0
        for tensor in sorted(tensors.values(), key=lambda each: each.start):
            if tensor.start < end:
                raise self._damaged(f"the tensor {tensor.name} lies over another one")
            end = tensor.start + tensor.size_bytes

    def _tensor_head(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        dimensions = self._scalar(_U32)
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise self._damaged(f"the tensor {name} has {dimensions} dimensions")
        # GGUF stores the fastest dimension first.
        shape = tuple(self._scalar(_U64) for _ in range(dimensions))[::-1]
        return name, shape, self._scalar(_U32), self._scalar(_U64)

    def _sized(self, name: str, shape: tuple[int, ...], kind: int) -> tuple[str, int]:
        if kind not in TENSOR_TYPES:
            label = _UNREADABLE.get(kind, f"number {kind}")
            known = ", ".join(type_name for type_name, _, _ in TENSOR_TYPES.values())
            raise GgufError(
                f"{self._name} has a tensor ({name}) of type {label}, which cannot be imported; "
                f"use a file in one of {known}."
            )
        type_name, block_values, block_bytes = TENSOR_TYPES[kind]
        values = prod(shape)
        if not 0 < values < 2**48 or shape[-1] % block_values:
            raise self._damaged(f"the tensor {name} has the shape {shape}")
        return type_name, values // block_values * block_bytes

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array()
        if kind not in _SCALARS:
            raise self._damaged(f"it has a metadata value of type {kind}")
        return self._scalar(_SCALARS[kind])

    def _array(self) -> list[Any]:
        kind = self._scalar(_U32)
        if kind == _STRING:
            count = self._count(MAX_VALUES, 8, "strings in one list")
            return [self._string() for _ in range(count)]
        scalar = _SCALARS.get(kind)
        if scalar is None:
            raise self._damaged(f"it has a list of values of type {kind}")
        count = self._count(MAX_VALUES, scalar.size, "values in one list")
        return [value for (value,) in scalar.iter_unpack(self._take(count * scalar.size))]

    def _string(self) -> str:
        length = self._count(self._size, 1, "bytes in one string")
        try:
            return self._take(length).decode()
        except UnicodeDecodeError:
            raise self._damaged("a text in it is not UTF-8") from None

    def _count(self, most: int, each_bytes: int, what: str) -> int:
        """Reads a 64-bit count of items that take at least `each_bytes` each of the rest of the
        file."""
        count = int(self._scalar(_U64))
        if count > most or count * each_bytes > self._size - self._at:
            raise self._damaged(f"it claims {count} {what}")
        return count

    def _scalar(self, scalar: struct.Struct) -> Any:
        return scalar.unpack(self._take(scalar.size))[0]

    def _take(self, length: int) -> bytes:
        end = self._at + length
        if end > self._size:
            raise self._damaged("it ends in the middle of its header")
        if end > MAX_HEADER_BYTES:
            raise self._damaged(f"its header is longer than {MAX_HEADER_BYTES // 1024**2} MiB")
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def _damaged(self, how: str) -> GgufError:
        return GgufError(f"{self._name} is damaged or cut off: {how}.")
