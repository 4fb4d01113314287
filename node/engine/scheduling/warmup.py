"""Warms up an idle engine after its load: compiles kernels, and measures the speed of prefill and
decode and the memory of a chunk, so that the first request need not.

It runs in pieces and ends when a request arrives: the request warms the engine as well, and waits
for one piece at most. The first chunk is short, since it compiles. Each following one is longer, so
that the learned speed is that of real chunks and not the fixed cost of a pass.
"""

import time
from collections.abc import Iterator
from typing import Any

import mlx.core as mx

from node.engine.decoding.chunking import IDLE_CHUNK_S, IDLE_CHUNK_TOKENS
from node.engine.decoding.rates import Rates
from node.engine.kv.cache_layout import CacheLayout
from node.engine.model.load import LoadedModel

FIRST_TOKENS = 32
_GROWTH = 4


class WarmUp:
    """A warm-up in progress or finished; one of zero tokens is finished from the start."""

    def __init__(
        self, model: LoadedModel, layout: CacheLayout, rates: Rates, most_tokens: int
    ) -> None:
        """`most_tokens` is the length of the longest chunk."""
        pieces = _pieces(model, layout, rates, most_tokens)
        self._pieces = pieces if most_tokens > 0 else None

    @property
    def is_pending(self) -> bool:
        return self._pieces is not None

    def step(self) -> None:
        """Runs the next piece, if one is left. A piece that raises is the last one."""
        pieces, self._pieces = self._pieces, None
        if pieces is not None and next(pieces, self) is not self:
            self._pieces = pieces

    def drop(self) -> None:
        """Skips the remaining pieces."""
        self._pieces = None


def _pieces(
    model: LoadedModel, layout: CacheLayout, rates: Rates, most_tokens: int
) -> Iterator[None]:
    """Prefills, then decodes one row and a batch of two; learns the speed of both."""
    tokens = min(FIRST_TOKENS, most_tokens)
    longer: int | None = tokens
    while longer is not None:
        tokens = longer
        _, seconds = _prefill(model, layout, tokens)
        yield
        longer = next_tokens(tokens, seconds, most_tokens)
    # Repeated and only now measured, since the first chunk of a length may compile kernels.
    caches, seconds = _prefill(model, layout, tokens)
    rates.learn_prefill(0, tokens, seconds)
    yield
    for batch in (caches, layout.merge([caches, caches])):
        rows = 1 if batch is caches else 2
        for _ in range(2):
            began_s = time.monotonic()
            mx.eval(model.network(mx.zeros((rows, 1), dtype=mx.int32), cache=batch))
        rates.learn_decode(rows, tokens, time.monotonic() - began_s)
        yield
    # Evaluated here, since it takes time and the first prompts prefilled together would wait.
    _ = layout.supports_padding


def next_tokens(tokens: int, seconds: float, most_tokens: int) -> int | None:
    """Returns the length of the chunk after one of `tokens` that took `seconds`; None if it would
    take longer than an idle engine's chunk may, or if that was the longest."""
    longer = min(_GROWTH * tokens, most_tokens)
    is_short = longer <= IDLE_CHUNK_TOKENS or seconds * longer <= IDLE_CHUNK_S * tokens
    return longer if is_short and longer > tokens else None


def _prefill(model: LoadedModel, layout: CacheLayout, tokens: int) -> tuple[list[Any], float]:
    """Prefills a prompt of `tokens` tokens and returns its caches and the seconds it took."""
    caches = layout.new_caches()
    began_s = time.monotonic()
    model.network(mx.arange(tokens)[None] % model.vocab_size, cache=caches)
    mx.eval([cache.state for cache in caches])
    return caches, time.monotonic() - began_s
