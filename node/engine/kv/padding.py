"""Tests if a model can distinguish tokens from padding.

Prompts of different lengths are prefilled as one batch with the shorter ones padded on the right. A
layer that ignores the mask includes the padding in its state, which changes the output from there
on: among mlx-lm's models, those of mamba, rwkv7, jamba and nemotron_h do so.
"""

import logging
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from node.engine.kv import cache_tree

MOST_DIFFERENCE = 0.1
"""Limit of the difference of logits, relative to their spread. Rounding in 16 bits causes a tenth
of it; layers that include the padding cause half the spread or more."""
_TOKENS = 8
_SHORT_TOKENS = 2
_FORWARD_ERRORS = (ValueError, TypeError, AttributeError, RuntimeError, IndexError, KeyError)

logger = logging.getLogger(__name__)


def supports_padding(network: Any) -> bool:
    """Returns True if two prompts of different lengths, prefilled as one padded batch, continue as
    each does alone. Takes three forward passes over a few tokens."""
    try:
        differences = _differences(network)
    except _FORWARD_ERRORS as error:
        logger.warning("This model takes no padded prompts: %s", error)
        return False
    # Also False for NaN.
    return all(difference <= MOST_DIFFERENCE for difference in differences)


def _differences(network: Any) -> list[float]:
    """Returns the difference of the logits for a long prompt and for a prefix of it."""
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
