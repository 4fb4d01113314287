"""Which tokens may come next, a bit for each."""

from collections.abc import Iterable

import numpy as np

Mask = np.ndarray[tuple[int], np.dtype[np.uint32]]
"""A bit for each token, lowest first; bits beyond the vocabulary mean nothing."""

_WORD_BITS = 32


def mask_words(vocab_size: int) -> int:
    """Length of a mask."""
    return -(-vocab_size // _WORD_BITS)


def only(tokens: Iterable[int], vocab_size: int) -> Mask:
    """None but these tokens."""
    bits = np.zeros(mask_words(vocab_size) * _WORD_BITS, dtype=np.bool_)
    bits[list(tokens)] = True
    return _packed(bits)


def all_but(tokens: Iterable[int], vocab_size: int) -> Mask:
    """All but these tokens."""
    bits = np.ones(mask_words(vocab_size) * _WORD_BITS, dtype=np.bool_)
    bits[list(tokens)] = False
    return _packed(bits)


def _packed(bits: "np.ndarray[tuple[int], np.dtype[np.bool_]]") -> Mask:
    return np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32, copy=False)
