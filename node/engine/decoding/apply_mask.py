"""Applies the token masks of rows to their logits."""

from collections.abc import Sequence
from itertools import groupby

import mlx.core as mx
import numpy as np

from node.engine.constraints.token_constraints import ConstrainedRow
from node.engine.sampling.token_mask import Mask


def constrain(rows: Sequence[ConstrainedRow], logits: mx.array) -> mx.array:
    """Returns logits [rows, V] with -inf for tokens that the rows' constraints do not allow."""
    return masked(
        logits, [None if row.constraint is None else row.constraint.next() for row in rows]
    )


def masked(logits: mx.array, masks: Sequence[Mask | None]) -> mx.array:
    """Returns logits [rows, V] with -inf for tokens that the mask of a row does not allow. None
    allows all tokens; such a row costs a copy at most."""
    if all(mask is None for mask in masks):
        return logits
    lowest = mx.array(-mx.inf, dtype=logits.dtype)
    pieces, begin = [], 0
    for is_masked, run in groupby(masks, key=lambda mask: mask is not None):
        alike = list(run)
        own = logits[begin : begin + len(alike)]
        begin += len(alike)
        if is_masked:
            present = [mask for mask in alike if mask is not None]
            own = mx.where(_allowed(present, logits.shape[1]), own, lowest)
        pieces.append(own)
    return mx.concatenate(pieces) if len(pieces) > 1 else pieces[0]


def _allowed(masks: Sequence[Mask], vocab_size: int) -> mx.array:
    """Returns the masks as booleans [rows, V]."""
    # On the host, which is free while the device computes the model's half of the pass.
    octets = np.stack(masks).astype("<u4", copy=False).view(np.uint8)
    bits = np.unpackbits(octets, axis=1, count=vocab_size, bitorder="little")
    return mx.array(bits.view(np.bool_))
