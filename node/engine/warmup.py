"""A first pass after the load, so that the first request does not pay for compilation."""

import time

import mlx.core as mx

from node.engine.layers import CacheLayout
from node.engine.model import LoadedModel
from node.engine.rates import Rates

CHUNK_TOKENS = 32


def warm_up(model: LoadedModel, layout: CacheLayout, rates: Rates) -> None:
    """Prefills and decodes a few tokens, alone and as a batch; learns a first speed of both."""
    tokens = mx.arange(CHUNK_TOKENS)[None] % model.vocab_size
    caches = layout.new_caches()
    for depth in (0, CHUNK_TOKENS):
        began_s = time.monotonic()
        model.network(tokens, cache=caches)
        mx.eval([cache.state for cache in caches])
        # The first pass compiled.
        if depth:
            rates.learn_prefill(depth, CHUNK_TOKENS, time.monotonic() - began_s)
    for batch in (caches, layout.merge([caches, caches])):
        rows = 1 if batch is caches else 2
        for _ in range(2):
            began_s = time.monotonic()
            mx.eval(model.network(mx.zeros((rows, 1), dtype=mx.int32), cache=batch))
        rates.learn_decode(rows, 2 * CHUNK_TOKENS, time.monotonic() - began_s)
