"""Picks the next token of every row in one batched call.

Settings are arrays and nothing is compiled per value, so a new temperature costs
no kernel build. Nothing here waits for the device.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from node.generate import SamplingParams

_PARTITION_LIMIT = 1024
"""Up to this top_k a partition finds the candidates; beyond it all of the vocabulary is sorted."""

_UNIFORM_BITS = 24
_UNIFORM_MAX = (1 << _UNIFORM_BITS) - 2
"""The largest draw. One step below the last 24-bit value, so that in float32 draw * total < total
holds for every total."""


@dataclass(frozen=True, eq=False)
class RowSampling:
    """The settings of one row and its own source of randomness.

    A row's k-th token takes the k-th draw, so that a seed gives the same tokens beside any others.
    """

    params: SamplingParams
    source: random.Random

    @classmethod
    def of(cls, params: SamplingParams) -> "RowSampling":
        # `Random(None)` seeds itself from the operating system's entropy.
        return cls(params, random.Random(params.seed))

    def draw(self) -> float:
        """A uniform number in [0, 1), exact in float32."""
        return min(self.source.getrandbits(_UNIFORM_BITS), _UNIFORM_MAX) / (1 << _UNIFORM_BITS)


class BatchSampler:
    """Samples one composition of a batch; kept for as long as it stays the same."""

    def __init__(self, rows: Sequence[RowSampling], vocab_size: int) -> None:
        classes: dict[int, list[int]] = {}
        for index, row in enumerate(rows):
            classes.setdefault(_width(row.params, vocab_size), []).append(index)
        self._groups = [
            _group([rows[i] for i in indices], width) for width, indices in classes.items()
        ]
        self._picks = [mx.array(indices) for indices in classes.values()]
        order = [index for indices in classes.values() for index in indices]
        self._inverse = mx.argsort(mx.array(order))

    def sample(self, logits: mx.array) -> mx.array:
        """Tokens [B] of logits [B, V]. They need not be normalised: the likeliest token is the
        same, and weights are normalised only for the rows that need them."""
        if len(self._groups) == 1:
            return self._groups[0].sample(logits)
        tokens = [
            group.sample(logits[pick])
            for group, pick in zip(self._groups, self._picks, strict=True)
        ]
        return mx.concatenate(tokens)[self._inverse]


_GREEDY = 0
_UNFILTERED = -1
_GREEDY_BELOW = 1e-5
"""Colder than this, logits / temperature may overflow; the draw could not matter anyway."""


def _width(params: SamplingParams, vocab_size: int) -> int:
    """Class of a row: greedy, unfiltered, or how many of the likeliest tokens it must rank."""
    if params.temperature < _GREEDY_BELOW:
        return _GREEDY
    limit = _top_k(params, vocab_size)
    if limit <= min(_PARTITION_LIMIT, vocab_size - 1):
        return min(_PARTITION_LIMIT, vocab_size - 1)
    if limit < vocab_size or params.top_p < 1.0 or params.min_p > 0.0:
        return vocab_size
    return _UNFILTERED


def _top_k(params: SamplingParams, vocab_size: int) -> int:
    return params.top_k if 0 < params.top_k < vocab_size else vocab_size


def _group(rows: Sequence[RowSampling], width: int) -> "_Greedy | _Unfiltered | _Filtered":
    if width == _GREEDY:
        return _Greedy()
    if width == _UNFILTERED:
        return _Unfiltered(rows)
    return _Filtered(rows, width)


class _Greedy:
    """The likeliest token; the lowest id where several are."""

    def sample(self, logits: mx.array) -> mx.array:
        return mx.argmax(logits, axis=-1)


class _Unfiltered:
    """Any token, by temperature alone."""

    def __init__(self, rows: Sequence[RowSampling]) -> None:
        self._rows = rows
        self._temperature = _column([row.params.temperature for row in rows])

    def sample(self, logits: mx.array) -> mx.array:
        weights = mx.softmax(logits.astype(mx.float32) / self._temperature, axis=-1)
        summed = mx.cumsum(weights, axis=-1)
        index = _first_above(summed, _draws(self._rows) * summed[:, -1:])
        return mx.minimum(index, logits.shape[1] - 1).squeeze(1)


class _Filtered:
    """Temperature, then top_k, then top_p of what top_k left, then min_p of the likeliest.

    Each filter keeps a prefix of the tokens ranked by probability, so the shortest prefix rules.
    At least the likeliest token stays.
    """

    def __init__(self, rows: Sequence[RowSampling], width: int) -> None:
        self._rows = rows
        self._width = width
        params = [row.params for row in rows]
        self._temperature = _column([p.temperature for p in params])
        self._top_k = mx.array([[min(_top_k(p, width), width)] for p in params])
        self._top_p = _column([p.top_p for p in params])
        self._min_p = _column([p.min_p for p in params])

    def sample(self, logits: mx.array) -> mx.array:
        tokens, ranked = self._rank(logits)
        weights = mx.softmax(ranked.astype(mx.float32) / self._temperature, axis=-1)
        summed = mx.cumsum(weights, axis=-1)
        left_by_top_k = mx.take_along_axis(summed, self._top_k - 1, axis=-1)
        in_top_p = summed - weights < self._top_p * left_by_top_k
        in_min_p = weights >= self._min_p * weights[:, :1]
        kept = mx.minimum(self._top_k, mx.sum(in_top_p & in_min_p, axis=-1, keepdims=True))
        last = mx.maximum(kept, 1) - 1
        total = mx.take_along_axis(summed, last, axis=-1)
        # A parallel cumulative sum may round unevenly: the draw must not leave the prefix.
        index = mx.minimum(_first_above(summed, _draws(self._rows) * total), last)
        return mx.take_along_axis(tokens, index, axis=-1).squeeze(1).astype(mx.uint32)

    def _rank(self, logits: mx.array) -> tuple[mx.array, mx.array]:
        """(token ids, logits), both [B, width], likeliest first."""
        if self._width == logits.shape[1]:
            tokens = mx.argsort(-logits, axis=-1)
            return tokens, mx.take_along_axis(logits, tokens, axis=-1)
        tokens = mx.argpartition(-logits, self._width - 1, axis=-1)[:, : self._width]
        found = mx.take_along_axis(logits, tokens, axis=-1)
        order = mx.argsort(-found, axis=-1)
        return (
            mx.take_along_axis(tokens, order, axis=-1),
            mx.take_along_axis(found, order, axis=-1),
        )


def _first_above(summed: mx.array, threshold: mx.array) -> mx.array:
    """Index [B, 1] of the first entry beyond the threshold: inverts a cumulative sum [B, N]."""
    return mx.sum(summed <= threshold, axis=-1, keepdims=True).astype(mx.uint32)


def _draws(rows: Sequence[RowSampling]) -> mx.array:
    return mx.array([[row.draw()] for row in rows], dtype=mx.float32)


def _column(values: list[float]) -> mx.array:
    return mx.array(values, dtype=mx.float32)[:, None]
