"""Chains that were made already, so that a session's next turn costs what is new in it."""

import re
import threading
from array import array
from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import msgspec

MOST_MADE = 64
"""So many chains are kept whose items begin alike."""

_OVERHEAD_BYTES = 1024
"""What a chain costs besides its text and its arrays, about."""

_read_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_between = re.compile(rb"[ \t\r\n,]*").match

Key = tuple[Any, ...]
"""Of a preamble: what it is made of. Of a list of items: what stands before it, how it is read, and
how it begins."""

Preamble = tuple["array[int]", "array[int]"]
"""Hashes and sizes of what stands before the items."""


@dataclass(slots=True, eq=False)
class Made:
    """The positions of a list of items; the arrays are never changed."""

    text: bytes
    """The list's JSON up to the end of its last item."""
    hashes: "array[int]"
    sizes: "array[int]"
    items: "array[int]"
    """How many positions there are up to each item's end, the preamble's included."""
    ends: "array[int] | None" = None
    """Where in the text each item ends; None until that is asked for."""

    def begin(self, length: int) -> "Made | None":
        """The same of those items that the first `length` bytes hold; None where that is none."""
        if length == len(self.text):
            return self
        if self.ends is None:
            self.ends = item_ends(self.text + b"]", 1)
        ends = self.ends[: bisect_right(self.ends, length)]
        if not ends:
            return None
        items = self.items[: len(ends)]
        hashes, sizes = self.hashes[: items[-1]], self.sizes[: items[-1]]
        return Made(self.text[: ends[-1]], hashes, sizes, items, ends)


def item_ends(text: bytes, at: int) -> "array[int]":
    """Where those items of a list end that begin at `at` or later."""
    at = _past_gap(text, at)
    ends = array("I")
    for raw in _read_list(b"[" + text[at:]):
        at = _past_gap(text, at) + len(memoryview(raw))
        ends.append(at)
    return ends


class ChainMemo:
    """Of a bounded size; what was not used for longest goes first. Safe to use from several
    threads."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._held_bytes = 0
        self._used: OrderedDict[Key, None] = OrderedDict()
        """All keys, the one used last at the end."""
        self._preambles: dict[Key, Preamble] = {}
        self._families: dict[Key, list[Made]] = {}
        """Of each key the chain made last at the end."""
        self._lock = threading.Lock()

    def preamble(self, key: Key) -> Preamble | None:
        """What was made of it, if it is known."""
        with self._lock:
            return self._preambles[key] if self._touch(key) else None

    def put_preamble(self, key: Key, preamble: Preamble) -> None:
        with self._lock:
            if not self._touch(key):
                self._used[key] = None
                self._preambles[key] = preamble
                self._held_bytes += _preamble_bytes(key, preamble)
                self._let_go()

    def longest(self, key: Key, text: bytes) -> Made | None:
        """The most items that are known of those that the list's JSON begins with."""
        with self._lock:
            known = self._families[key][::-1] if self._touch(key) else []
        found, alike = None, 1
        for made in known:
            more = _alike(made.text, text, alike)
            if more > alike:
                found, alike = made, more
        return None if found is None else found.begin(alike)

    def put(self, key: Key, made: Made) -> None:
        """Keeps a chain, in place of those of the same session's earlier turns."""
        with self._lock:
            if not self._touch(key):
                self._used[key] = None
                self._held_bytes += _key_bytes(key)
            family = self._families.get(key, [])
            kept = [each for each in family if not _is_earlier(each, made)]
            if len(kept) >= MOST_MADE:
                kept = kept[1:]
            gone_bytes = sum(map(_bytes, family)) - sum(map(_bytes, kept))
            self._held_bytes += _bytes(made) - gone_bytes
            self._families[key] = [*kept, made]
            self._let_go()

    def _touch(self, key: Key) -> bool:
        """Whether there is something under the key, which then has been used."""
        if key not in self._used:
            return False
        self._used.move_to_end(key)
        return True

    def _let_go(self) -> None:
        while self._held_bytes > self._most_bytes:
            key = next(iter(self._used))
            preamble = self._preambles.pop(key, None)
            if preamble is not None:
                self._held_bytes -= _preamble_bytes(key, preamble)
                del self._used[key]
                continue
            family = self._families[key]
            self._held_bytes -= _bytes(family.pop(0))
            if not family:
                self._held_bytes -= _key_bytes(key)
                del self._families[key], self._used[key]


def _past_gap(text: bytes, at: int) -> int:
    """The end of what is between two items."""
    gap = _between(text, at)
    return at if gap is None else gap.end()


def _alike(known: bytes, text: bytes, least: int) -> int:
    """With how many bytes of `known` the text begins; `least` if it is no more than that."""
    view = memoryview(known)
    if len(known) <= least or not text.startswith(view[: least + 1]):
        return least
    low, high = least + 1, len(known)
    # Alike up to `low`, not beyond `high`.
    while low < high:
        middle = (low + high + 1) // 2
        if text.startswith(view[low:middle], low):
            low = middle
        else:
            high = middle - 1
    return low


def _is_earlier(known: Made, made: Made) -> bool:
    """Whether one is of an earlier turn of the other's session. Its text may have been another:
    marks of caching, which move on, are in no hash."""
    count = len(known.hashes)
    return count <= len(made.hashes) and made.hashes[count - 1 : count] == known.hashes[-1:]


def _bytes(made: Made) -> int:
    numbers = len(made.hashes) * 8 + len(made.sizes) * 4 + len(made.items) * 8
    return len(made.text) + numbers + _OVERHEAD_BYTES


def _preamble_bytes(key: Key, preamble: Preamble) -> int:
    return _key_bytes(key) + len(preamble[0]) * 12


def _key_bytes(key: Key) -> int:
    return sum(len(part) for part in key if isinstance(part, bytes)) + _OVERHEAD_BYTES
