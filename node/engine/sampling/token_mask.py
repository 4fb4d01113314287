"""Masks of the tokens that may come next, with one bit per token."""

from collections.abc import Iterable

import numpy as np

Mask = np.ndarray[tuple[int], np.dtype[np.uint32]]
"""One bit per token, lowest bit first; bits beyond the vocabulary have no meaning."""

_WORD_BITS = 32


def mask_words(vocab_size: int) -> int:
    """Returns the length of a mask in 32-bit words."""
    return -(-vocab_size // _WORD_BITS)


def only(tokens: Iterable[int], vocab_size: int) -> Mask:
    """Returns a mask of only these tokens."""
    bits = np.zeros(mask_words(vocab_size) * _WORD_BITS, dtype=np.bool_)
    bits[list(tokens)] = True
    return _packed(bits)


def all_but(tokens: Iterable[int], vocab_size: int) -> Mask:
    """Returns a mask of all but these tokens."""
    bits = np.ones(mask_words(vocab_size) * _WORD_BITS, dtype=np.bool_)
    bits[list(tokens)] = False
    return _packed(bits)


def _packed(bits: "np.ndarray[tuple[int], np.dtype[np.bool_]]") -> Mask:
    return np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32, copy=False)
