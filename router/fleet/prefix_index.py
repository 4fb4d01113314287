"""The prefix index: the router's copy of what nodes report as cached. In memory only."""

import time
from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from node.protocol.bounds import MAX_MODELS
from node.protocol.chain.prefix import Chain, Head
from node.protocol.messages import PrefixDelta, PrefixGone, PrefixSnapshot, Stored
from node.protocol.prefixes import Tier, unpack_entries, unpack_hashes
from router.coverage import Coverage
from router.fleet.estimated_prefixes import EstimatedPrefixes

MOST_HEADS = 20_000
"""Most stored responses whose chain is known; the least recently used are dropped."""
MOST_ENTRIES = 1 << 20
"""Limit per node, about a gigabyte of prompts. Reports beyond it are ignored, as are those of more
than `MAX_MODELS` models."""

_REPORT_BITS = 33
"""An entry's value is the reported value in the low 33 bits and the time of the report above them.
One integer, since two objects for each of a million entries need too much memory."""
_REPORT_MASK = (1 << _REPORT_BITS) - 1
_TICKS_PER_S = 100
_ON_DISK = int(Tier.DISK)


@dataclass(slots=True)
class _Mirror:
    """Reported prefixes of one loaded model on one node."""

    epoch: int
    seq: int = 0
    """Number of the last delta that is applied."""
    parts: int = 0
    applied_parts: int = 0
    ended: bool = False
    """True if the engine has ended. The mirror stays, so that its late reports are recognized."""
    entries: dict[int, int] = field(default_factory=dict)

    def is_past(self, epoch: int) -> bool:
        """True if the epoch's engine has ended."""
        return epoch < self.epoch or (self.ended and epoch == self.epoch)

    def apply(self, packed: bytes, reported: int) -> None:
        hashes, values = unpack_entries(packed)
        base = reported << _REPORT_BITS
        self.entries.update(zip(hashes, [base | value for value in values], strict=True))

    def lower(self, hashes: "array[int]", usable_tokens: int, reported_before: int) -> None:
        entries = self.entries
        for position in range(_covered(entries, hashes) - 1, -1, -1):
            value = entries[hashes[position]]
            if _usable(value) <= usable_tokens:
                break
            if value >> _REPORT_BITS < reported_before:
                reported = value >> _REPORT_BITS << _REPORT_BITS
                entries[hashes[position]] = reported | usable_tokens << 1 | value & _ON_DISK


_NO_MIRRORS: dict[str, _Mirror] = {}


