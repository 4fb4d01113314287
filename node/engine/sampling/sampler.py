"""Samples the next token of every row in one batched call.

Settings are arrays and nothing is compiled per value, so that a new temperature needs no new
kernel. Nothing here waits for the device.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import mlx.core as mx

from node.ipc.generate import SamplingParams

_PARTITION_LIMIT = 1024
"""Largest top_k for which a partition finds the candidates; for a larger one the whole vocabulary
is sorted."""

_SEEDS = 1 << 64
_UNIFORM_BITS = 24
_UNIFORM_MAX = (1 << _UNIFORM_BITS) - 2
"""The largest draw. It is one less than the largest 24-bit value, so that draw * total < total
holds in float32 for every total."""


@dataclass(frozen=True, eq=False)
class RowSampling:
    """The sampling settings of one row and its own source of randomness.

    A row's k-th token uses the k-th draw, so that a seed gives the same draws in any batch.
    """

    params: SamplingParams
    source: random.Random
    logprobs: int | None = None
    """Number of most likely tokens to report; None reports no log probabilities at all, not even
    that of the drawn token."""

    @classmethod
    def of(cls, params: SamplingParams, logprobs: int | None = None) -> "RowSampling":
        # `Random` treats the seeds n and -n as the same, and None as the system's entropy.
        seed = None if params.seed is None else params.seed % _SEEDS
        return cls(params, random.Random(seed), logprobs)

    def draw(self) -> float:
        """Returns a uniform number in [0, 1), exact in float32."""
        return min(self.source.getrandbits(_UNIFORM_BITS), _UNIFORM_MAX) / (1 << _UNIFORM_BITS)


class DeviceLogprobs(NamedTuple):
    """The candidates of rows, on the device. Log probabilities are natural logarithms, after
    temperature and filters; those of greedy rows are at temperature 1."""

    own: mx.array
    """[rows]: log probabilities of the drawn tokens."""
    tokens: mx.array
    """[rows, count]: the most likely tokens, in descending order."""
    logprobs: mx.array
    """[rows, count]: log probabilities of `tokens`; -inf for those that filters have excluded."""


class Drawn(NamedTuple):
    """The draws of a batch or of some of its rows."""

    tokens: mx.array
    """[rows]: the drawn tokens."""
    logprobs: DeviceLogprobs | None
    """None if no row reports log probabilities."""


class BatchSampler:
    """Samples for one composition of a batch; replaced when its rows change."""

    def __init__(self, rows: Sequence[RowSampling], vocab_size: int) -> None:
        classes: dict[tuple[int, bool], list[int]] = {}
        for index, row in enumerate(rows):
            kind = _width(row.params, vocab_size), row.logprobs is not None
            classes.setdefault(kind, []).append(index)
        self._groups = [
            _group([rows[i] for i in indices], width) for (width, _), indices in classes.items()
        ]
        self._reporting = [indices if reports else [] for (_, reports), indices in classes.items()]
        self._picks = [mx.array(indices) for indices in classes.values()]
        order = [index for indices in classes.values() for index in indices]
        self._inverse = mx.argsort(mx.array(order))

    def sample(self, logits: mx.array) -> tuple[mx.array, list[tuple[list[int], DeviceLogprobs]]]:
        """Returns tokens [B] drawn from logits [B, V], and for the rows that report log
        probabilities their indices in the batch with their candidates. The logits need not be
        normalized: greedy rows do not depend on it, and the others normalize weights."""
        if len(self._groups) == 1:
            drawn = [self._groups[0].draw(logits)]
            tokens = drawn[0].tokens
        else:
            drawn = [
                group.draw(logits[pick])
                for group, pick in zip(self._groups, self._picks, strict=True)
            ]
            tokens = mx.concatenate([each.tokens for each in drawn])[self._inverse]
        reported = [
            (places, each.logprobs)
            for places, each in zip(self._reporting, drawn, strict=True)
            if each.logprobs is not None
        ]
        return tokens, reported


_GREEDY = 0
_UNFILTERED = -1
_GREEDY_BELOW = 1e-5
"""Temperature below which a row is greedy: logits / temperature may overflow, and the draw would
not matter anyway."""


def _width(params: SamplingParams, vocab_size: int) -> int:
    """Returns the class of a row: greedy, unfiltered, or the number of tokens it must rank."""
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
        return _Greedy(rows)
    if width == _UNFILTERED:
        return _Unfiltered(rows)
    return _Filtered(rows, width)


class _Greedy:
    """Draws the most likely token, of several the one with the lowest id."""

    def __init__(self, rows: Sequence[RowSampling]) -> None:
        self._count = _count(rows)

    def draw(self, logits: mx.array) -> Drawn:
        tokens = mx.argmax(logits, axis=-1)
        return Drawn(tokens, _device_logprobs(logits.astype(mx.float32), tokens, self._count))


class _Unfiltered:
    """Draws from the whole vocabulary, with temperature only."""

    def __init__(self, rows: Sequence[RowSampling]) -> None:
        self._rows = rows
        self._temperature = _column([row.params.temperature for row in rows])
        self._count = _count(rows)

    def draw(self, logits: mx.array) -> Drawn:
        scaled = logits.astype(mx.float32) / self._temperature
        summed = mx.cumsum(mx.softmax(scaled, axis=-1), axis=-1)
        index = _first_above(summed, _draws(self._rows) * summed[:, -1:])
        tokens = mx.minimum(index, logits.shape[1] - 1).squeeze(1)
        return Drawn(tokens, _device_logprobs(scaled, tokens, self._count))


class _Filtered:
    """Draws with temperature, then top_k, then top_p of the tokens that top_k left, then min_p
    relative to the most likely token.

    Each filter keeps a prefix of the tokens ranked by probability, so the shortest prefix decides.
    At least the most likely token stays.
    """

    def __init__(self, rows: Sequence[RowSampling], width: int) -> None:
        self._rows = rows
        self._width = width
        params = [row.params for row in rows]
        self._temperature = _column([p.temperature for p in params])
        self._top_k = mx.array([[min(_top_k(p, width), width)] for p in params])
        self._top_p = _column([p.top_p for p in params])
        self._min_p = _column([p.min_p for p in params])
        self._count = _count(rows)

    def draw(self, logits: mx.array) -> Drawn:
        ids, ranked = self._rank(logits)
        scaled = ranked.astype(mx.float32) / self._temperature
        weights = mx.softmax(scaled, axis=-1)
        summed = mx.cumsum(weights, axis=-1)
        left_by_top_k = mx.take_along_axis(summed, self._top_k - 1, axis=-1)
        in_top_p = summed - weights < self._top_p * left_by_top_k
        in_min_p = weights >= self._min_p * weights[:, :1]
        kept = mx.minimum(self._top_k, mx.sum(in_top_p & in_min_p, axis=-1, keepdims=True))
        last = mx.maximum(kept, 1) - 1
        total = mx.take_along_axis(summed, last, axis=-1)
        # A parallel cumulative sum may round unevenly, and the draw must stay in the prefix.
        index = mx.minimum(_first_above(summed, _draws(self._rows) * total), last)
        tokens = mx.take_along_axis(ids, index, axis=-1).squeeze(1).astype(mx.uint32)
        if self._count is None:
            return Drawn(tokens, None)
        logprobs = scaled - mx.logsumexp(scaled, axis=-1, keepdims=True) - mx.log(total)
        own = mx.take_along_axis(logprobs, index, axis=-1).squeeze(1)
        count = min(self._count, self._width)
        could = mx.arange(count) <= last
        top = mx.where(could, logprobs[:, :count], -mx.inf)
        return Drawn(tokens, DeviceLogprobs(own, ids[:, :count], top))

    def _rank(self, logits: mx.array) -> tuple[mx.array, mx.array]:
        """Returns (token ids, logits), both [B, width], most likely first."""
        if self._width == logits.shape[1]:
            tokens = mx.argsort(-logits, axis=-1)
            return tokens, mx.take_along_axis(logits, tokens, axis=-1)
        return _top(logits, self._width)


def _count(rows: Sequence[RowSampling]) -> int | None:
    """Returns the largest number of tokens that a row reports; None if none reports any."""
    return max((row.logprobs for row in rows if row.logprobs is not None), default=None)


def _device_logprobs(
    scaled: mx.array, tokens: mx.array, count: int | None
) -> DeviceLogprobs | None:
    """Returns the candidates of unfiltered rows from logits [B, V] divided by temperature; None if
    no row reports them."""
    if count is None:
        return None
    total = mx.logsumexp(scaled, axis=-1, keepdims=True)
    own = mx.take_along_axis(scaled, tokens[:, None], axis=-1) - total
    ids, found = _top(scaled, min(count, scaled.shape[1]))
    return DeviceLogprobs(own.squeeze(1), ids, found - total)


def _top(logits: mx.array, count: int) -> tuple[mx.array, mx.array]:
    """Returns the `count` most likely tokens and their logits, both [B, count], in descending
    order."""
    tokens = mx.argpartition(-logits, max(count - 1, 0), axis=-1)[:, :count]
    found = mx.take_along_axis(logits, tokens, axis=-1)
    order = mx.argsort(-found, axis=-1)
    return (
        mx.take_along_axis(tokens, order, axis=-1),
        mx.take_along_axis(found, order, axis=-1),
    )


def _first_above(summed: mx.array, threshold: mx.array) -> mx.array:
    """Returns the index [B, 1] of the first entry above the threshold [B, 1] in a cumulative sum
    [B, N]."""
    return mx.sum(summed <= threshold, axis=-1, keepdims=True).astype(mx.uint32)


def _draws(rows: Sequence[RowSampling]) -> mx.array:
    return mx.array([[row.draw()] for row in rows], dtype=mx.float32)


def _column(values: list[float]) -> mx.array:
    return mx.array(values, dtype=mx.float32)[:, None]
