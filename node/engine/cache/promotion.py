"""Promotes entries: reads them from disk back into memory."""

import logging
from collections.abc import Callable

from node.engine.cache.index import File, Node, RadixIndex
from node.engine.cache.journal import Journal
from node.engine.cache.parts import DiskTier, EntryKind, Snapshot, Span, Tensors
from node.engine.cache.spilling import Spiller
from node.ipc.messages import CacheEventKind

logger = logging.getLogger(__name__)

RebuildSpan = Callable[[Tensors], Span]
RebuildSnapshot = Callable[[Tensors], Snapshot]


class Promoter:
    """Starts reads, and attaches their results to the nodes that need them."""

    def __init__(
        self,
        index: RadixIndex,
        spiller: Spiller,
        journal: Journal,
        rebuild_span: RebuildSpan,
        rebuild_snapshot: RebuildSnapshot,
    ) -> None:
        self._index = index
        self._spiller = spiller
        self._journal = journal
        self._rebuild_span = rebuild_span
        self._rebuild_snapshot = rebuild_snapshot

    @property
    def reserved_bytes(self) -> int:
        """Memory reserved for reads in flight: whole files, even if only a part of a file's span is
        needed."""
        return sum(file.reserved_bytes for file in self._spiller.reading.values())

    @property
    def reserved_snapshot_bytes(self) -> int:
        return sum(
            file.reserved_bytes
            for file in self._spiller.reading.values()
            if file.kind == EntryKind.SNAPSHOT
        )

    def missing(self, node: Node, *, with_snapshot: bool) -> list[File] | None:
        """Returns the files to read until the path down to this node is in memory, including reads
        in flight; None if one cannot be read."""
        files: dict[File, None] = {}
        for each in node.path():
            if each.span is None:
                if each.file is None or not each.on_disk:
                    return None
                files[each.file] = None
        if with_snapshot and node.snapshot is None:
            if node.snapshot_file is None or not node.snapshot_on_disk:
                return None
            files[node.snapshot_file] = None
        return list(files)

    def start(self, node: Node, files: list[File], tier: DiskTier) -> None:
        """Reads the files that `missing` returned."""
        for each in node.path():
            each.awaited = each.awaited or each.span is None
        for file in files:
            if file.number not in self._spiller.reading:
                file.reserved_bytes = file.nbytes
                self._spiller.reading[file.number] = file
                tier.read(file.number)

    def on_read(self, number: int, tensors: Tensors) -> None:
        """Ends the reservation: the nodes own the memory from here on."""
        file = self._spiller.reading.pop(number, None)
        if file is None:
            return
        file.reserved_bytes = 0
        try:
            self._attach(file, tensors)
        except ValueError as error:
            # The checksum is right but the contents are not.
            logger.warning("File %d of the disk cache is dropped: %s.", number, error)
            self._spiller.on_lost(number)
            self._spiller.delete(number)

    def _attach(self, file: File, tensors: Tensors) -> None:
        """Raises `ValueError` if the contents are invalid."""
        if file.kind == EntryKind.SPAN:
            self._give_span(file, self._rebuild_span(tensors))
        elif file.owners[0].snapshot is None:
            self._index.attach_snapshot(file.owners[0], self._rebuild_snapshot(tensors))

    def _give_span(self, file: File, span: Span) -> None:
        """Raises `ValueError` if the number of tokens differs from the one written."""
        if span.tokens != file.tokens:
            raise ValueError(f"file {file.number} holds {span.tokens} of {file.tokens} tokens")
        rest, at_tokens = span, 0
        for node in sorted(file.owners, key=lambda owner: owner.begin):
            is_awaited, node.awaited = node.awaited and node.span is None, False
            if not is_awaited:
                continue
            if node.file_begin > at_tokens:
                _, rest = rest.split(node.file_begin - at_tokens)
            part, at_tokens = rest, node.file_begin + len(node.key)
            if at_tokens < file.tokens:
                part, rest = rest.split(len(node.key))
            self._index.attach_span(node, part)
            self._journal.note(CacheEventKind.PROMOTED, node)
