"""Restores rows from the prefix cache and stores their KV in it."""

import time
from typing import Any, cast

import numpy as np

from node.engine.cache.config import CacheConfig
from node.engine.cache.lookup import Hit
from node.engine.cache.parts import DiskTier
from node.engine.cache.prefix_cache import PrefixCache
from node.engine.decoding.batches import RowView
from node.engine.decoding.chunking import SHARED_TOKENS, choose_checkpoints
from node.engine.decoding.rates import Rates
from node.engine.decoding.row import Row
from node.engine.kv.cache_layout import CacheLayout
from node.engine.kv.spans import KvSpan, LayerSnapshot
from node.engine.stored_cap import StoredCap, StoredKv
from node.ipc.messages import CacheEvent, EngineSpec, Pressure

MAX_SNAPSHOTS = 8
"""Most snapshots of one prompt."""
SNAPSHOT_SHARE = 0.25
"""Share of the snapshots' budget that the snapshots of one prompt may take."""
READING_S = 0.01
"""Seconds between polls of an idle engine for KV that is read from disk for a row."""
WRITING_S = 0.1
"""Seconds between polls of an idle engine for memory that is freed once it is written to disk."""
CLEAR_S = 10.0
"""Seconds that the deletion of all files may take before the engine goes on."""
MIN_PARTIAL_TOKENS = 256
"""Least number of tokens that an abandoned prefill must have computed for its KV to be stored."""


