"""The prefix cache of one model: finds the KV and snapshots of earlier prompts by their tokens."""

from collections.abc import Callable

from node.engine.cache.budget import CacheBudget
from node.engine.cache.config import CacheConfig
from node.engine.cache.entry_writer import Capture, EntryWriter, NewSnapshot
from node.engine.cache.eviction import EvictionScores
from node.engine.cache.index import File, Node, RadixIndex
from node.engine.cache.journal import Journal
from node.engine.cache.lookup import Hit, longest_hit
from node.engine.cache.parts import (
    DiskReport,
    DiskTier,
    EntryKind,
    FileLost,
    FileWriteFailed,
    FileWritten,
    Snapshot,
    Span,
    Tokens,
)
from node.engine.cache.promotion import Promoter
from node.engine.cache.recency import Recency
from node.engine.cache.reload import Reload
from node.engine.cache.spilling import Spiller
from node.ipc.messages import CacheEvent, CacheEventKind


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
        self._budget = CacheBudget(self._index, self._spiller, self._promoter, tier, self._appraise)
        self._recency = Recency(self._index, tier, clock)
        self._writer = EntryWriter(self._index, self._budget, self._journal, self._recency, config)
        self._budget.set(config.budget_bytes, config.snapshot_bytes)
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
        return longest_hit(walk, self._index.root, needs_snapshot=self._config.needs_snapshot)

    def use(self, hit: Hit) -> tuple[list[tuple[Span, int, int]], Snapshot | None]:
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
        self._recency.mark_used(path, at_snapshot=snapshot is not None)
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
            node = self._writer.split(node, hit.disk_tokens - node.begin)
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
        return self._writer.store(tokens, capture, snapshot, uid, salt)

    def pin(self, tokens: Tokens, salt: int = 0) -> int:
        """Protects the entries of the tokens from eviction until `clear`, if all of them are in
        memory. Returns how many are."""
        return self._writer.pin(tokens, salt)

    def set_storing(self, *, storing: bool) -> None:
        """While `storing` is False, `store` stores nothing new."""
        self._writer.set_storing(storing=storing)

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

    def _appraise(self) -> EvictionScores:
        return EvictionScores(
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

    def _on_report(self, report: DiskReport) -> None:
        if isinstance(report, FileWritten):
            self._spiller.on_written(report.file, report.nbytes)
        elif isinstance(report, FileWriteFailed | FileLost):
            self._spiller.on_lost(report.file)
        else:
            self._promoter.on_read(report.file, report.tensors)
