"""Records when entries were last used."""

from collections.abc import Callable

from node.engine.cache.index import Node, RadixIndex, files_of
from node.engine.cache.parts import DiskTier


class Recency:
    """Marks entries as used, in memory and on disk. `clock` returns monotonic seconds."""

    def __init__(
        self, index: RadixIndex, tier: DiskTier | None, clock: Callable[[], float]
    ) -> None:
        self.clock = clock
        self._index = index
        self._tier = tier

    def mark_used(self, path: list[Node], *, at_snapshot: bool) -> None:
        """Marks the nodes as used now, and the snapshot of the last one. Entries that wait to be
        dropped from memory stay."""
        now_s = self.clock()
        for node in path:
            node.used_s = now_s
            self._index.set_leaving(node, span=False, snapshot=False)
        if at_snapshot:
            path[-1].snapshot_used_s = now_s
        if self._tier is not None:
            self._tier.touch(files_of(path))
