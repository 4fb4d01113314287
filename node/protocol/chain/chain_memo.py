"""A cache of prefix hash chains, so that a session's next turn is hashed only as far as it is
new."""

import re
import threading
from array import array
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import msgspec

_OVERHEAD_BYTES = 1024
"""Approximate bytes of a chain besides its text and its arrays."""

_read_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_text_of = attrgetter("text")
_between = re.compile(rb"[ \t\r\n,]*").match

Key = tuple[Any, ...]
"""For a preamble, the parts that it is made of; for a list of items, everything before it, its
dialect's reader and its first bytes."""

Preamble = tuple["array[int]", "array[int]"]
"""Hashes and sizes of the preamble: everything that a prompt shows before the items."""


@dataclass(slots=True, eq=False)
class ItemChain:
    """The positions of a list of items. Its arrays are never changed."""

    text: bytes
    """The list's JSON up to the end of its last item."""
    hashes: "array[int]"
    sizes: "array[int]"
    items: "array[int]"
    """For each item, the number of positions up to its end, the preamble's included."""
    ends: "array[int] | None" = None
    """Offset in `text` at which each item ends; None until it is needed."""

    def first_items(self, length: int) -> "ItemChain | None":
        """The same for the items within the first `length` bytes; None if there are none."""
        if length == len(self.text):
            return self
        if self.ends is None:
            self.ends = item_ends(self.text + b"]", 1)
        ends = self.ends[: bisect_right(self.ends, length)]
        if not ends:
            return None
        items = self.items[: len(ends)]
        hashes, sizes = self.hashes[: items[-1]], self.sizes[: items[-1]]
        return ItemChain(self.text[: ends[-1]], hashes, sizes, items, ends)


def item_ends(text: bytes, at: int) -> "array[int]":
    """Offsets at which those items of a list end that begin at `at` or later."""
    at = _past_gap(text, at)
    ends = array("I")
    for raw in _read_list(b"[" + text[at:]):
        at = _past_gap(text, at) + len(memoryview(raw))
        ends.append(at)
    return ends


class ChainFamily:
    """The chains of all lists that begin with the same bytes. They are kept in the order of their
    texts, so that the one with the longest common prefix is found by bisection, however many
    sessions share their beginning."""

    def __init__(self) -> None:
        self._by_text: list[ItemChain] = []
        self._by_head: OrderedDict[int, ItemChain] = OrderedDict()
        """Chains by their last hash, the least recently used first."""

    def __len__(self) -> int:
        return len(self._by_head)

    def __bool__(self) -> bool:
        return len(self) > 0

    def __iter__(self) -> Iterator[ItemChain]:
        """The chains, the least recently used first."""
        return iter(self._by_head.values())

    def longest(self, text: bytes) -> tuple[ItemChain, int] | None:
        """The chain with which the list's JSON has the most bytes in common, and their number; None
        if none has any of the first item."""
        found, alike = None, 1
        at = bisect_right(self._by_text, text, key=_text_of)
        for made in self._by_text[max(0, at - 1) : at + 1]:
            more = _common_bytes(made.text, text, alike)
            if more > alike:
                found, alike = made, more
        if found is None:
            return None
        self._by_head.move_to_end(found.hashes[-1])
        return found, alike

    def put(self, made: ItemChain) -> int:
        """Stores a chain, in place of those of earlier turns of its session. Returns the number of
        bytes that it takes more than they did.

        An earlier turn ends at one of the chain's positions. Their texts may differ within the
        common items: cache marks, which move from turn to turn, are in no hash.
        """
        added_bytes = _bytes(made)
        if not self._by_head.keys().isdisjoint(made.hashes):
            for each in made.hashes:
                if (earlier := self._by_head.pop(each, None)) is not None:
                    self._remove_text(earlier)
                    added_bytes -= _bytes(earlier)
        self._by_head[made.hashes[-1]] = made
        insort(self._by_text, made, key=_text_of)
        return added_bytes

    def drop_oldest(self) -> int:
        """Drops the least recently used chain; returns the number of its bytes."""
        _, made = self._by_head.popitem(last=False)
        self._remove_text(made)
        return _bytes(made)

    def _remove_text(self, made: ItemChain) -> None:
        at = bisect_left(self._by_text, made.text, key=_text_of)
        while self._by_text[at] is not made:
            at += 1
        del self._by_text[at]


