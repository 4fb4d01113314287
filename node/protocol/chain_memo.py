"""Chains that were made already, so that a session's next turn costs what is new in it."""

import threading
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

MOST_MADE = 64
"""So many chains are kept whose items begin alike."""
MOST_FORKS = 4
"""So many chains are looked at where none is the whole begin of a new one."""

_OVERHEAD_BYTES = 1024
"""What a chain costs besides its text, about."""

Key = tuple[Any, ...]
"""All that stands before a body's items, how those are read, and how they begin."""


Preamble = tuple["array[int]", "array[int]"]
"""Hashes and sizes of what stands before the items."""


class Made(NamedTuple):
    """The positions of a list of items; the arrays are never changed."""

    text: memoryview
    """The list's JSON up to the end of its last item."""
    ends: Sequence[int]
    """Where in the text each item ends."""
    hashes: "array[int]"
    sizes: "array[int]"
    items: "array[int]"
    """How many positions there are up to each item's end, the preamble's included."""

    def begin(self, count: int) -> "Made":
        """The same of the first items only."""
        if count == len(self.ends):
            return self
        stop = self.items[count - 1]
        ends = self.ends[:count]
        text = self.text[: ends[-1]]
        return Made(text, ends, self.hashes[:stop], self.sizes[:stop], self.items[:count])


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
        whole = [made for made in known if text.startswith(made.text)]
        if whole:
            return max(whole, key=lambda made: len(made.text))
        found: Made | None = None
        for made in known[:MOST_FORKS]:
            count = _items_alike(made, text)
            if count and (found is None or made.ends[count - 1] > len(found.text)):
                found = made.begin(count)
        return found

    def put(
        self,
        key: Key,
        preamble: Preamble,
        made: Made,
        replaced: Made | None,
    ) -> None:
        """Keeps a chain, in place of the one that it goes on from."""
        with self._lock:
            family = self._families.setdefault(key, _Family(preamble))
            if not family.made:
                self._held_bytes += _preamble_bytes(key)
            self._families.move_to_end(key)
            kept = [each for each in family.made if each is not replaced]
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
            self._held_bytes -= _preamble_bytes(key)
            del self._families[key]


def _items_alike(made: Made, text: bytes) -> int:
    """How many items the text begins with."""
    low, high = 0, len(made.ends)
    # Alike up to `low` items, not up to more than `high`.
    while low < high:
        middle = (low + high + 1) // 2
        if text.startswith(made.text[: made.ends[middle - 1]]):
            low = middle
        else:
            high = middle - 1
    return low


def _bytes(made: Made) -> int:
    return len(made.text) + _OVERHEAD_BYTES


def _preamble_bytes(key: Key) -> int:
    return sum(len(part) for part in key if isinstance(part, bytes)) + _OVERHEAD_BYTES
