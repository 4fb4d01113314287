"""The layout of one file of the disk tier: that of safetensors.

Eight bytes with the length of a JSON header, then the header and the arrays.
`safetensors.serialize_file` is not used because it opens the file itself: it can neither compute a
checksum on the way, nor stop half-way, nor create the file private to its owner.
"""

import json
import math
from typing import NamedTuple

from node.engine.cache.parts import Tensor, Tensors
from serving.terminal.error_text import error_text

_ITEM_BYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "U16": 2,
    "I16": 2,
    "F16": 2,
    "BF16": 2,
    "U32": 4,
    "I32": 4,
    "F32": 4,
    "U64": 8,
    "I64": 8,
    "F64": 8,
    "C64": 8,
}
_ALIGNMENT_BYTES = 8


class CorruptFile(Exception):
    """The file's contents are not those that were written."""


class Layout(NamedTuple):
    """A file before it is written."""

    views: tuple[memoryview, ...]
    """The header and the arrays, in the order of the file."""
    nbytes: int
    """Size of the whole file."""


def encode(tensors: Tensors) -> Layout:
    """Lays out the arrays without copying them. Raises `ValueError` if an array's bytes do not
    match its dtype and shape."""
    # Wide items first, so that every array begins at a multiple of its item size.
    names = sorted(tensors, key=lambda name: (-_item_bytes(tensors[name]), name))
    entries: dict[str, dict[str, object]] = {}
    views = []
    at = 0
    for name in names:
        dtype, shape, data = tensors[name]
        if data.nbytes != math.prod(shape) * _item_bytes(tensors[name]):
            raise ValueError(f"{name} has {data.nbytes} bytes, which is not {dtype} {shape}.")
        end = at + data.nbytes
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": (at, end)}
        views.append(data if data.format == "B" and data.ndim == 1 else data.cast("B"))
        at = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT_BYTES)
    header = len(text).to_bytes(8, "little") + text
    return Layout((memoryview(header), *views), len(header) + at)


def decode(content: memoryview) -> dict[str, Tensor]:
    """Returns the arrays of a whole file, as views of it. Raises `CorruptFile`."""
    begin = 8 + int.from_bytes(content[:8], "little")
    try:
        entries = json.loads(bytes(content[8:begin]))
        return {name: _tensor(content[begin:], entry) for name, entry in entries.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptFile(f"The header cannot be read: {error_text(error)}.") from error


def _item_bytes(tensor: Tensor) -> int:
    if tensor.dtype not in _ITEM_BYTES:
        raise ValueError(f"{tensor.dtype} is not a dtype of safetensors.")
    return _ITEM_BYTES[tensor.dtype]


def _tensor(arrays: memoryview, entry: dict[str, object]) -> Tensor:
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not (isinstance(dtype, str) and isinstance(shape, list) and isinstance(offsets, list)):
        raise ValueError("an entry has another form")
    begin, end = offsets
    tensor = Tensor(dtype, tuple(shape), arrays[begin:end])
    if tensor.data.nbytes != math.prod(tensor.shape) * _item_bytes(tensor):
        raise ValueError("an array has another size")
    return tensor
