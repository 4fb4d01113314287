"""Encodings of stored KV. Only the KV of layers that can be cut at any token is encoded: recurrent
states and rotating windows are stored unchanged, since an error in them would affect every later
token."""

from typing import Protocol

import mlx.core as mx

from node.engine.base import LoadError

Parts = tuple[mx.array, ...]
"""One layer's encoded keys and values; axis 2 of each array is the token axis."""

_GROUP_SIZES = (64, 32)
_BITS = (4, 8)


class KvCodec(Protocol):
    """Encodes each token by itself, so that encoded runs can be cut and joined anywhere."""

    part_names: tuple[str, ...]
    """Names of the arrays that `encode` returns, for files."""

    def encode(self, keys: mx.array, values: mx.array) -> Parts:
        """Encodes keys and values of shape (1, heads, tokens, width). Returns lazy arrays that
        share no memory with the arguments."""

    def decode(self, parts: Parts, dtype: mx.Dtype) -> tuple[mx.array, mx.array]:
        """Returns keys and values; lazy, and possibly the parts themselves."""

    def bytes_per_token(self, heads: int, widths: tuple[int, int], dtype: mx.Dtype) -> int:
        """Returns the size of one token's parts, for keys and values of these widths. Raises
        `LoadError` with a sentence if a width cannot be encoded."""


class PlainCodec:
    """Stores keys and values unchanged."""

    part_names: tuple[str, ...] = ("k", "v")

    def encode(self, keys: mx.array, values: mx.array) -> Parts:
        return detached(keys), detached(values)

    def decode(self, parts: Parts, dtype: mx.Dtype) -> tuple[mx.array, mx.array]:
        keys, values = parts
        return keys, values

    def bytes_per_token(self, heads: int, widths: tuple[int, int], dtype: mx.Dtype) -> int:
        return heads * sum(widths) * dtype.size


class AffineCodec:
    """Stores groups of values as integers with a scale and a bias each."""

    part_names: tuple[str, ...] = ("k", "k.scales", "k.biases", "v", "v.scales", "v.biases")

    def __init__(self, bits: int) -> None:
        """`bits` per value is 4 or 8. Raises `LoadError`."""
        if bits not in _BITS:
            raise LoadError(f"KV can be quantized to 4 or 8 bits, not to {bits}.")
        self.bits = bits

    def encode(self, keys: mx.array, values: mx.array) -> Parts:
        return (*self._quantize(keys), *self._quantize(values))

    def _quantize(self, array: mx.array) -> Parts:
        width = array.shape[-1]
        if width == 0:
            return array, array, array
        packed, scales, biases = mx.quantize(array, group_size=group_size(width), bits=self.bits)
        return packed, scales, biases

    def decode(self, parts: Parts, dtype: mx.Dtype) -> tuple[mx.array, mx.array]:
        return self._dequantize(parts[:3], dtype), self._dequantize(parts[3:], dtype)

    def _dequantize(self, parts: Parts, dtype: mx.Dtype) -> mx.array:
        packed, scales, biases = parts
        width = packed.shape[-1] * 32 // self.bits
        if width == 0:
            return packed.astype(dtype)
        array = mx.dequantize(packed, scales, biases, group_size=group_size(width), bits=self.bits)
        return array.astype(dtype)

    def bytes_per_token(self, heads: int, widths: tuple[int, int], dtype: mx.Dtype) -> int:
        return heads * sum(
            quantized_bytes(width, self.bits, group_size(width), dtype) for width in widths
        )


def codec_for(bits: int | None) -> KvCodec:
    """Returns the codec for a `kv_cache_bits` setting. Raises `LoadError`."""
    return PlainCodec() if bits is None else AffineCodec(bits)


def group_size(*widths: int) -> int:
    """Returns the largest group size that divides all widths. Raises `LoadError`."""
    for size in _GROUP_SIZES:
        if all(width % size == 0 for width in widths):
            return size
    width = next(width for width in widths if width % _GROUP_SIZES[-1])
    raise LoadError(
        f"The KV of this model cannot be quantized: the width of a head is {width}, "
        f"which {_GROUP_SIZES[-1]} does not divide."
    )


def quantized_bytes(width: int, bits: int, group: int, dtype: mx.Dtype) -> int:
    """Returns the size of `width` quantized values with their scales and biases."""
    return width * bits // 8 + 2 * (width // group) * dtype.size


def detached(array: mx.array) -> mx.array:
    """Returns a lazy copy with memory of its own. `mx.contiguous` makes no copy if the array is a
    slice of a buffer that is only slightly larger."""
    axis = next((axis for axis, size in enumerate(array.shape) if size > 1), None)
    if array.size == 0:
        return mx.zeros(array.shape, dtype=array.dtype)
    if axis is None:
        return array.reshape(1)[mx.array([0])].reshape(array.shape)
    # A concatenation of several arrays always writes a new buffer.
    return mx.concatenate(list(mx.split(array, [array.shape[axis] // 2], axis=axis)), axis=axis)
