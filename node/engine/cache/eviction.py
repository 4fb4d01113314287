"""Chooses the entries to evict by their value, before anything is changed."""

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from node.engine.cache.index import Node, RadixIndex
from node.engine.cache.value import value_per_byte

PrefillS = Callable[[int, int], float]
"""Estimated seconds to prefill the tokens begin..end of a prompt."""


@dataclass(frozen=True, slots=True)
class Victim:
    """Memory to free: everything that a node owns, or its snapshot alone."""

    node: Node
    span: bool


class EvictionScores:
    """Values of nodes at one moment. Reads nodes, changes nothing."""

    def __init__(self, prefill_s: PrefillS, now_s: float, *, needs_snapshot: bool) -> None:
        self._prefill_s = prefill_s
        self._needs_snapshot = needs_snapshot
        self._now_s = now_s
        self.evicted: set[Node] = set()
        """Nodes whose snapshots count as evicted; an `EvictionPlan` adds to it."""

    def recompute_s(self, node: Node) -> float:
        """Returns the prefill seconds to restore what the node owns, once the nodes below own
        nothing."""
        if not self._needs_snapshot:
            return self._prefill_s(node.begin, node.end)
        if node.has_snapshot and node not in self.evicted:
            return self.snapshot_recompute_s(node)
        # Tokens behind the last snapshot are reusable only on the path to a deeper one.
        return self._prefill_s(node.begin, node.end) if node.children else 0.0

    def snapshot_recompute_s(self, node: Node) -> float:
        """Returns the prefill seconds from the previous snapshot to this one."""
        for above in node.ancestors():
            if above.has_snapshot and above not in self.evicted:
                return self._prefill_s(above.end, node.end)
        return self._prefill_s(0, node.end)

    def value(self, node: Node, nbytes: int) -> float:
        """Returns the value per byte of a node as a whole."""
        return value_per_byte(self.recompute_s(node), self._now_s - node.used_s, nbytes)

    def snapshot_value(self, node: Node) -> float:
        """Returns the value per byte of the node's snapshot alone."""
        age_s = self._now_s - node.snapshot_used_s
        return value_per_byte(self.snapshot_recompute_s(node), age_s, node.snapshot_bytes)