class PrefixIndex:
    """Owner of the mirrors. Implements `router.types.Prefixes`.

    A node's reported positions are closed under prefixes: it reports every position up to the
    deepest one, even those from which nothing is usable. So a chain is looked up by bisection.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began_s = clock()
        self._mirrors: dict[str, dict[str, _Mirror]] = {}
        """Mirrors by node and model."""
        self._estimated = EstimatedPrefixes()
        self._heads: OrderedDict[str, Head] = OrderedDict()
        """Ends of chains by stored response."""

    # --- reading ---

    def coverage(self, node_id: str, chain: Chain) -> Coverage:
        entries = self._entries(node_id, chain)
        if entries is None:
            return self._estimated.coverage(node_id, chain)
        hashes = chain.hashes
        deepest = _covered(entries, hashes)
        usable = _usable(entries[hashes[deepest - 1]])
        get = entries.get
        # Positions in memory are closed under prefixes, too.
        in_memory = bisect_left(
            hashes, _ON_DISK, hi=deepest, key=lambda each: get(each, _ON_DISK) & _ON_DISK
        )
        if in_memory == deepest:
            return Coverage(deepest, usable, usable)
        memory = _usable(entries[hashes[in_memory - 1]]) if in_memory else 0
        return Coverage(deepest, usable, min(memory, usable))

    def head(self, response_id: str) -> Head | None:
        """The end of the chain that a stored response has; None if no node has reported it."""
        head = self._heads.get(response_id)
        if head is not None:
            self._heads.move_to_end(response_id)
        return head

    def entries_by_node(self) -> dict[str, int]:
        reported = {
            node_id: sum(len(mirror.entries) for mirror in mirrors.values())
            for node_id, mirrors in self._mirrors.items()
        }
        return reported | self._estimated.entries_by_node()

    # --- events ---

    def on_snapshot(self, node_id: str, snapshot: PrefixSnapshot) -> bool:
        """Applies one part of a snapshot; part 0 clears the model's entries. Returns False if an
        earlier part is missing. Raises `ValueError` for invalid entries."""
        mirrors = self._mirrors.setdefault(node_id, {})
        mirror = mirrors.get(snapshot.model)
        if mirror is not None and mirror.is_past(snapshot.epoch):
            return True
        if snapshot.part == 0:
            mirror = _Mirror(snapshot.epoch, snapshot.seq, snapshot.parts)
            _add(mirrors, snapshot.model, mirror)
        elif mirror is None or (snapshot.epoch, snapshot.seq, snapshot.part) != (
            mirror.epoch,
            mirror.seq,
            mirror.applied_parts,
        ):
            return False
        if _has_room(mirrors):
            mirror.apply(snapshot.entries, self._report_tick(self._clock()))
        mirror.applied_parts += 1
        return True

    def on_delta(self, node_id: str, delta: PrefixDelta) -> bool:
        """Applies a delta. Returns False if an earlier one is missing, so that a new snapshot is
        needed. Raises `ValueError` for invalid entries."""
        mirrors = self._mirrors.setdefault(node_id, {})
        mirror = mirrors.get(delta.model)
        if mirror is None or mirror.epoch < delta.epoch:
            mirror = _Mirror(delta.epoch)
            _add(mirrors, delta.model, mirror)
        elif mirror.is_past(delta.epoch) or delta.seq <= mirror.seq:
            return True
        if mirror.applied_parts < mirror.parts or delta.seq != mirror.seq + 1:
            return False
        mirror.seq = delta.seq
        for each in unpack_hashes(delta.removed):
            mirror.entries.pop(each, None)
        if _has_room(mirrors):
            mirror.apply(delta.changed, self._report_tick(self._clock()))
        return True

    def on_gone(self, node_id: str, gone: PrefixGone) -> None:
        """Clears a model whose engine has ended."""
        mirrors = self._mirrors.setdefault(node_id, {})
        mirror = mirrors.get(gone.model)
        if mirror is None or mirror.epoch <= gone.epoch:
            _add(mirrors, gone.model, _Mirror(gone.epoch, ended=True))

    def on_stored(self, stored: Stored) -> None:
        """Records the chain of a response that a node has stored for this router's callers."""
        self._heads[stored.response_id] = Head(stored.hash, stored.front, stored.size_bytes)
        self._heads.move_to_end(stored.response_id)
        if len(self._heads) > MOST_HEADS:
            self._heads.popitem(last=False)

    def forget_node(self, node_id: str) -> None:
        """Forgets everything about a node that is lost or has restarted."""
        self._mirrors.pop(node_id, None)
        self._estimated.forget_node(node_id)

    def on_served(self, node_id: str, chain: Chain, prompt_tokens: int) -> None:
        """Records a prompt of about so many tokens that a node without prefix reports has
        served."""
        self._estimated.on_served(node_id, chain, prompt_tokens)

    def lower(
        self, node_id: str, chain: Chain, usable_tokens: int, reported_before_s: float
    ) -> None:
        """Lowers entries of this chain to what the node really reused, until it reports them again.
        Entries reported at `reported_before_s` on the index's clock or later are newer than that
        reuse and stay."""
        for mirror in self._mirrors.get(node_id, _NO_MIRRORS).values():
            mirror.lower(chain.hashes, usable_tokens, self._report_tick(reported_before_s))

    def _entries(self, node_id: str, chain: Chain) -> dict[int, int] | None:
        """The entries of the chain's model. The model is part of the first hash, so no other model
        has it."""
        if not chain.hashes:
            return None
        first = chain.hashes[0]
        for mirror in self._mirrors.get(node_id, _NO_MIRRORS).values():
            if first in mirror.entries:
                return mirror.entries
        return None

    def _report_tick(self, at_s: float) -> int:
        return int((at_s - self._began_s) * _TICKS_PER_S)


def _add(mirrors: dict[str, _Mirror], model: str, mirror: _Mirror) -> None:
    mirrors[model] = mirror
    if len(mirrors) > MAX_MODELS:
        del mirrors[next(iter(mirrors))]


def _has_room(mirrors: dict[str, _Mirror]) -> bool:
    return sum(len(mirror.entries) for mirror in mirrors.values()) < MOST_ENTRIES


def _covered(entries: dict[int, int], hashes: "array[int]") -> int:
    """Number of the chain's leading positions that are cached. While a snapshot is incomplete the
    entries are not closed under prefixes, and the result may be too low, never too high."""
    return bisect_left(hashes, 1, key=lambda each: each not in entries)


def _usable(value: int) -> int:
    return (value & _REPORT_MASK) >> 1
