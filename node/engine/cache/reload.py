"""Rebuilds the tree from the files of an earlier process."""

from collections.abc import Sequence

from node.engine.cache.index import Node, RadixIndex, branch_of
from node.engine.cache.journal import Journal
from node.engine.cache.parts import DiskEntry, DiskTier, EntryKind
from node.engine.cache.spilling import Spiller
from node.ipc.messages import CacheEventKind


class Reload:
    """One pass over the entries of a tier, parents first."""

    def __init__(self, index: RadixIndex, spiller: Spiller, now_s: float) -> None:
        self._index = index
        self._spiller = spiller
        self._now_s = now_s
        self._deepest: dict[int, tuple[int, Node]] = {}
        """By file: the depth at which its span begins, and the node that contains its last
        token."""

    def run(self, entries: Sequence[DiskEntry], tier: DiskTier, journal: Journal) -> None:
        """Adds the entries. Deletes files that fit nowhere: they continue a missing file, or
        duplicate another one."""
        unplaced = [entry.file for entry in entries if not self._place(entry)]
        for file in reversed(unplaced):
            tier.drop(file)
        nodes = self._index.root.subtree()[1:]
        for node in nodes:
            journal.note(CacheEventKind.SPILLED, node)
        for node in reversed(nodes):
            self._spiller.prune(node)

    def _place(self, entry: DiskEntry) -> bool:
        point = self._point(entry)
        if point is None:
            return False
        if entry.kind == EntryKind.SNAPSHOT:
            if point.parent is None or point.has_snapshot:
                return False
            self._spiller.adopt_snapshot(point, entry.file, entry.nbytes, written=True)
            return True
        salt = entry.salt
        if len(entry.tokens) == 0 or branch_of(salt, entry.tokens) in point.children:
            return False
        node = self._index.add(point, entry.tokens, self._now_s, salt)
        self._spiller.adopt_span(node, entry.file, entry.nbytes, written=True)
        self._deepest[entry.file] = (node.begin, node)
        return True

    def _point(self, entry: DiskEntry) -> Node | None:
        """Returns the node at whose end the entry continues; splits an edge for it."""
        if entry.parent_file == 0:
            return self._index.root
        if entry.parent_file not in self._deepest:
            return None
        begin, node = self._deepest[entry.parent_file]
        depth = begin + entry.parent_tokens
        if not begin < depth <= node.end:
            return None
        while node.begin >= depth:
            assert node.parent is not None
            node = node.parent
        return node if node.end == depth else self._index.split(node, depth - node.begin)
