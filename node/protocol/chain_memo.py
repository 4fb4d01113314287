"""Chains that were made already, so that a session's next turn costs what is new in it."""

import re
import threading
from array import array
from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import msgspec

MOST_MADE = 64
"""So many chains are kept whose items begin alike."""

_OVERHEAD_BYTES = 1024
"""What a chain costs besides its text and its arrays, about."""

_read_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_between = re.compile(rb"[ \t\r\n,]*").match

Key = tuple[Any, ...]
"""All that stands before a body's items, how those are read, and how they begin."""


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


@dataclass(slots=True)
class _Family:
    """All chains of one key, the one made last at the end."""

    preamble: Preamble
    made: list[Made] = field(default_factory=list)


class ChainMemo:
    """Of a bounded size; what was not used for longest goes first. Safe to use from several
    threads."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._held_bytes = 0
        self._families: OrderedDict[Key, _Family] = OrderedDict()
        self._lock = threading.Lock()

    def preamble(self, key: Key) -> Preamble | None:
        """What belongs to the key, if it is known."""
        family = self._families.get(key)
        return None if family is None else family.preamble

    def longest(self, key: Key, text: bytes) -> Made | None:
        """The most items that are known of those that the list's JSON begins with."""
        with self._lock:
            family = self._families.get(key)
            known = [] if family is None else family.made[::-1]
        found, alike = None, 1
        for made in known:
            more = _alike(made.text, text, alike)
            if more > alike:
                found, alike = made, more
        return None if found is None else found.begin(alike)

    def put(self, key: Key, preamble: Preamble, made: Made) -> None:
        """Keeps a chain, in place of those of the same session's earlier turns."""
        with self._lock:
            family = self._families.setdefault(key, _Family(preamble))
            if not family.made:
                self._held_bytes += _family_bytes(key, preamble)
            self._families.move_to_end(key)
            kept = [each for each in family.made if not _is_earlier(each, made)]
            if len(kept) >= MOST_MADE:
                kept = kept[1:]
            gone_bytes = sum(map(_bytes, family.made)) - sum(map(_bytes, kept))
            self._held_bytes += _bytes(made) - gone_bytes
            family.made = [*kept, made]
            while self._held_bytes > self._most_bytes:
                self._let_go()

    def _let_go(self) -> None:
        key, family = next(iter(self._families.items()))
        self._held_bytes -= _bytes(family.made.pop(0))
        if not family.made:
            self._held_bytes -= _family_bytes(key, family.preamble)
            del self._families[key]


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


def _family_bytes(key: Key, preamble: Preamble) -> int:
    parts = sum(len(part) for part in key if isinstance(part, bytes))
    return parts + len(preamble[0]) * 12 + _OVERHEAD_BYTES
