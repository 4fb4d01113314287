"""A node's prefix cache: segments in memory, and evicted ones on disk.

Using a path makes its first segment the most recent one and its last segment the least recent of
them. So the oldest segment has none behind it, and leaves are evicted first.
"""

from collections.abc import Container, Iterator, Sequence
from typing import NamedTuple


class CachedPath(NamedTuple):
    """The part of a path that a node has cached."""

    positions: int
    tokens: int
    memory_tokens: int
    """Tokens in memory; the others must be read from disk."""


NOT_CACHED = CachedPath(0, 0, 0)


class Cache:
    """Owner of one model's cached segments on one node. A segment's number identifies all segments
    before it, too."""

    def __init__(
        self, memory_tokens: int, *, disk_tokens: int = 0, slots: int = 0, snapshot_only: bool
    ) -> None:
        self._memory_limit = memory_tokens
        self._disk_limit = disk_tokens
        self._slots = slots
        self._snapshot_only = snapshot_only
        self._memory: dict[int, int] = {}
        """Tokens by segment, the least recently used first."""
        self._disk: dict[int, int] = {}
        self._parents: dict[int, int] = {}
        self._children: dict[int, int] = {}
        """By segment in memory, the number of segments there that extend it."""
        self._marks: set[int] = set()
        self._found: dict[int, CachedPath] = {}
        """Results by the last segment of a path, until anything changes."""
        self.memory_used = 0
        self.disk_used = 0
        self.leaves = 0

    def reach(self, path: Sequence[int], ends: Sequence[int]) -> CachedPath:
        found = self._found.get(path[-1])
        if found is None:
            found = self._found[path[-1]] = self._find(path, ends)
        return found

    def _find(self, path: Sequence[int], ends: Sequence[int]) -> CachedPath:
        in_memory = _leading(path, 0, self._memory)
        reached = in_memory
        if self._disk:
            reached = _leading(path, in_memory, self._disk)
        if self._snapshot_only:
            while reached and path[reached - 1] not in self._marks:
                reached -= 1
        if not reached:
            return NOT_CACHED
        tokens = ends[reached - 1]
        return CachedPath(reached, tokens, min(tokens, ends[in_memory - 1] if in_memory else 0))

    def evicted_by(self, tokens: int) -> Iterator[tuple[int, int]]:
        """The segments that storing so many more tokens would evict, each with its tokens."""
        over = self.memory_used + tokens - self._memory_limit
        for segment, cached in self._memory.items():
            if over <= 0:
                break
            over -= cached
            yield segment, cached

    def store(self, path: Sequence[int], ends: Sequence[int], marks: Sequence[int]) -> None:
        """Stores the path, with snapshots at the ends of the marked segments."""
        self._found.clear()
        memory = self._memory
        for position in range(len(path) - 1, -1, -1):
            segment = path[position]
            tokens = memory.pop(segment, None)
            if tokens is None:
                tokens = ends[position] - (ends[position - 1] if position else 0)
                self._enter(segment, path[position - 1] if position else -1, tokens)
            memory[segment] = tokens
        if self._snapshot_only:
            self._marks.update(marks)
        while self.memory_used > self._memory_limit or (self._slots and self.leaves > self._slots):
            self._evict()

    def _enter(self, segment: int, parent: int, tokens: int) -> None:
        """Adds a segment. A path is added from its end, so the segments behind this one are
        present."""
        self.memory_used += tokens
        self._parents[segment] = parent
        if not self._children.get(segment):
            self.leaves += 1
        if parent >= 0:
            before = self._children.get(parent, 0)
            self._children[parent] = before + 1
            if not before and parent in self._memory:
                self.leaves -= 1

    def _evict(self) -> None:
        segment = next(iter(self._memory))
        tokens = self._memory.pop(segment)
        self.memory_used -= tokens
        self.leaves -= 1
        parent = self._parents.pop(segment)
        if parent >= 0:
            self._children[parent] -= 1
            if not self._children[parent]:
                del self._children[parent]
                self.leaves += parent in self._memory
        if self._disk_limit:
            self._spill(segment, tokens)
        else:
            self._marks.discard(segment)

    def _spill(self, segment: int, tokens: int) -> None:
        if self._disk.pop(segment, None) is None:
            self.disk_used += tokens
        self._disk[segment] = tokens
        while self.disk_used > self._disk_limit:
            oldest = next(iter(self._disk))
            self.disk_used -= self._disk.pop(oldest)
            if oldest not in self._memory:
                self._marks.discard(oldest)

    def clear_memory(self) -> None:
        """Drops everything in memory, since the model is unloaded."""
        self._found.clear()
        self._memory.clear()
        self._parents.clear()
        self._children.clear()
        self._marks.intersection_update(self._disk)
        self.memory_used = self.leaves = 0


def _leading(path: Sequence[int], position: int, cached: Container[int]) -> int:
    """The number of leading segments of the path that are cached without a gap."""
    while position < len(path) and path[position] in cached:
        position += 1
    return position
