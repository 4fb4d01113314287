"""What an idle engine computes after its load, so that the first request finds kernels compiled,
speeds known, and what a chunk takes of memory measured.

It comes in pieces, and is given up where a request comes: that is a warm-up too, and waits for one
piece at most. The first chunk is short, since it compiles. Each next one is longer, so that the
speed that is learned is that of real chunks, and not what a pass takes however short it is.
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
    """A warm-up that is under way, over, or none: one that would prefill nothing."""

    def __init__(
        self, model: LoadedModel, layout: CacheLayout, rates: Rates, most_tokens: int
    ) -> None:
        """Prefills up to `most_tokens` at once."""
        pieces = _pieces(model, layout, rates, most_tokens)
        self._pieces = pieces if most_tokens > 0 else None

    @property
    def is_pending(self) -> bool:
        return self._pieces is not None

    def step(self) -> None:
        """One more piece; nothing where none is left. One that fails is the last."""
        pieces, self._pieces = self._pieces, None
        if pieces is not None and next(pieces, self) is not self:
            self._pieces = pieces

    def drop(self) -> None:
        """Gives up what is left."""
        self._pieces = None


def _pieces(
    model: LoadedModel, layout: CacheLayout, rates: Rates, most_tokens: int
) -> Iterator[None]:
    """Prefills, then decodes alone and as a batch; learns the speed of both."""
    tokens = min(FIRST_TOKENS, most_tokens)
    longer: int | None = tokens
    while longer is not None:
        tokens = longer
        _, seconds = _prefill(model, layout, tokens)
        yield
        longer = next_tokens(tokens, seconds, most_tokens)
    # Again, since the first chunk of a length may have compiled.
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
    # Asked now, or the first prompts that come together wait for it.
    _ = layout.tells_padding


def next_tokens(tokens: int, seconds: float, most_tokens: int) -> int | None:
    """The length of the chunk after one that took so long; None where it would take longer than
    an idle engine's chunks do, or that was the longest."""
    longer = min(_GROWTH * tokens, most_tokens)
    is_short = longer <= IDLE_CHUNK_TOKENS or seconds * longer <= IDLE_CHUNK_S * tokens
    return longer if is_short and longer > tokens else None


def _prefill(model: LoadedModel, layout: CacheLayout, tokens: int) -> tuple[list[Any], float]:
    """Caches of a prompt of so many tokens, and the seconds that it took."""
    caches = layout.new_caches()
    began_s = time.monotonic()
    model.network(mx.arange(tokens)[None] % model.vocab_size, cache=caches)
    mx.eval([cache.state for cache in caches])
    return caches, time.monotonic() - began_s
