"""The kinds of leaves of a model's caches: KV that can be cut at any token, a window of the last
tokens, or states. A `cache` argument is the leaf of one row, a `batch` that of a batch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache

from node.engine.base import LoadError
from node.engine.kv.codec import KvCodec, Parts, detached, quantized_bytes
from node.engine.kv.quantized_kv import LiveKVCache

STEP_TOKENS = KVCache.step
"""Number of tokens by which KV buffers grow."""


@dataclass(frozen=True, slots=True)
class KvForm:
    """Shape and type of one token's keys and values."""

    heads: int
    key_width: int
    value_width: int
    dtype: mx.Dtype

    @property
    def widths(self) -> tuple[int, int]:
        return self.key_width, self.value_width

    @property
    def bytes_per_token(self) -> int:
        return self.heads * sum(self.widths) * self.dtype.size


@dataclass(frozen=True, slots=True)
class KvLeaf:
    """KV of every token, unquantized while rows run."""

    form: KvForm
    codec: KvCodec

    def stored_bytes_per_token(self) -> int:
        form = self.form
        return self.codec.bytes_per_token(form.heads, form.widths, form.dtype)

    def live_bytes(self, tokens: int) -> int:
        return _buffer_tokens(tokens) * self.form.bytes_per_token

    def cut(self, cache: Any, row: int, begin: int, end: int) -> Parts:
        """Returns the encoded KV of these buffer positions; lazy."""
        keys, values = (array[row : row + 1, :, begin:end] for array in (cache.keys, cache.values))
        return self.codec.encode(keys, values)

    def restored(self, pieces: Sequence[Parts], tokens: int, room_tokens: int) -> KVCache:
        """Returns a cache of one row with a buffer for at least `room_tokens`; lazy."""
        cache: Any = KVCache()
        if pieces:
            decoded = [self.codec.decode(parts, self.form.dtype) for parts in pieces]
            cache.keys, cache.values = (
                _with_room(arrays, room_tokens) for arrays in zip(*decoded, strict=True)
            )
        cache.offset = tokens
        return cache


@dataclass(frozen=True, slots=True)
class LiveKvLeaf:
    """KV of every token, quantized while rows run and stored in the same form."""

    form: KvForm
    """Before quantization."""
    bits: int
    group: int

    def stored_bytes_per_token(self) -> int:
        return self.form.heads * sum(
            quantized_bytes(width, self.bits, self.group, self.form.dtype)
            for width in self.form.widths
        )

    def live_bytes(self, tokens: int) -> int:
        return _buffer_tokens(tokens) * self.stored_bytes_per_token()

    def cut(self, cache: Any, row: int, begin: int, end: int) -> Parts:
        """See `KvLeaf.cut`."""
        return tuple(
            detached(part[row : row + 1, :, begin:end]) for part in (*cache.keys, *cache.values)
        )

    def restored(self, pieces: Sequence[Parts], tokens: int, room_tokens: int) -> LiveKVCache:
        """See `KvLeaf.restored`."""
        cache: Any = LiveKVCache(self.group, self.bits)
        if pieces:
            arrays = tuple(_with_room(parts, room_tokens) for parts in zip(*pieces, strict=True))
            cache.keys, cache.values = arrays[:3], arrays[3:]
        cache.offset = tokens
        return cache


