"""Cuts, stores and restores the caches of one model.

A `KvSpan` contains the parts of a row's caches that belong to single tokens, for any range of
tokens; a `LayerSnapshot` contains the rest, after one exact number of tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from node.engine.base import LoadError
from node.engine.cache.parts import Tensors
from node.engine.kv import cache_tree
from node.engine.kv.cache_tree import Caches, assemble, flatten
from node.engine.kv.codec import AffineCodec, KvCodec, Parts, PlainCodec
from node.engine.kv.layer_cache import (
    STEP_TOKENS,
    KvLeaf,
    LiveKvLeaf,
    Saved,
    StateLeaf,
    WindowLeaf,
    check_classes,
    leaf_of,
)
from node.engine.kv.padding import supports_padding
from node.engine.kv.quantized_kv import check_live_bits, live_caches
from node.engine.kv.spans import (
    RUN_TOKENS,
    RUNS,
    KvRun,
    KvSpan,
    LayerSnapshot,
    array_name,
    array_of,
    integers_of,
    kv_name,
    offset_name,
    tensor_named,
)

Piece = tuple[KvSpan, int, int]
"""A span, and the range of its tokens: from, to."""
SnapshotLeaf = WindowLeaf | StateLeaf
Leaf = KvLeaf | LiveKvLeaf | SnapshotLeaf

_PROBE_TOKENS = 4


@dataclass(frozen=True)
class CacheLayout:
    """Contents of each leaf of a model's caches. Keeps a reference to the model."""

    network: Any
    leaves: tuple[Leaf | None, ...]
    """In the order of the caches; None for one that the model leaves empty."""
    part_names: tuple[str, ...]
    """Names of the arrays of stored KV."""
    live_bits: int | None
    live_groups: tuple[int, ...]
    """Quantization group size of each leaf, if `live_bits` is set."""

    @classmethod
    def probe(cls, network: Any, *, live_bits: int | None, codec: KvCodec) -> Self:
        """Derives the layout from a forward pass over a few tokens. `live_bits` are the bits of the
        KV of running rows. Raises `LoadError` with a sentence if a layer's cache cannot be batched,
        the model's KV cannot be quantized as requested, or the model cannot run."""
        check_classes(flatten(make_prompt_cache(network)))
        groups: tuple[int, ...] = ()
        part_names = codec.part_names
        if live_bits is not None:
            part_names = _live_part_names(live_bits, codec)
            groups = check_live_bits(network, live_bits)
        caches = make_prompt_cache(network)
        try:
            mx.eval(network(mx.array([[0] * _PROBE_TOKENS]), cache=caches))
        except (RuntimeError, ValueError) as error:
            raise LoadError(f"This model cannot run: {str(error).rstrip('.')}.") from error
        check_classes(flatten(caches))
        leaves: list[Leaf | None] = [leaf_of(cache, codec) for cache in flatten(caches)]
        for index, group in enumerate(groups):
            leaf = leaves[index]
            assert isinstance(leaf, KvLeaf)
            leaves[index] = LiveKvLeaf(leaf.form, live_bits or 0, group)
        layout = cls(network, tuple(leaves), part_names, live_bits, groups)
        # Raises `LoadError` if the codec cannot encode a width.
        if layout.span_bytes_per_token == 0 and not isinstance(codec, PlainCodec):
            raise LoadError("This model keeps no KV of single tokens that could be quantized.")
        return layout

    @cached_property
    def needs_snapshot(self) -> bool:
        """True if KV alone does not restore the model."""
        return bool(self._snapshot_leaves())

    @cached_property
    def supports_padding(self) -> bool:
        """True if prompts of different lengths may be prefilled as one batch, the shorter ones
        padded on the right. The first access runs a few tokens through the model."""
        return supports_padding(self.network)

    @cached_property
    def span_bytes_per_token(self) -> int:
        """Bytes of one token's stored KV."""
        return sum(leaf.stored_bytes_per_token() for _, leaf in self._kv_leaves())

    @cached_property
    def snapshot_bytes(self) -> int:
        """Bytes of one snapshot, with all windows full."""
        return sum(leaf.saved_bytes for _, leaf in self._snapshot_leaves())

    def live_bytes(self, tokens: int) -> int:
        """Returns the bytes of the caches of one running row of `tokens` tokens. While a prompt
        chunk is prefilled, a window contains the chunk in addition."""
        steps = -(-tokens // STEP_TOKENS)
        known = self._live_bytes.get(steps)
        if known is None:
            # Buffers grow by whole steps.
            leaves = [leaf for leaf in self.leaves if leaf is not None]
            known = sum(leaf.live_bytes(steps * STEP_TOKENS) for leaf in leaves)
            self._live_bytes[steps] = known
        return known

    @cached_property
    def _live_bytes(self) -> dict[int, int]:
        """By number of buffer steps; the scheduler calls `live_bytes` at every step."""
        return {}

    def new_caches(self) -> Caches:
        """Returns empty caches of one row."""
        if self.live_bits is not None:
            return live_caches(self.network, self.live_bits, self.live_groups)
        return make_prompt_cache(self.network)

    def merge(self, rows: Sequence[Caches]) -> Caches:
        """Returns batch caches of the rows, in their order. A batch of one takes over the row's KV
        without a copy: the row must not be used afterwards."""
        return cache_tree.merge(rows)

    def capture(self, caches: Caches, begin: int, end: int) -> KvSpan:
        """Returns the KV of a row's tokens from begin to end, in stored form: evaluated, with
        memory of its own."""
        kv = flatten(caches)
        for number, _ in self._kv_leaves():
            _check_range(begin, end, kv[number].offset)
        return self._captured(lambda number: (kv[number], 0, 0), begin, end)

    def capture_row(self, batch: Caches, row: int, length: int, begin: int, end: int) -> KvSpan:
        """Like `capture`, for a row of a batch, which has `length` tokens and no right padding."""
        _check_range(begin, end, length)
        kv = flatten(batch)
        # All rows end at the same place of the buffer: the padding need not be read from the
        # device.
        return self._captured(
            lambda number: (kv[number], row, kv[number]._idx - length), begin, end
        )

    def _captured(
        self, find: Callable[[int], tuple[Any, int, int]], begin: int, end: int
    ) -> KvSpan:
        """`find` returns, for a leaf's number, its cache, the row, and the start of that row."""
        runs: list[KvRun] = []
        for first in range(begin, end, RUN_TOKENS):
            last = min(first + RUN_TOKENS, end)
            leaves: dict[int, Parts] = {}
            for number, leaf in self._kv_leaves():
                cache, row, start = find(number)
                leaves[number] = leaf.cut(cache, row, start + first, start + last)
            runs.append(KvRun(last - first, leaves))
        mx.eval([list(run.leaves.values()) for run in runs])
        return KvSpan(tuple(runs), self.part_names)

    def snapshot(self, caches: Caches) -> LayerSnapshot:
        """Returns the windows and states of a row: evaluated, with memory of its own."""
        return self._snapshot(caches, lambda leaf, cache: leaf.saved(cache))

    def snapshot_row(self, batch: Caches, row: int) -> LayerSnapshot:
        """Like `snapshot`, for a row of a batch in which no prompt is padded on the right."""
        return self._snapshot(batch, lambda leaf, cache: leaf.saved_row(cache, row))

    def _snapshot(
        self, caches: Caches, save: Callable[[SnapshotLeaf, Any], Saved]
    ) -> LayerSnapshot:
        arrays: dict[str, mx.array] = {}
        offsets: dict[str, int] = {}
        leaves = flatten(caches)
        for number, leaf in self._snapshot_leaves():
            own, offset = save(leaf, leaves[number])
            arrays |= {array_name(number, name): array for name, array in own.items()}
            if offset is not None:
                offsets[offset_name(number)] = offset
        mx.eval(arrays)
        return LayerSnapshot(arrays, offsets)

    def restore(
        self,
        pieces: Sequence[Piece],
        snapshot: LayerSnapshot | None,
        tokens: int,
        room_tokens: int = 0,
    ) -> Caches:
        """Returns caches of one row that continue after the `tokens` tokens of the pieces, with
        buffers for `room_tokens` in all. Raises `ValueError` if pieces or snapshot are of another
        number of tokens."""
        held = sum(end - begin for _, begin, end in pieces)
        if held != tokens:
            raise ValueError(f"the pieces hold {held} tokens, not {tokens}")
        if self.needs_snapshot:
            _check_snapshot(snapshot, tokens)
        template = self.new_caches()
        fresh = flatten(template)
        for number, leaf in self._kv_leaves():
            parts = [part for span, *cut in pieces for part in span.pieces(number, *cut)]
            fresh[number] = leaf.restored(parts, tokens, room_tokens)
        if snapshot is not None:
            for number, kept in self._snapshot_leaves():
                names = kept.part_names
                arrays = {name: snapshot.arrays[array_name(number, name)] for name in names}
                fresh[number] = kept.restored(arrays, tokens)
        mx.eval([leaf.state for leaf in fresh if not leaf.empty()])
        return assemble(template, iter(fresh))

    def rebuild_span(self, tensors: Tensors) -> KvSpan:
        """Makes a span from its `tensors`, without a copy if they are in an array's memory. Raises
        `ValueError` if they are not of a span of this layout."""
        counts = integers_of(tensor_named(tensors, RUNS))
        runs: list[KvRun] = []
        for index, count in enumerate(counts):
            leaves = {
                number: tuple(
                    array_of(tensor_named(tensors, kv_name(number, index, name)))
                    for name in self.part_names
                )
                for number, _ in self._kv_leaves()
            }
            if any(part.shape[2] != count for parts in leaves.values() for part in parts):
                raise ValueError(f"run {index} does not hold {count} tokens")
            runs.append(KvRun(count, leaves))
        mx.eval([list(run.leaves.values()) for run in runs])
        return KvSpan(tuple(runs), self.part_names, in_one_buffer=True)

    def rebuild_snapshot(self, tensors: Tensors) -> LayerSnapshot:
        """Makes a snapshot from its `tensors`, without a copy if they are in an array's memory.
        Raises `ValueError` if they are not of a snapshot of this layout."""
        arrays: dict[str, mx.array] = {}
        offsets: dict[str, int] = {}
        for number, leaf in self._snapshot_leaves():
            names = [array_name(number, name) for name in leaf.part_names]
            arrays |= {name: array_of(tensor_named(tensors, name)) for name in names}
            if isinstance(leaf, WindowLeaf):
                name = offset_name(number)
                (offsets[name],) = integers_of(tensor_named(tensors, name))
        mx.eval(arrays)
        return LayerSnapshot(arrays, offsets)

    def _kv_leaves(self) -> list[tuple[int, KvLeaf | LiveKvLeaf]]:
        return [
            (number, leaf)
            for number, leaf in enumerate(self.leaves)
            if isinstance(leaf, KvLeaf | LiveKvLeaf)
        ]

    def _snapshot_leaves(self) -> list[tuple[int, SnapshotLeaf]]:
        return [
            (number, leaf)
            for number, leaf in enumerate(self.leaves)
            if isinstance(leaf, WindowLeaf | StateLeaf)
        ]


def _live_part_names(bits: int, codec: KvCodec) -> tuple[str, ...]:
    """Returns the array names of KV that is stored in its live form. Raises `LoadError` if it is to
    be stored with other bits."""
    stored = codec.bits if isinstance(codec, AffineCodec) else bits
    if stored != bits or not isinstance(codec, PlainCodec | AffineCodec):
        raise LoadError(
            f"The KV of running rows has {bits} bits and is stored as it is, not with other bits."
        )
    return AffineCodec.part_names


def _check_range(begin: int, end: int, length: int) -> None:
    if not 0 <= begin < end <= length:
        raise ValueError(f"a row of {length} tokens has none from {begin} to {end}")


def _check_snapshot(snapshot: LayerSnapshot | None, tokens: int) -> None:
    if snapshot is None and tokens:
        raise ValueError(f"{tokens} tokens cannot be restored without a snapshot")
    if snapshot is not None and any(offset != tokens for offset in snapshot.offsets.values()):
        raise ValueError(f"the snapshot is not of {tokens} tokens")