class PrefixReuse:
    """The prefix cache as the engine uses it. All calls come from the engine's thread."""

    def __init__(
        self, layout: CacheLayout, spec: EngineSpec, rates: Rates, tier: DiskTier | None
    ) -> None:
        self._layout = layout
        self._rates = rates
        self.tier = tier
        self._stored_bytes = self._leased_bytes = spec.lease.stored_kv_bytes
        self._slack_bytes = 0
        self._snapshot_bytes = spec.snapshot_bytes
        self._pressure = Pressure.NONE
        self._cap = StoredCap()
        self.cap_bytes: int | None = None
        """The cap on stored KV because memory is or was short; None while only the lease limits
        it."""
        self._promotions: dict[Row, Hit] = {}
        self._polled_s = 0.0
        self.cached_tokens = 0
        """Number of prompt tokens reused since the load."""
        self.pinned_bytes = 0
        """Bytes of stored KV that is never evicted."""
        self.cache = PrefixCache(
            CacheConfig(
                budget_bytes=self._stored_bytes,
                snapshot_bytes=self._snapshot_bytes,
                needs_snapshot=layout.needs_snapshot,
                span_bytes_per_token=layout.span_bytes_per_token,
                rebuild_span=layout.rebuild_span,
                rebuild_snapshot=layout.rebuild_snapshot,
                prefill_s=rates.prefill_s,
            ),
            tier,
            time.monotonic,
        )

    # --- from the cache to rows --------------------------------------------------------------

    def usable_tokens(self, row: Row) -> int:
        """Returns how many of the tokens to prefill are cached in memory."""
        return self.cache.match(row.tokens, row.prefill_tokens, row.salt).tokens

    def is_fetching(self, row: Row) -> bool:
        """True if KV of the row is being read from disk. KV that has been read is protected from
        eviction until the row is prefilled."""
        hit = self._promotions.get(row)
        return hit is not None and self.cache.promoting(hit)

    def fetchable(self, row: Row) -> Hit | None:
        """Returns the row's KV on disk if reading it is quicker than prefilling again; otherwise
        None."""
        if self.tier is None or not self._is_storing or row in self._promotions:
            return None
        hit = self.cache.match(row.tokens, row.prefill_tokens, row.salt)
        read_s = hit.disk_bytes / self.tier.read_bytes_per_s
        recompute_s = self._rates.prefill_s(hit.tokens, hit.disk_tokens)
        return hit if hit.disk_tokens > hit.tokens and read_s < recompute_s else None

    def fetch(self, row: Row, hit: Hit) -> bool:
        """Starts reading KV from disk. Returns False if there is no room for it in memory."""
        self._note_session(row, hit.disk_tokens)
        self.cache.hold(hit)
        if not self.cache.promote(hit):
            self.cache.release(hit)
            return False
        self._promotions[row] = hit
        return True

    def restore(self, row: Row) -> list[Any]:
        """Returns caches for the row, filled with the part of its prompt that is in memory. Sets
        the row's `done_tokens` and `checkpoints`."""
        hit = self.cache.match(row.tokens, row.prefill_tokens, row.salt)
        if hit.tokens:
            pieces, snapshot = self.cache.use(hit)
            # The cache has only spans that this layout captured or rebuilt.
            spans = cast(list[tuple[KvSpan, int, int]], pieces)
            caches = self._layout.restore(
                spans, cast(LayerSnapshot | None, snapshot), hit.tokens, len(row.tokens)
            )
        else:
            caches = self._layout.new_caches()
        row.done_tokens = hit.tokens
        if row.tally.prefill_began_s is None:
            row.tally.cached_tokens = hit.tokens
            self.cached_tokens += hit.tokens
        row.checkpoints = self._checkpoints(row)
        return caches

    def release(self, row: Row) -> None:
        """Releases KV that was read from disk for the row, which no longer waits."""
        hit = self._promotions.pop(row, None)
        if hit is not None:
            self.cache.release(hit)

    def _checkpoints(self, row: Row) -> tuple[int, ...]:
        if not self._layout.needs_snapshot or not self.can_store(0):
            return ()
        budget = SNAPSHOT_SHARE * (self._snapshot_bytes or self._stored_bytes // 2)
        most = min(MAX_SNAPSHOTS, int(budget // max(1, self._layout.snapshot_bytes)))
        end = min(row.reusable_prompt_tokens, row.prefill_tokens)
        boundaries = row.request.boundaries
        if row.request.warm:
            # The whole prompt is pinned, so its end needs a snapshot.
            boundaries = (*(at for at in boundaries if at < end), end)
        return choose_checkpoints(boundaries, row.done_tokens, end, max(1, most))

    # --- from rows to the cache --------------------------------------------------------------

    def can_store(self, tokens: int) -> bool:
        """True if KV of so many tokens could be stored at all."""
        needed = tokens * self._layout.span_bytes_per_token
        if self._layout.needs_snapshot:
            needed += self._layout.snapshot_bytes
        return self._is_storing and needed <= self._stored_bytes

    def store_prompt(self, row: Row, view: RowView) -> None:
        """Stores the prefilled part of the prompt, as far as later prompts can reuse it. With
        snapshots it does so only at a checkpoint."""
        length = min(view.length, row.reusable_prompt_tokens)
        is_at_checkpoint = length == view.length and length in row.checkpoints
        if is_at_checkpoint or not self._layout.needs_snapshot:
            self._store(row, length, view)

    def store_partial(self, row: Row, view: RowView) -> None:
        """Stores the prompt of an abandoned prefill up to the end of its last chunk, which need not
        be a checkpoint."""
        if view.length - row.tally.cached_tokens < MIN_PARTIAL_TOKENS:
            return
        length = min(view.length, row.reusable_prompt_tokens)
        # A snapshot is the state after all tokens in the cache, so it cannot be of fewer.
        if length == view.length or not self._layout.needs_snapshot:
            self._store(row, length, view)

    def store_output(self, row: Row, view: RowView) -> None:
        """Stores prompt and output if the next turn's prompt can begin with them."""
        dropped = row.request.dropped_output
        is_dropped = bool(dropped) and tuple(row.output[: len(dropped)]) == dropped
        if row.request.reusable_tokens is None and not is_dropped:
            self._store(row, view.length, view)

    def pin(self, row: Row) -> bool:
        """Pins the prompt's KV. Returns False if not all of it is in memory."""
        tokens = row.tokens[: min(row.prefill_tokens, row.reusable_prompt_tokens)]
        if self.cache.match(tokens, len(tokens), row.salt).tokens < len(tokens):
            return False
        self.cache.pin(tokens, row.salt)
        self.pinned_bytes = self.cache.pinned_nbytes
        return True

    def _store(self, row: Row, length: int, view: RowView) -> None:
        if not length or not self._is_storing:
            return
        self._note_session(row, length)
        snapshot = None
        if self._layout.needs_snapshot:
            snapshot = (self._layout.snapshot_bytes, view.snapshot)
        self.cache.store(row.tokens_until(length), view.capture, snapshot, row.uid, row.salt)

    # --- memory ------------------------------------------------------------------------------

    def set_stored_bytes(self, stored_bytes: int) -> None:
        """Sets the limit on stored KV while memory is not short. Evicts KV beyond it at once."""
        self._leased_bytes = stored_bytes
        self._apply_limits()

    def set_pressure(self, level: Pressure) -> None:
        """Sets the level of memory pressure. Evicts KV beyond the resulting cap at once."""
        self._pressure = level
        self.cache.set_storing(storing=self._is_storing)
        self._apply_limits()

    @property
    def _is_storing(self) -> bool:
        return self._pressure is not Pressure.HARD

    def _apply_limits(self) -> None:
        """Limits the cache to the lease or to the cap, whichever is smaller."""
        if self._cap.is_unlimited and self._pressure is Pressure.NONE:
            self.cap_bytes = None
        else:
            stored = StoredKv(self.cache.nbytes, self.pinned_bytes, self._leased_bytes)
            self.cap_bytes = self._cap.update(self._pressure, stored, time.monotonic())
        stored_bytes = self._leased_bytes if self.cap_bytes is None else self.cap_bytes
        # KV beyond the cap may stay in memory, within the lease, while it is written to disk.
        slack_bytes = self._leased_bytes - stored_bytes
        if (stored_bytes, slack_bytes) != (self._stored_bytes, self._slack_bytes):
            self._stored_bytes, self._slack_bytes = stored_bytes, slack_bytes
            self.cache.set_lease(stored_bytes, self._snapshot_bytes, slack_bytes)

    def _note_session(self, row: Row, length: int) -> None:
        """Records a session of so many tokens, for which the cap leaves room."""
        nbytes = length * self._layout.span_bytes_per_token
        if self._layout.needs_snapshot:
            nbytes += self._layout.snapshot_bytes
        self._cap.note_session(row.uid, nbytes)
        if not self._cap.is_unlimited:
            self._apply_limits()

    def wait_s(self) -> float | None:
        """Returns the seconds until the next poll of the disk or the next change of the cap; None
        if neither is due."""
        disk_s, due_s = self._disk_wait_s(), self._cap.due_s()
        if due_s is None:
            return disk_s
        cap_s = max(0.0, due_s - time.monotonic())
        return cap_s if disk_s is None else min(cap_s, disk_s)

    def _disk_wait_s(self) -> float | None:
        reading = any(self.cache.promoting(hit) for hit in self._promotions.values())
        if not reading and not self.cache.writing:
            return None
        every_s = READING_S if reading else WRITING_S
        return max(0.0, self._polled_s + every_s - time.monotonic())

    def poll(self) -> None:
        """Processes finished reads and writes of the disk tier."""
        self._polled_s = time.monotonic()
        self.cache.poll()

    def events(self) -> tuple[CacheEvent, ...]:
        return tuple(self.cache.events())

    def clear(self) -> None:
        """Deletes all stored KV, in memory and on disk."""
        for hit in self._promotions.values():
            self.cache.release(hit)
        self._promotions.clear()
        self.cache.clear()
        self.pinned_bytes = 0
        if self.tier is not None:
            self.tier.flush(CLEAR_S)

    def close(self, timeout_s: float) -> None:
        """Writes entries that are worth it to disk for up to `timeout_s` seconds, then closes the
        tier."""
        if self.tier is None:
            return
        until_s = time.monotonic() + timeout_s
        while self.cache.flush() and time.monotonic() < until_s:
            self.tier.flush(max(0.0, until_s - time.monotonic()))
            self.cache.poll()
        self.tier.close()


def shared_prefix_tokens(row: Row, other: Row) -> int:
    """Returns how many tokens of prefix the row shares with another one that is being prefilled;
    0 if fewer than `SHARED_TOKENS`."""
    if row.request.salt != other.request.salt:
        return 0
    known = row.shared_prefixes.get(other)
    if known is None:
        most = min(row.prefill_tokens, other.prefill_tokens, other.reusable_prompt_tokens)
        differ = row.tokens[:most] != other.tokens[:most]
        at = int(np.argmax(differ)) if differ.any() else most
        known = row.shared_prefixes[other] = at if at >= SHARED_TOKENS else 0
    return known
