"""Whether a model can tell tokens from padding.

Prompts of unlike length are prefilled as one batch with the shorter ones padded on the right. A
layer that knows no mask takes the padding into its state, and says something else from there on:
of mlx-lm's models those of mamba, rwkv7, jamba and nemotron_h do so, among others.
"""

import logging
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from node.engine.kv import cache_tree

MOST_DIFFERENCE = 0.1
"""Of the logits, relative to their spread. What rounding makes of them in 16 bits is a tenth of
that; of layers that take in the padding they differ by half their spread and more."""
_TOKENS = 8
_SHORT_TOKENS = 2
_FORWARD_ERRORS = (ValueError, TypeError, AttributeError, RuntimeError, IndexError, KeyError)

logger = logging.getLogger(__name__)


def tells_padding(network: Any) -> bool:
    """Whether two prompts of unlike length, prefilled as one padded batch, go on as each does
    alone. Takes three passes of a few tokens."""
    try:
        differences = _differences(network)
    except _FORWARD_ERRORS as error:
        logger.warning("This model takes no padded prompts: %s", error)
        return False
    # Not so for NaN either.
    return all(difference <= MOST_DIFFERENCE for difference in differences)


def _differences(network: Any) -> list[float]:
    """Of the logits of a long prompt and of one that it begins with."""
    tokens = list(range(1, _TOKENS + 2))
    alone = network(mx.array([tokens]), cache=make_prompt_cache(network))[0]
    batch = cache_tree.merge([make_prompt_cache(network) for _ in range(2)])
    spare = _TOKENS - _SHORT_TOKENS
    for cache in batch:
        cache.prepare(lengths=[_TOKENS, _SHORT_TOKENS], right_padding=[0, spare])
    network(mx.array([tokens[:_TOKENS], tokens[:_SHORT_TOKENS] + [0] * spare]), cache=batch)
    for cache in batch:
        cache.finalize()
    ends = mx.array([[tokens[_TOKENS]], [tokens[_SHORT_TOKENS]]])
    together = network(ends, cache=batch)[:, -1].astype(mx.float32)
    wanted = alone[mx.array([_TOKENS, _SHORT_TOKENS])].astype(mx.float32)
    norm = mx.linalg.norm
    spread = norm(wanted - wanted.mean(axis=1, keepdims=True), axis=1)
    found: Any = (norm(together - wanted, axis=1) / spread).tolist()
    return list(found)
