"""Packed entries of prefix digests, as nodes report them in snapshots and deltas."""

import sys
from array import array
from collections.abc import Iterable
from enum import IntEnum
from typing import Annotated, NamedTuple

from msgspec import Meta

MAX_ENTRIES = 4096
"""Most entries of one event, so that no event blocks an event loop for long."""
PackedEntries = Annotated[bytes, Meta(max_length=12 * MAX_ENTRIES)]
PackedHashes = Annotated[bytes, Meta(max_length=8 * MAX_ENTRIES)]


class Tier(IntEnum):
    MEMORY = 0
    DISK = 1
    """On disk; it is read back before use."""


class Entry(NamedTuple):
    """A position of a prefix hash chain from which a node can continue."""

    hash: int
    usable_tokens: int
    """Number of tokens that need not be computed for a prompt that goes through this position."""
    tier: Tier


def pack_entries(entries: Iterable[Entry]) -> bytes:
    """All hashes as 64-bit integers, then as many 32-bit integers `usable_tokens * 2 + tier`,
    little endian."""
    hashes, values = array("Q"), array("I")
    for entry in entries:
        hashes.append(entry.hash)
        values.append(entry.usable_tokens << 1 | entry.tier)
    return _little(hashes) + _little(values)


def unpack_entries(packed: bytes) -> "tuple[array[int], array[int]]":
    """The hashes, and for each `usable_tokens * 2 + tier`. Raises `ValueError` if the length is
    wrong."""
    count, rest = divmod(len(packed), 12)
    if rest:
        raise ValueError("packed prefix entries have 12 bytes each")
    hashes, values = array("Q"), array("I")
    hashes.frombytes(packed[: 8 * count])
    values.frombytes(packed[8 * count :])
    if sys.byteorder == "big":
        hashes.byteswap()
        values.byteswap()
    return hashes, values


def pack_hashes(hashes: Iterable[int]) -> bytes:
    return _little(array("Q", hashes))


def unpack_hashes(packed: bytes) -> "array[int]":
    """Raises `ValueError` if the length is wrong."""
    if len(packed) % 8:
        raise ValueError("packed hashes have 8 bytes each")
    hashes = array("Q")
    hashes.frombytes(packed)
    if sys.byteorder == "big":
        hashes.byteswap()
    return hashes


def _little(numbers: "array[int]") -> bytes:
    if sys.byteorder == "big":
        numbers = numbers[:]
        numbers.byteswap()
    return numbers.tobytes()
