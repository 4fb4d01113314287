"""The prefix cache of one model: finds the KV and snapshots of earlier prompts by their tokens."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from node.engine.cache.budget import MemoryBudget
from node.engine.cache.eviction import Appraisal, PrefillS
from node.engine.cache.index import File, Node, RadixIndex, Walk, files_of
from node.engine.cache.journal import Journal
from node.engine.cache.parts import (
    DiskReport,
    DiskTier,
    EntryKind,
    Lost,
    Read,
    Snapshot,
    Span,
    Tokens,
    WriteFailed,
    Written,
)
from node.engine.cache.promotion import Promoter, RebuildSnapshot, RebuildSpan
from node.engine.cache.reload import Reload
from node.engine.cache.spilling import Spiller
from node.ipc.messages import CacheEvent, CacheEventKind

logger = logging.getLogger(__name__)

EDGE_TOKENS = 8192
"""Longest edge: bounds the size of files and reads, and lets the end of a long prompt be evicted
alone."""

Capture = Callable[[int, int], Span]
"""Makes a span of the tokens begin..end of the prompt that is stored."""
NewSnapshot = tuple[int, Callable[[], Snapshot]]
"""Bytes of a snapshot, and the function that makes it."""


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """Properties of the model and its lease."""

    budget_bytes: int
    """Maximum of spans and snapshots in memory."""
    snapshot_bytes: int
    """Maximum of snapshots within it; 0 means half."""
    needs_snapshot: bool
    """True if the model has layers that can be restored only at a snapshot."""
    span_bytes_per_token: int
    """0 if no layer can be split at any token."""
    rebuild_span: RebuildSpan
    rebuild_snapshot: RebuildSnapshot
    prefill_s: PrefillS
    edge_tokens: int = EDGE_TOKENS


@dataclass(frozen=True, slots=True, eq=False)
class Hit:
    """The reusable prefix of a prompt. Valid until the cache changes, or until `release` if it is
    held."""

    tokens: int
    """Tokens usable now, from memory."""
    disk_tokens: int
    """Tokens usable after a promotion; at least `tokens`."""
    disk_bytes: int
    """Bytes to read for `disk_tokens`."""
    node: Node
    """Node in which `tokens` end."""
    disk_node: Node
    """Node in which `disk_tokens` end."""


class PrefixCache:
    """All methods are called on one thread and return at once. `clock` returns monotonic seconds.
    Prompts with different salts, as numbered by `salt_number`, share nothing."""

    def __init__(
        self, config: CacheConfig, tier: DiskTier | None, clock: Callable[[], float]
    ) -> None:
        self._config = config
        self._tier = tier
        self._clock = clock
        self._index = RadixIndex()
        self._journal = Journal(needs_snapshot=config.needs_snapshot)
        self._spiller = Spiller(
            self._index, tier, self._journal, needs_snapshot=config.needs_snapshot
        )
        self._promoter = Promoter(
            self._index, self._spiller, self._journal, config.rebuild_span, config.rebuild_snapshot
        )
        self._budget = MemoryBudget(
            self._index, self._spiller, self._promoter, tier, self._appraise
        )
        self._budget.set(config.budget_bytes, config.snapshot_bytes)
        self._storing = True
        if tier is not None:
            Reload(self._index, self._spiller, clock()).run(tier.entries(), tier, self._journal)

    @property
    def nbytes(self) -> int:
        """Bytes in memory, including reservations for reads in flight."""
        return self._index.nbytes + self._promoter.reserved_bytes

    @property
    def snapshot_nbytes(self) -> int:
        """Bytes of snapshots within `nbytes`."""
        return self._index.snapshot_bytes + self._promoter.reserved_snapshot_bytes

    @property
    def pinned_nbytes(self) -> int:
        """Bytes within `nbytes` that are never evicted."""
        return self._index.pinned_nbytes

    @property
    def disk_nbytes(self) -> int:
        return 0 if self._tier is None else self._tier.nbytes

    @property
    def entries(self) -> int:
        """Number of entries in memory or on disk."""
        return self._index.size

    @property
    def writing(self) -> bool:
        """True if memory will be freed once it is written to disk."""
        return self._index.leaving_bytes > 0

    # --- reuse -----------------------------------------------------------------------------

    def match(self, tokens: Tokens, limit_tokens: int, salt: int = 0) -> Hit:
        """Returns the longest usable prefix of at most `limit_tokens`. Changes nothing."""
        walk = self._index.walk(tokens[: max(limit_tokens, 0)], salt)
        node = disk_node = self._index.root
        hit_tokens = disk_tokens = disk_bytes = 0
        files: dict[File, int] = {}
        for each in walk.path:
            if each.span is None:
                if each.file is None or not each.on_disk:
                    break
                files[each.file] = each.file.nbytes
            end = min(each.end, walk.shared)
            snapshot_bytes = self._snapshot_bytes_to_read(each, end)
            if snapshot_bytes is None:
                continue
            disk_node, disk_tokens = each, end
            disk_bytes = sum(files.values()) + snapshot_bytes
            if disk_bytes == 0 and not files:
                node, hit_tokens = each, end
        return Hit(hit_tokens, disk_tokens, disk_bytes, node, disk_node)

    def _snapshot_bytes_to_read(self, node: Node, end: int) -> int | None:
        """Returns the bytes to read to continue after `end` tokens; None if that is impossible."""
        if not self._config.needs_snapshot:
            return 0
        if end < node.end:
            return None
        if node.snapshot is not None:
            return 0
        file = node.snapshot_file
        return file.nbytes if file is not None and file.written else None

    def take(self, hit: Hit) -> tuple[list[tuple[Span, int, int]], Snapshot | None]:
        """Returns the spans that restore the first `hit.tokens` tokens, in order, each with the
        range of its tokens to use, and the snapshot at their end if the model needs one. Counts as
        a use.

        Raises `LookupError` if part of it has been dropped from memory since the match.
        """
        path = [node for node in hit.node.path() if node.begin < hit.tokens]
        spans: list[tuple[Span, int, int]] = []
        for node in path:
            if node.span is None or node.removed:
                raise LookupError("the hit is no longer in memory")
            spans.append((node.span, 0, min(node.end, hit.tokens) - node.begin))
        if not path:
            return [], None
        snapshot = path[-1].snapshot if self._config.needs_snapshot else None
        if self._config.needs_snapshot and snapshot is None:
            raise LookupError("the snapshot of the hit is no longer in memory")
        self._mark_used(path, at_snapshot=snapshot is not None)
        return spans, snapshot

    def hold(self, hit: Hit) -> None:
        """Protects the entries of the hit from eviction until `release`."""
        self._index.hold(hit.disk_node)

    def release(self, hit: Hit) -> None:
        self._index.release(hit.disk_node)

    def promote(self, hit: Hit) -> bool:
        """Starts to read the missing entries for `hit.disk_tokens`. Returns False if memory has no
        room for them, or one is no longer on disk. Match again when `promoting` ends: a file may
        prove to be lost."""
        node = hit.disk_node.holder_of(hit.disk_tokens)
        files = self._promoter.missing(node, with_snapshot=self._with_snapshot(hit))
        if files is None or node.removed:
            return False
        if not files or self._tier is None:
            return True
        if not self._make_room_for(node, files):
            return False
        if node.end > hit.disk_tokens and node.span is None:
            node = self._split(node, hit.disk_tokens - node.begin)
        self._promoter.start(node, files, self._tier)
        return True

    def promoting(self, hit: Hit) -> bool:
        """Returns True while reads for the hit are in flight."""
        if hit.disk_node.removed:
            return False
        node = hit.disk_node.holder_of(hit.disk_tokens)
        files = self._promoter.missing(node, with_snapshot=self._with_snapshot(hit))
        return files is not None and any(file.reserved_bytes > 0 for file in files)

    # --- storing ---------------------------------------------------------------------------

    def store(
        self,
        tokens: Tokens,
        capture: Capture,
        snapshot: NewSnapshot | None,
        uid: str,
        salt: int = 0,
    ) -> int:
        """Stores the KV of all `tokens`, and the snapshot at their end, as far as they are not in
        memory. Returns how many of the tokens are in memory: fewer than all if there is no room,
        and then nothing was stored."""
        walk = self._index.walk(tokens, salt)
        if self._storing and len(tokens) > 0:
            if walk.ends_at_snapshot(len(tokens)):
                snapshot = None
            if self._make_room_to_store(walk, len(tokens), snapshot):
                self._store(walk, tokens, capture, snapshot, uid, salt)
                self._budget.fit()
                self._budget.spill_ahead()
                walk = self._index.walk(tokens, salt)
        return walk.covered

    def pin(self, tokens: Tokens, salt: int = 0) -> int:
        """Protects the entries of the tokens from eviction until `clear`, if all of them are in
        memory. Returns how many are."""
        walk = self._index.walk(tokens, salt)
        if walk.covered < len(tokens):
            return walk.covered
        if walk.diverging is not None:
            # The rest of the edge stays evictable.
            self._split(walk.diverging, walk.shared - walk.diverging.begin)
            walk = self._index.walk(tokens, salt)
        for node in walk.path:
            node.pinned = True
            self._index.leave(node, span=False, snapshot=False)
        return walk.covered

    def set_storing(self, *, storing: bool) -> None:
        """While `storing` is False, `store` stores nothing new."""
        self._storing = storing

    # --- room ------------------------------------------------------------------------------

    def set_lease(self, budget_bytes: int, snapshot_bytes: int, slack_bytes: int = 0) -> None:
        """Evicts entries beyond the lease at once; with a disk tier they may stay in `nbytes` until
        they are written, up to `slack_bytes` beside the budget. 0 snapshot bytes mean half of
        it."""
        self._budget.set(budget_bytes, snapshot_bytes, slack_bytes)
        self._budget.fit()

    def poll(self) -> bool:
        """Processes the disk tier's reports; returns True if there were any."""
        reports = [] if self._tier is None else self._tier.poll()
        for report in reports:
            self._on_report(report)
        # Entries that were to be dropped may have been used again, and stayed.
        self._budget.fit()
        if reports:
            self._budget.spill_ahead()
        return bool(reports)

    def flush(self) -> int:
        """Writes entries that are in memory only to disk at shutdown, the most valuable first.
        Returns the number of bytes queued; call it again, after the tier wrote them, until it
        returns 0."""
        return self._budget.flush()

    def clear(self) -> None:
        """Drops everything in memory and on disk, pinned entries included."""
        for node in reversed(self._index.root.subtree()[1:]):
            self._journal.note(CacheEventKind.EVICTED, node)
            node.removed = True
            # Nodes refer to each other: do not leave their memory to the garbage collector.
            node.span = node.snapshot = None
        self._index.reset()
        self._spiller.clear()

    def events(self) -> list[CacheEvent]:
        """Returns the changes since the last call, oldest first."""
        return self._journal.drain()

    # --- inside ----------------------------------------------------------------------------

    def _appraise(self) -> Appraisal:
        return Appraisal(
            self._config.prefill_s, self._clock(), needs_snapshot=self._config.needs_snapshot
        )

    def _with_snapshot(self, hit: Hit) -> bool:
        return self._config.needs_snapshot and hit.disk_tokens > 0

    def _make_room_for(self, node: Node, files: list[File]) -> bool:
        new = [file for file in files if file.reserved_bytes == 0]
        # A snapshot that is in memory already must stay as well.
        self._index.hold(node)
        fits = self._budget.make_room(
            sum(file.nbytes for file in new),
            sum(file.nbytes for file in new if file.kind == EntryKind.SNAPSHOT),
            node,
        )
        self._index.release(node)
        return fits

    def _make_room_to_store(self, walk: Walk, length: int, snapshot: NewSnapshot | None) -> bool:
        missing_tokens = (
            length
            - walk.shared
            + sum(min(node.end, length) - node.begin for node in walk.path if node.span is None)
        )
        snapshot_bytes = 0 if snapshot is None else snapshot[0]
        span_bytes = missing_tokens * self._config.span_bytes_per_token
        deepest = walk.path[-1] if walk.path else self._index.root
        return self._budget.make_room(span_bytes + snapshot_bytes, snapshot_bytes, deepest)

    def _store(
        self,
        walk: Walk,
        tokens: Tokens,
        capture: Capture,
        snapshot: NewSnapshot | None,
        uid: str,
        salt: int,
    ) -> None:
        path = list(walk.path)
        if walk.diverging is not None and self._must_split(walk, len(tokens), snapshot):
            path[-1] = self._split(walk.diverging, walk.shared - walk.diverging.begin)
        new = [node for node in path if node.span is None]
        for node in new:
            self._index.attach_span(node, capture(node.begin, min(node.end, len(tokens))))
        edge_tokens = self._config.edge_tokens
        for begin in range(walk.shared, len(tokens), edge_tokens):
            end = min(begin + edge_tokens, len(tokens))
            span = capture(begin, end)
            parent = path[-1] if path else self._index.root
            node = self._index.add(parent, tokens[begin:end], self._clock(), salt)
            self._index.attach_span(node, span)
            path.append(node)
            new.append(node)
        self._mark_used(path, at_snapshot=snapshot is not None)
        had_snapshot = path[-1].has_snapshot
        if snapshot is not None:
            self._index.attach_snapshot(path[-1], snapshot[1]())
        for node in new:
            self._journal.note(CacheEventKind.STORED, node, uid)
        if snapshot is not None and not had_snapshot and (path[-1].children or not new):
            self._journal.note_usable(path[-1], uid)

    def _must_split(self, walk: Walk, length: int, snapshot: NewSnapshot | None) -> bool:
        assert walk.diverging is not None
        return walk.shared < length or snapshot is not None or walk.diverging.span is None

    def _split(self, node: Node, at_tokens: int) -> Node:
        upper = self._index.split(node, at_tokens)
        self._journal.note(CacheEventKind.SPLIT, node)
        return upper

    def _mark_used(self, path: list[Node], *, at_snapshot: bool) -> None:
        now_s = self._clock()
        for node in path:
            node.used_s = now_s
            self._index.leave(node, span=False, snapshot=False)
        if at_snapshot:
            path[-1].snapshot_used_s = now_s
        if self._tier is not None:
            self._tier.touch(files_of(path))

    def _on_report(self, report: DiskReport) -> None:
        if isinstance(report, Written):
            self._spiller.on_written(report.file, report.nbytes)
        elif isinstance(report, WriteFailed | Lost):
            self._spiller.on_gone(report.file)
        else:
            self._on_read(report)

    def _on_read(self, read: Read) -> None:
        try:
            self._promoter.on_read(read.file, read.tensors)
        except ValueError as error:
            # The checksum is right but the contents are not.
            logger.warning("File %d of the disk cache is dropped: %s.", read.file, error)
            self._spiller.on_gone(read.file)
            self._spiller.delete(read.file)