def _buffer_tokens(tokens: int) -> int:
    return -(-tokens // STEP_TOKENS) * STEP_TOKENS


def _with_room(arrays: Sequence[mx.array], room_tokens: int) -> mx.array:
    """Concatenates the arrays in one new buffer of whole steps for `room_tokens`, with room for at
    least one more token."""
    last = arrays[-1]
    held = sum(array.shape[2] for array in arrays)
    free = _buffer_tokens(max(room_tokens, held + 1)) - held
    room = mx.zeros((*last.shape[:2], free, last.shape[3]), dtype=last.dtype)
    return mx.concatenate([*arrays, room], axis=2)


Saved = tuple[dict[str, mx.array], int | None]
"""The arrays of a snapshot by part name, and the number of tokens processed, if the cache counts
them."""


@dataclass(frozen=True, slots=True)
class WindowLeaf:
    """KV of the last `max_tokens` tokens."""

    form: KvForm
    max_tokens: int

    @property
    def part_names(self) -> tuple[str, ...]:
        return "k", "v"

    @property
    def saved_bytes(self) -> int:
        """Bytes of a full window."""
        return self.max_tokens * self.form.bytes_per_token

    def live_bytes(self, tokens: int) -> int:
        return min(_buffer_tokens(tokens), self.max_tokens) * self.form.bytes_per_token

    def saved(self, cache: Any) -> Saved:
        """Returns the window of a row's cache, in temporal order; lazy, with memory of its own."""
        length = min(cache.offset, self.max_tokens)
        arrays = [cache._temporal_order(array) for array in (cache.keys, cache.values)]
        return self._last(arrays, length), cache.offset

    def saved_row(self, batch: Any, row: int) -> Saved:
        """Like `saved`, for a row of a batch. Waits for the row's offset."""
        offset: int = batch.offset.tolist()[row]
        length = min(offset, self.max_tokens)
        arrays = [array[row : row + 1] for array in (batch.keys, batch.values)]
        if batch.rotated:
            arrays = [mx.roll(array, -batch._idx, 2) for array in arrays]
        else:
            arrays = [array[:, :, : batch._idx] for array in arrays]
        return self._last(arrays, length), offset

    def _last(self, arrays: Sequence[mx.array], tokens: int) -> dict[str, mx.array]:
        return {
            name: detached(array[:, :, array.shape[2] - tokens :])
            for name, array in zip(self.part_names, arrays, strict=True)
        }

    def restored(self, arrays: Mapping[str, mx.array], tokens: int) -> RotatingKVCache:
        """Returns a cache of one row, with arrays of its own: a cache writes into its arrays in
        place, which would change the snapshot. MLX copies the data only at the first write."""
        cache: Any = RotatingKVCache(max_size=self.max_tokens)
        cache.keys, cache.values = arrays["k"][:], arrays["v"][:]
        cache._idx = cache.keys.shape[2]
        cache.offset = tokens
        return cache


@dataclass(frozen=True, slots=True)
class StateLeaf:
    """Arrays of a fixed size."""

    count: int
    saved_bytes: int

    @property
    def part_names(self) -> tuple[str, ...]:
        return tuple(str(index) for index in range(self.count))

    def live_bytes(self, tokens: int) -> int:
        return self.saved_bytes if tokens else 0

    def saved(self, cache: Any) -> Saved:
        """See `WindowLeaf.saved`."""
        return self.saved_row(cache, 0)

    def saved_row(self, batch: Any, row: int) -> Saved:
        """See `WindowLeaf.saved_row`, without waiting."""
        arrays = [detached(array[row : row + 1]) for array in batch.cache]
        return dict(zip(self.part_names, arrays, strict=True)), None

    def restored(self, arrays: Mapping[str, mx.array], tokens: int) -> ArraysCache:
        """Returns a cache of one row. It shares the snapshot's arrays, which no model writes to."""
        cache: Any = ArraysCache(self.count)
        cache.cache = [arrays[name] for name in self.part_names]
        return cache


_CLASSES = (KVCache, RotatingKVCache, ArraysCache)


def check_classes(leaves: Sequence[Any]) -> None:
    """Raises `LoadError` if rows with such a cache cannot be batched and stored."""
    for cache in leaves:
        if type(cache) not in _CLASSES:
            raise LoadError(
                "Rows of this model cannot be batched: one of its layers keeps a cache of class "
                f"{type(cache).__name__}."
            )
        if isinstance(cache, RotatingKVCache) and cache.keep:
            raise LoadError(
                "Rows of this model cannot be batched: one of its layers keeps the first tokens "
                "beside its window."
            )


def leaf_of(cache: Any, codec: KvCodec) -> KvLeaf | WindowLeaf | StateLeaf | None:
    """Returns the kind of a cache that has processed a few tokens; None if it is empty. Raises
    `LoadError`."""
    if isinstance(cache, ArraysCache):
        states: Sequence[mx.array | None] = cache.cache
        held = [array for array in states if array is not None]
        if 0 < len(held) < len(states):
            raise LoadError(
                "Rows of this model cannot be batched: one of its layers leaves a state empty."
            )
        return StateLeaf(len(held), sum(array.nbytes for array in held)) if held else None
    if cache.empty():
        return None
    _, heads, _, key_width = cache.keys.shape
    form = KvForm(heads, key_width, cache.values.shape[3], cache.keys.dtype)
    if isinstance(cache, RotatingKVCache):
        return WindowLeaf(form, cache.max_size)
    return KvLeaf(form, codec)
