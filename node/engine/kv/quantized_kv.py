"""Quantized KV of running rows. mlx-lm has such a cache for a single row only."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

import mlx.core as mx
from mlx_lm.models.cache import (
    BatchKVCache,
    KVCache,
    QuantizedKVCache,
    dynamic_roll,
    make_prompt_cache,
)

from node.engine.base import LoadError
from node.engine.kv.cache_tree import Caches, adopt, assemble, flatten
from node.engine.kv.codec import group_size
from serving.terminal.error_text import error_text

_PROBE_TOKENS = 16
_MOST_DIFFERENCE = {4: 0.7, 8: 0.2}
"""Limit of the difference of logits by bits, relative to their spread. A layer that misreads
quantized keys gives logits unrelated to the correct ones, and a difference above 1."""
_FORWARD_ERRORS = (ValueError, TypeError, AttributeError, RuntimeError, IndexError, KeyError)

_Triple = tuple[mx.array, mx.array, mx.array]
"""Packed values, scales, biases."""


class LiveKVCache(QuantizedKVCache):
    """The quantized KV of one row. mlx-lm's attention recognizes it by `bits` and `group_size`."""

    def __init__(self, group_size: int, bits: int) -> None:
        super().__init__(group_size=group_size, bits=bits)

    def size(self) -> int:
        return self.offset

    @property
    def nbytes(self) -> int:
        return 0 if self.keys is None else sum(part.nbytes for part in (*self.keys, *self.values))

    @classmethod
    def merge(cls, caches: Sequence[Self]) -> "BatchQuantizedKVCache":
        return BatchQuantizedKVCache.merge(caches)