class EvictionPlan:
    """Picks entries to evict, the least valuable first: nodes with no memory below them, and single
    snapshots anywhere. Never picks held or pinned nodes.

    Entries that already wait to be written count as evicted. With `at_once` only memory that can be
    freed immediately is picked, not memory that is being written. `keep` and the spans above it
    stay.
    """

    def __init__(
        self,
        index: RadixIndex,
        scores: EvictionScores,
        *,
        at_once: bool,
        keep: Node | None = None,
    ) -> None:
        self._index = index
        self._scores = scores
        self._at_once = at_once
        self.victims: list[Victim] = []
        self.freed_bytes = 0
        self.freed_snapshot_bytes = 0
        self._evicted_spans: set[Node] = set()
        self._evicted_snapshots = scores.evicted
        self._below = {node: node.resident_below for node in index.resident}
        if keep is not None:
            # As if a node below it owned memory.
            self._change_below([keep, *keep.ancestors()], 1)
        if not at_once:
            self._count_leaving_as_evicted()
        self._nodes: _Heap | None = None
        self._snapshots: _Heap | None = None

    def free(self, nbytes: int) -> bool:
        """Picks until `nbytes` are freed; returns False if there is not enough to pick."""
        while self.freed_bytes < nbytes:
            if self.pick() is None:
                return False
        return True

    def free_snapshots(self, nbytes: int) -> bool:
        """Like `free`, for snapshots alone."""
        while self.freed_snapshot_bytes < nbytes:
            if self.pick_snapshot() is None:
                return False
        return True

    def pick(self) -> Victim | None:
        """Picks the least valuable node or snapshot; None if there is none."""
        if self._nodes is None:
            self._nodes = [self._priced(node) for node in self._below if self._may_pick(node)]
            heapq.heapify(self._nodes)
        while self._nodes:
            node = self._next(self._nodes, self._priced, self._may_pick)
            if node is not None:
                return self._take(Victim(node, span=self._below[node] == 0))
        return None

    def pick_snapshot(self) -> Victim | None:
        """Picks the least valuable snapshot of all nodes; None if there is none."""
        if self._snapshots is None:
            self._snapshots = [
                self._snapshot_priced(node) for node in self._below if self._has_snapshot(node)
            ]
            heapq.heapify(self._snapshots)
        while self._snapshots:
            node = self._next(self._snapshots, self._snapshot_priced, self._has_snapshot)
            if node is not None:
                return self._take(Victim(node, span=False))
        return None

    def _next(
        self,
        heap: "_Heap",
        priced: Callable[[Node], "_Priced"],
        may_pick: Callable[[Node], bool],
    ) -> Node | None:
        """Pops the first node of the heap; None if it may not be picked, or its value has changed
        since it was pushed."""
        value, _, node = heapq.heappop(heap)
        if not may_pick(node):
            return None
        now = priced(node)
        if now[0] != value:
            heapq.heappush(heap, now)
            return None
        return node

    def _take(self, victim: Victim) -> Victim:
        node = victim.node
        self.victims.append(victim)
        if node.snapshot is not None and node not in self._evicted_snapshots:
            self.freed_bytes += node.snapshot_bytes
            self.freed_snapshot_bytes += node.snapshot_bytes
            self._evicted_snapshots.add(node)
        if victim.span and node not in self._evicted_spans:
            self.freed_bytes += node.span_bytes
            self._evicted_spans.add(node)
        if self._is_evicted(node):
            self._uncover(node)
        return victim

    def _uncover(self, gone: Node) -> None:
        """Updates the ancestors: each has one node less with memory below it."""
        for above in gone.ancestors():
            if above in self._below:
                self._below[above] -= 1
                if self._nodes is not None and self._may_pick(above):
                    heapq.heappush(self._nodes, self._priced(above))

    def _count_leaving_as_evicted(self) -> None:
        for node in self._index.leaving:
            if node.span_leaving:
                self._evicted_spans.add(node)
            if node.snapshot_leaving:
                self._evicted_snapshots.add(node)
        for node in self._index.leaving:
            if self._is_evicted(node):
                self._change_below(node.ancestors(), -1)

    def _change_below(self, nodes: Iterable[Node], change: int) -> None:
        for node in nodes:
            if node in self._below:
                self._below[node] += change

    def _is_evicted(self, node: Node) -> bool:
        return (node.span is None or node in self._evicted_spans) and (
            node.snapshot is None or node in self._evicted_snapshots
        )

    def _may_pick(self, node: Node) -> bool:
        if self._below[node] > 0:
            return self._has_snapshot(node)
        if node.protected or self._is_evicted(node):
            return False
        return not (self._at_once and (_is_written_now(node) or _snapshot_is_written_now(node)))

    def _has_snapshot(self, node: Node) -> bool:
        if node.snapshot is None or node in self._evicted_snapshots or node.protected:
            return False
        return not (self._at_once and _snapshot_is_written_now(node))

    def _priced(self, node: Node) -> "_Priced":
        if self._below[node] > 0:
            return self._snapshot_priced(node)
        nbytes = 0 if node in self._evicted_spans else node.span_bytes
        nbytes += 0 if node in self._evicted_snapshots else node.snapshot_bytes
        return self._scores.value(node, nbytes), node.entry, node

    def _snapshot_priced(self, node: Node) -> "_Priced":
        return self._scores.snapshot_value(node), node.entry, node


_Priced = tuple[float, int, Node]
"""Value, the number that breaks ties, the node."""
_Heap = list[_Priced]


def _is_written_now(node: Node) -> bool:
    return node.span is not None and node.file is not None and not node.file.written


def _snapshot_is_written_now(node: Node) -> bool:
    file = node.snapshot_file
    return node.snapshot is not None and file is not None and not file.written