class ChainMemo:
    """An LRU cache of preambles and chains, bounded by their bytes. Thread-safe."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._used_bytes = 0
        self._used: OrderedDict[Key, None] = OrderedDict()
        """All keys, the most recently used one last."""
        self._preambles: dict[Key, Preamble] = {}
        self._families: dict[Key, ChainFamily] = {}
        self._lock = threading.Lock()

    def preamble(self, key: Key) -> Preamble | None:
        """The preamble stored under the key, or None."""
        with self._lock:
            return self._preambles[key] if self._touch(key) else None

    def put_preamble(self, key: Key, preamble: Preamble) -> None:
        with self._lock:
            if not self._touch(key):
                self._used[key] = None
                self._preambles[key] = preamble
                self._used_bytes += _preamble_bytes(key, preamble)
                self._evict()

    def longest(self, key: Key, text: bytes) -> ItemChain | None:
        """The stored chain that covers the longest run of items with which the list's JSON
        begins."""
        with self._lock:
            found = self._families[key].longest(text) if self._touch(key) else None
        if found is None:
            return None
        made, alike = found
        return made.first_items(alike)  # may read all of a long list: not under the lock

    def put(self, key: Key, made: ItemChain) -> None:
        """Stores a chain that has positions, in place of those of earlier turns of its session."""
        with self._lock:
            if not self._touch(key):
                self._used[key] = None
                self._used_bytes += _key_bytes(key)
                self._families[key] = ChainFamily()
            self._used_bytes += self._families[key].put(made)
            self._evict()

    def _touch(self, key: Key) -> bool:
        """True if anything is stored under the key, which becomes the most recently used."""
        if key not in self._used:
            return False
        self._used.move_to_end(key)
        return True

    def _evict(self) -> None:
        while self._used_bytes > self._most_bytes:
            key = next(iter(self._used))
            preamble = self._preambles.pop(key, None)
            if preamble is not None:
                self._used_bytes -= _preamble_bytes(key, preamble)
                del self._used[key]
                continue
            family = self._families[key]
            self._used_bytes -= family.drop_oldest()
            if not family:
                self._used_bytes -= _key_bytes(key)
                del self._families[key], self._used[key]


def _past_gap(text: bytes, at: int) -> int:
    """The offset at which the separator between two items ends."""
    gap = _between(text, at)
    return at if gap is None else gap.end()


def _common_bytes(known: bytes, text: bytes, least: int) -> int:
    """Length of the common prefix of `known` and `text`; `least` if it is not longer than that."""
    view = memoryview(known)
    if len(known) <= least or not text.startswith(view[: least + 1]):
        return least
    low, high = least + 1, len(known)
    # The first `low` bytes are equal; the common prefix is at most `high` bytes long.
    while low < high:
        middle = (low + high + 1) // 2
        if text.startswith(view[low:middle], low):
            low = middle
        else:
            high = middle - 1
    return low


def _bytes(made: ItemChain) -> int:
    numbers = len(made.hashes) * 8 + len(made.sizes) * 4 + len(made.items) * 8
    return len(made.text) + numbers + _OVERHEAD_BYTES


def _preamble_bytes(key: Key, preamble: Preamble) -> int:
    return _key_bytes(key) + len(preamble[0]) * 12


def _key_bytes(key: Key) -> int:
    return sum(len(part) for part in key if isinstance(part, bytes)) + _OVERHEAD_BYTES