class BatchQuantizedKVCache(BatchKVCache):
    """The quantized KV of several rows, padded on the left like a `BatchKVCache`. Keys and values
    are triples."""

    def __init__(self, left_padding: Sequence[int], group_size: int, bits: int) -> None:
        super().__init__(list(left_padding))
        self.keys: Any = None
        self.values: Any = None
        self.group_size = group_size
        self.bits = bits

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[_Triple, _Triple]:
        """Appends tokens, (rows, heads, tokens, width), and returns all."""
        begin, end = self._idx, self._idx + keys.shape[2]
        self.keys = self._append(self.keys, keys, begin, end)
        self.values = self._append(self.values, values, begin, end)
        self.offset = self.offset + keys.shape[2]
        self._idx = end
        return self.keys_and_values()

    def _append(self, held: Any, new: mx.array, begin: int, end: int) -> _Triple:
        parts: _Triple = mx.quantize(new, group_size=self.group_size, bits=self.bits)
        if held is None or end > held[0].shape[2]:
            room = -(-(end - begin) // self.step) * self.step
            shape = (*new.shape[:2], room)
            tails = _triple(mx.zeros((*shape, p.shape[3]), dtype=p.dtype) for p in parts)
            held = tails if held is None else _joined(_cut(held, 0, begin), tails)
        for array, part in zip(held, parts, strict=True):
            array[..., begin:end, :] = part
        return held

    def keys_and_values(self) -> tuple[_Triple, _Triple]:
        return _cut(self.keys, 0, self._idx), _cut(self.values, 0, self._idx)

    def finalize(self) -> None:
        """Moves the right padding of the last `prepare` to the left."""
        if self._right_padding is None:
            return
        shift = self._right_padding[:, None]
        self._change(lambda array: dynamic_roll(array, shift, axis=2))
        self.offset = self.offset - self._right_padding
        self.left_padding += self._right_padding
        self._right_padding = None

    def filter(self, batch_indices: Sequence[int]) -> None:
        """Keeps these rows. Waits for the padding to be computed."""
        self.offset = self.offset[batch_indices]
        self.left_padding = self.left_padding[batch_indices]
        surplus = max(0, min(self._padding()))
        self._change(lambda array: array[batch_indices][..., surplus:, :])
        self._idx -= surplus
        self.left_padding -= surplus

    def extend(self, other: Self) -> None:
        """Adds the rows of another batch below."""
        end = max(self._idx, other._idx)
        model = self if self.keys is not None else other
        if model.keys is not None:
            keys = [batch._aligned(batch.keys, model.keys, end) for batch in (self, other)]
            values = [batch._aligned(batch.values, model.values, end) for batch in (self, other)]
            self.keys, self.values = _joined(*keys, axis=0), _joined(*values, axis=0)
        padding = [batch.left_padding + (end - batch._idx) for batch in (self, other)]
        self.left_padding = mx.concatenate(padding)
        self.offset = mx.concatenate([self.offset, other.offset])
        self._idx = end

    def _aligned(self, held: Any, model: _Triple, end: int) -> _Triple:
        """Moves the tokens of `held` so that they end at `end`; shapes and types are those of
        `model`."""
        if held is None:
            rows = self.offset.shape[0]
            heads = model[0].shape[1]
            return _triple(
                mx.zeros((rows, heads, end, part.shape[3]), dtype=part.dtype) for part in model
            )
        return _padded(_cut(held, 0, self._idx), end - self._idx)

    def extract(self, idx: int) -> LiveKVCache:
        """Returns one row alone. Waits for the padding to be computed."""
        padding: int = self._padding()[idx]
        cache = LiveKVCache(self.group_size, self.bits)
        for name in ("keys", "values"):
            parts = _cut(getattr(self, name), padding, self._idx)
            setattr(cache, name, tuple(mx.contiguous(part[idx : idx + 1]) for part in parts))
        cache.offset = self._idx - padding
        return cache

    @classmethod
    def merge(cls, caches: Sequence[LiveKVCache]) -> Self:
        """Returns the rows as one batch. A single row is taken over without a copy and must not be
        used afterwards."""
        batches = [cls([0], cache.group_size, cache.bits) for cache in caches]
        for batch, cache in zip(batches, caches, strict=True):
            if not cache.empty():
                adopt(batch, cache)
        end = max(batch._idx for batch in batches)
        model = next((batch for batch in batches if batch.keys is not None), None)
        merged = cls(
            [end - batch._idx for batch in batches], batches[0].group_size, batches[0].bits
        )
        if len(batches) == 1:
            return batches[0]
        if model is not None:
            keys = [batch._aligned(batch.keys, model.keys, end) for batch in batches]
            values = [batch._aligned(batch.values, model.values, end) for batch in batches]
            merged.keys, merged.values = _joined(*keys, axis=0), _joined(*values, axis=0)
            merged.offset = merged.offset + end
            merged._idx = end
        return merged

    def _padding(self) -> list[int]:
        padding: Any = self.left_padding.tolist()
        return padding

    def _change(self, function: Callable[[mx.array], mx.array]) -> None:
        if self.keys is not None:
            self.keys = tuple(function(part) for part in self.keys)
            self.values = tuple(function(part) for part in self.values)

    @property
    def nbytes(self) -> int:
        return 0 if self.keys is None else sum(part.nbytes for part in (*self.keys, *self.values))


def _triple(parts: Iterable[mx.array]) -> _Triple:
    packed, scales, biases = parts
    return packed, scales, biases


def _cut(parts: _Triple, begin: int, end: int) -> _Triple:
    return _triple(part[:, :, begin:end] for part in parts)


def _joined(*triples: _Triple, axis: int = 2) -> _Triple:
    return _triple(mx.concatenate(list(same), axis=axis) for same in zip(*triples, strict=True))


def _padded(parts: _Triple, left: int) -> _Triple:
    widths = [(0, 0), (0, 0), (left, 0), (0, 0)]
    return _triple(mx.pad(part, widths) for part in parts) if left else parts


def live_caches(network: Any, bits: int, groups: Sequence[int]) -> Caches:
    """Returns empty caches of one row with all KV quantized; `groups` has a group size for each
    leaf."""
    leaves = iter([LiveKVCache(group, bits) for group in groups])
    return assemble(make_prompt_cache(network), leaves)


def check_live_bits(network: Any, bits: int) -> tuple[int, ...]:
    """Returns the group size of each leaf. Raises `LoadError` with the reason if the model cannot
    run with its KV quantized to 4 or 8 bits, since some attention layers cannot read quantized
    keys."""
    if bits not in _MOST_DIFFERENCE:
        raise LoadError(f"The KV of running rows can be quantized to 4 or 8 bits, not to {bits}.")
    plain = make_prompt_cache(network)
    for leaf in flatten(plain):
        if type(leaf) is not KVCache:
            raise LoadError(
                "The KV of this model's running rows cannot be quantized: one of its layers keeps "
                f"another kind of cache, {type(leaf).__name__}."
            )
    expected = _probe(network, plain)
    used = [leaf for leaf in flatten(plain) if not leaf.empty()]
    if len(used) < len(flatten(plain)):
        raise LoadError("The KV of this model's running rows cannot be quantized: some is unused.")
    groups = tuple(group_size(leaf.keys.shape[3], leaf.values.shape[3]) for leaf in used)
    try:
        found = _probe(network, live_caches(network, bits, groups))
    except _FORWARD_ERRORS as error:
        reason = error_text(error).split(".")[0]
        raise LoadError(f"This model cannot run with quantized KV: {reason}.") from error
    norm = mx.linalg.norm
    difference = float(norm(found - expected) / norm(expected - expected.mean()))
    if not difference <= _MOST_DIFFERENCE[bits]:
        raise LoadError(
            f"With its KV quantized to {bits} bits this model's logits differ by "
            f"{difference:.0%} of their spread."
        )
    return groups


def _probe(network: Any, caches: Caches) -> mx.array:
    """Returns the logits after a short prompt and one token, float32."""
    width = network(mx.array([[0]]), cache=make_prompt_cache(network)).shape[-1]
    tokens = (mx.arange(1, _PROBE_TOKENS + 1) * 7919) % width
    network(tokens[None, :-1], cache=caches)
    logits = network(tokens[None, -1:], cache=caches)[0, -1].astype(mx.float32)
    mx.eval(logits)
    return logits
