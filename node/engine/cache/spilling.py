"""Drops entries from memory, to disk if there is a disk tier, and removes them from the tree."""

import struct
from hashlib import blake2b

import numpy as np

from node.engine.cache.eviction import Victim
from node.engine.cache.index import File, Node, RadixIndex
from node.engine.cache.journal import Journal
from node.engine.cache.parts import DiskTier, EntryKind
from node.ipc.messages import CacheEventKind

_NO_TOKENS = np.empty(0, np.int32)
_NAME_BYTES = 8


class Spiller:
    """Owner of the mapping between nodes and files."""

    def __init__(
        self, index: RadixIndex, tier: DiskTier | None, journal: Journal, *, needs_snapshot: bool
    ) -> None:
        self._index = index
        self._tier = tier
        self._journal = journal
        self._needs_snapshot = needs_snapshot
        self.files: dict[int, File] = {}
        self.reading: dict[int, File] = {}
        """Files with reads in flight, with memory reserved."""
        self.queued_bytes = 0
        """Bytes ever queued at the tier for writing."""

    # --- out of memory ---------------------------------------------------------------------

    def drop(self, victim: Victim) -> None:
        """Frees the memory at once. Entries without a copy on disk are lost."""
        node = victim.node
        if node.removed:
            return
        if victim.span and not node.on_disk:
            self.remove(node)
            return
        self._drop_snapshot(node)
        if victim.span:
            self._drop_span(node)

    def spill(self, victim: Victim) -> None:
        """Frees the memory once it is on disk; at once if it is there already, or if the tier
        rejects it and it is lost."""
        node = victim.node
        if node.removed:
            return
        if victim.span and not self.write_span(node):
            self.remove(node)
            return
        if not self.write_snapshot(node):
            self._drop_snapshot(node)
            if node.removed:
                return
        self._index.set_leaving(
            node,
            span=node.span is not None and (victim.span or node.span_leaving),
            snapshot=node.snapshot is not None,
        )
        self._let_go(node)

    def write_span(self, node: Node) -> bool:
        """Queues the spans of the node and of all above it that have no file. Returns False if the
        tier rejects one."""
        return all(self._write_span(each) for each in node.path() if each.file is None)

    def write_snapshot(self, node: Node) -> bool:
        """Queues the snapshot and the spans up to it; returns True if there is no snapshot."""
        if node.snapshot is None or node.snapshot_file is not None:
            return True
        if self._tier is None or not self.write_span(node):
            return False
        number = self._tier.write(
            EntryKind.SNAPSHOT, _point(node), _NO_TOKENS, node.snapshot.tensors()
        )
        if number is None:
            return False
        self.queued_bytes += node.snapshot.nbytes
        self.adopt_snapshot(node, number, node.snapshot.nbytes, written=False)
        return True

    def _write_span(self, node: Node) -> bool:
        if self._tier is None or node.span is None:
            return False
        assert node.parent is not None
        point = _point(node.parent)
        if node.parent.parent is None:
            point = 0, node.salt
        number = self._tier.write(EntryKind.SPAN, point, node.key, node.span.tensors())
        if number is None:
            return False
        self.queued_bytes += node.span.nbytes
        self.adopt_span(node, number, node.span.nbytes, written=False)
        self._journal.note(CacheEventKind.FILED, node)
        return True

    def adopt_span(self, node: Node, number: int, nbytes: int, *, written: bool) -> None:
        """Records the file of the node's span."""
        node.file = File(number, EntryKind.SPAN, len(node.key), nbytes, written, [node])
        node.file.name = _name(node)
        node.file_begin = 0
        self.files[number] = node.file

    def adopt_snapshot(self, node: Node, number: int, nbytes: int, *, written: bool) -> None:
        node.snapshot_file = File(number, EntryKind.SNAPSHOT, 0, nbytes, written, [node])
        self.files[number] = node.snapshot_file

    def _let_go(self, node: Node) -> None:
        """Drops parts that are marked as leaving and are on disk, here and above."""
        for each in (node, *node.ancestors()):
            if each.snapshot_leaving and each.snapshot_on_disk:
                self._index.detach_snapshot(each)
            if each.span_leaving and each.on_disk and each.resident_below == 0:
                self._drop_span(each)

    def _drop_span(self, node: Node) -> None:
        if node.span is not None:
            self._index.detach_span(node)
            self._journal.note(CacheEventKind.SPILLED, node)

    def _drop_snapshot(self, node: Node) -> None:
        if node.snapshot is not None:
            self._index.detach_snapshot(node)
            if node.snapshot_file is None:
                self._on_snapshot_lost(node)

    # --- out of the tree -------------------------------------------------------------------

    def remove(self, node: Node) -> None:
        """Removes a node and all below it, in memory and on disk."""
        for each in reversed(node.subtree()):
            for file in (each.snapshot_file, each.file):
                if file is not None:
                    self._disown(each, file)
            self._index.set_leaving(each, span=False, snapshot=False)
            self._index.detach_snapshot(each)
            self._index.detach_span(each)
            self._journal.note(CacheEventKind.EVICTED, each)
            self._index.unlink(each)
        self.prune(node.parent)

    def prune(self, node: Node | None) -> None:
        """Removes nodes that lead to no snapshot, if the model can be restored only at
        snapshots."""
        if node is None or node.parent is None or node.children or node.removed:
            return
        if not self._needs_snapshot or node.has_snapshot or node.protected:
            return
        # A file that other nodes need would bring the node back after a restart.
        if node.file is None or node.file.owners == [node]:
            self.remove(node)

    def _on_snapshot_lost(self, node: Node) -> None:
        self.prune(node)
        if not node.removed:
            self._journal.note_usable(node)

    def _disown(self, node: Node, file: File) -> None:
        file.owners.remove(node)
        if node.file is file:
            node.file = None
            node.awaited = False
        else:
            node.snapshot_file = None
        if not file.owners:
            self._forget(file.number)
            if self._tier is not None:
                self._tier.drop(file.number)

    # --- reports of the tier -------------------------------------------------------------------

    def on_written(self, number: int, nbytes: int) -> None:
        file = self.files.get(number)
        if file is None:
            return
        file.written = True
        file.nbytes = nbytes
        for node in list(file.owners):
            self._let_go(node)

    def on_lost(self, number: int) -> None:
        """Handles a file that was not written or is lost; the files that continue it are gone
        too."""
        file = self._forget(number)
        if file is None:
            return
        if file.kind == EntryKind.SNAPSHOT:
            node = file.owners.pop()
            node.snapshot_file = None
            if node.snapshot is None:
                self._on_snapshot_lost(node)
            elif node.snapshot_leaving:
                self._drop_snapshot(node)
            return
        self._on_span_lost(file)

    def delete(self, number: int) -> None:
        """Deletes a file that no node refers to."""
        if self._tier is not None:
            self._tier.drop(number)

    def _on_span_lost(self, file: File) -> None:
        top = min(file.owners, key=lambda node: node.begin)
        nodes = top.subtree()[::-1]
        lost_snapshots = {node for node in nodes if node.snapshot_file and not node.snapshot}
        for node in nodes:
            if node.snapshot_file is not None:
                self._disown(node, node.snapshot_file)
            if node.file is not None and node.file is not file:
                self._disown(node, node.file)
            node.file = None
            node.awaited = False
        file.owners.clear()
        for node in nodes:
            self._settle(node, lost_snapshot=node in lost_snapshots)

    def _settle(self, node: Node, *, lost_snapshot: bool) -> None:
        """Drops parts of the node that are lost with its files: those not in memory, and those
        marked as leaving."""
        if node.removed:
            return
        if node.span is None or (node.span_leaving and node.resident_below == 0):
            self.remove(node)
            return
        snapshot_leaving = node.snapshot_leaving
        self._index.set_leaving(node, span=False, snapshot=False)
        if snapshot_leaving:
            self._drop_snapshot(node)
        elif lost_snapshot:
            self._on_snapshot_lost(node)

    def _forget(self, number: int) -> File | None:
        self.reading.pop(number, None)
        return self.files.pop(number, None)

    def clear(self) -> None:
        """Drops all files; the caller drops the nodes."""
        self.files.clear()
        self.reading.clear()
        if self._tier is not None:
            self._tier.clear()


def _name(node: Node) -> int:
    """Returns the name for a new file with the node's whole span."""
    parent = node.parent
    assert parent is not None
    if parent.parent is None:
        before = 0, node.salt
    else:
        assert parent.file is not None
        before = parent.file.name, parent.file_begin + len(parent.key)
    digest = blake2b(struct.pack("<QQ", *before), digest_size=_NAME_BYTES)
    digest.update(node.key.tobytes())
    return int.from_bytes(digest.digest(), "little")


def _point(node: Node) -> tuple[int, int]:
    """Returns the end of a node as (file, tokens of its span)."""
    if node.file is None:
        return 0, 0
    return node.file.number, node.file_begin + len(node.key)
