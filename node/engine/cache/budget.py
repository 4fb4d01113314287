"""Keeps the cache within its bytes: decides when entries are evicted and which are written ahead of
that."""

from collections.abc import Callable

from node.engine.cache.eviction import EvictionPlan, EvictionScores, Victim
from node.engine.cache.index import Node, RadixIndex
from node.engine.cache.parts import DiskTier
from node.engine.cache.promotion import Promoter
from node.engine.cache.spilling import Spiller
from node.engine.cache.value import worth_reading

LOOSE_SHARE = 0.25
"""Share of the budget that may be in memory without a copy on disk. Beyond it the least valuable
entries are written ahead of their eviction, since memory that is being written cannot be freed when
a new entry needs it."""


MANY_ENTRIES = 256
"""Number of entries from which a plan is so slow that each one frees more than requested."""
SPARE_SHARE = 1 / 64
"""Share of the budget that it frees in addition."""


class CacheBudget:
    """The lease of the cache, and its enforcement."""

    def __init__(
        self,
        index: RadixIndex,
        spiller: Spiller,
        promoter: Promoter,
        tier: DiskTier | None,
        appraise: Callable[[], EvictionScores],
    ) -> None:
        self._index = index
        self._spiller = spiller
        self._promoter = promoter
        self._tier = tier
        self._appraise = appraise
        self._bytes = 0
        self._snapshot_bytes = 0
        self._slack_bytes = 0

    def set(self, budget_bytes: int, snapshot_bytes: int, slack_bytes: int = 0) -> None:
        """Sets the lease; 0 snapshot bytes mean half of it. Entries that are being written may
        exceed it by up to `slack_bytes`. Evicts nothing yet."""
        self._slack_bytes = slack_bytes
        self._bytes = budget_bytes
        self._snapshot_bytes = snapshot_bytes or budget_bytes // 2

    def make_room(self, nbytes: int, snapshot_bytes: int, keep: Node) -> bool:
        """Frees memory at once for `nbytes`, of which `snapshot_bytes` are for a snapshot; the new
        entry will continue `keep`. Returns False, and evicts nothing, if that much cannot be freed
        at once."""
        over, over_snapshots = self._over(nbytes, snapshot_bytes)
        over -= min(self._index.leaving_bytes, self._slack_bytes)
        over_snapshots -= min(self._index.leaving_snapshot_bytes, self._slack_bytes)
        if over <= 0 and over_snapshots <= 0:
            return True
        if nbytes > self._bytes or snapshot_bytes > self._snapshot_bytes:
            return False
        plan = EvictionPlan(self._index, self._appraise(), at_once=True, keep=keep)
        if not (plan.free_snapshots(over_snapshots) and plan.free(over)):
            return False
        if len(self._index.resident) >= MANY_ENTRIES:
            plan.free_snapshots(over_snapshots + int(self._snapshot_bytes * SPARE_SHARE))
            plan.free(over + int(self._bytes * SPARE_SHARE))
        self._index.hold(keep)
        for victim in plan.victims:
            self._spiller.drop(victim)
        self._index.release(keep)
        return True

    def fit(self) -> None:
        """Evicts entries beyond the lease, through the disk tier."""
        over, over_snapshots = self._over(0, 0)
        over -= self._index.leaving_bytes
        over_snapshots -= self._index.leaving_snapshot_bytes
        if over > 0 or over_snapshots > 0:
            self._shed(over, over_snapshots)

    def spill_ahead(self) -> None:
        """Writes the least valuable entries that are in memory only, if they exceed
        `LOOSE_SHARE`."""
        if self._tier is None:
            return
        _, loose_snapshots = self._loose()
        excess_snapshots = loose_snapshots - int(self._snapshot_bytes * LOOSE_SHARE)
        if excess_snapshots > 0:
            self._write_ahead(excess_snapshots, snapshots=True)
        loose, _ = self._loose()
        excess = loose - int(self._bytes * LOOSE_SHARE)
        if excess > 0:
            self._write_ahead(excess, snapshots=False)

    def _write_ahead(self, nbytes: int, *, snapshots: bool) -> None:
        plan = EvictionPlan(self._index, self._appraise(), at_once=False)
        end = self._spiller.queued_bytes + nbytes
        while self._spiller.queued_bytes < end:
            victim = plan.pick_snapshot() if snapshots else plan.pick()
            if victim is None or not self._write(victim):
                return

    def flush(self) -> int:
        """Writes entries that are in memory only and worth it, the most valuable first, until the
        tier rejects one. Returns the number of bytes queued."""
        before = self._spiller.queued_bytes
        scores = self._appraise()
        nodes = sorted(
            self._index.resident,
            key=lambda node: scores.value(node, node.span_bytes + node.snapshot_bytes),
            reverse=True,
        )
        for node in nodes:
            if self._tier is not None and not self._write(Victim(node, span=True)):
                break
        return self._spiller.queued_bytes - before

    def _over(self, nbytes: int, snapshot_bytes: int) -> tuple[int, int]:
        """Returns the bytes beyond the lease if so many more were added: in total, and of
        snapshots."""
        index, promoter = self._index, self._promoter
        return (
            index.nbytes + promoter.reserved_bytes + nbytes - self._bytes,
            index.snapshot_bytes
            + promoter.reserved_snapshot_bytes
            + snapshot_bytes
            - self._snapshot_bytes,
        )

    def _shed(self, nbytes: int, snapshot_bytes: int) -> None:
        plan = EvictionPlan(self._index, self._appraise(), at_once=False)
        plan.free_snapshots(snapshot_bytes)
        plan.free(nbytes)
        for victim in plan.victims:
            if self._is_worth_a_file(victim):
                self._spiller.spill(victim)
            else:
                self._spiller.drop(victim)

    def _loose(self) -> tuple[int, int]:
        """Returns the bytes in memory that are neither on disk nor being written: in total, and of
        snapshots."""
        snapshots = sum(n.snapshot_bytes for n in self._index.resident if not n.snapshot_file)
        spans = sum(n.span_bytes for n in self._index.resident if not n.file)
        return spans + snapshots, snapshots

    def _write(self, victim: Victim) -> bool:
        """Returns False if the tier rejects it."""
        if not self._is_worth_a_file(victim):
            return True
        node = victim.node
        return (not victim.span or self._spiller.write_span(node)) and (
            self._spiller.write_snapshot(node)
        )

    def _is_worth_a_file(self, victim: Victim) -> bool:
        """Also True for entries with a file: memory that is being written cannot be dropped."""
        node = victim.node
        if (node.file if victim.span else node.snapshot_file) is not None:
            return True
        if self._tier is None:
            return False
        scores = self._appraise()
        recompute_s = scores.recompute_s(node) if victim.span else scores.snapshot_recompute_s(node)
        nbytes = node.snapshot_bytes + (node.span_bytes if victim.span else 0)
        return worth_reading(recompute_s, nbytes, self._tier.read_bytes_per_s)
