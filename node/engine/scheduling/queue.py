"""The queue of rows that wait for prefill, and the order in which they leave it."""

import time
from collections.abc import Sequence

from node.engine.decoding.batches import PrefillGroup
from node.engine.decoding.chunking import SHARED_TOKENS, may_group, urgency_s
from node.engine.decoding.rates import Rates
from node.engine.decoding.row import Row
from node.engine.scheduling.prefix_reuse import PrefixReuse, shared_prefix_tokens

MAX_FETCHES = 2
"""Most rows for which KV is read from disk at the same time."""


class RowQueue:
    """Waiting rows in the order of arrival."""

    def __init__(self, reuse: PrefixReuse, rates: Rates) -> None:
        self._reuse = reuse
        self._rates = rates
        self._rows: dict[Row, None] = {}
        self._waiter_urgency_s: dict[Row, float] = {}
        """For a row being prefilled, the urgency of the most urgent row that waits for it."""

    def __len__(self) -> int:
        return len(self._rows)

    def rows(self) -> list[Row]:
        return list(self._rows)

    def add(self, row: Row) -> int:
        """Adds a row and returns how many of its tokens are cached in memory."""
        usable_tokens = self._reuse.usable_tokens(row)
        row.rest_estimate = row.prefill_tokens - usable_tokens
        self._rows[row] = None
        return usable_tokens

    def remove(self, row: Row) -> None:
        """Removes a row; does nothing if it does not wait."""
        if row in self._rows:
            del self._rows[row]
            self._reuse.release(row)
            self._waiter_urgency_s.clear()

    def ready(self) -> list[Row]:
        """Returns the rows that do not wait for KV from disk."""
        return [row for row in self._rows if not self._reuse.is_fetching(row)]

    def next(self, groups: Sequence[PrefillGroup], fresh: Sequence[Row]) -> Row | None:
        """Returns the most urgent row that need not wait for a prefix, and starts reading KV from
        disk. A row waits while its prefix is read from disk, is prefilled in `groups`, or is about
        to be prefilled by a `fresh` row."""
        now_s = time.monotonic()
        self._waiter_urgency_s.clear()
        ordered = sorted(self._rows, key=lambda row: self._urgency_s(row, now_s))
        fetching = sum(self._reuse.is_fetching(row) for row in ordered)
        for row in ordered:
            if self._reuse.is_fetching(row):
                continue
            hit = self._reuse.fetchable(row)
            if hit is not None:
                if fetching == MAX_FETCHES:
                    # It waits, since KV that is read takes memory.
                    continue
                if self._reuse.fetch(row, hit):
                    fetching += 1
                    continue
            other = self._waits_for(row, groups, fresh)
            if other is None:
                return row
            urgency = self._urgency_s(row, now_s)
            self._waiter_urgency_s[other] = min(urgency, self._waiter_urgency_s.get(other, urgency))
        return None

    def urgency_s(self, row: Row, now_s: float) -> float:
        """Returns the urgency of a row being prefilled: its own, or that of a more urgent row that
        waits for it."""
        own = urgency_s(
            self._rates.prefill_s(row.done_tokens, row.prefill_tokens), now_s - row.accepted_s
        )
        return min(own, self._waiter_urgency_s.get(row, own))

    def _urgency_s(self, row: Row, now_s: float) -> float:
        rest_s = self._rates.prefill_s(row.prefill_tokens - row.rest_estimate, row.prefill_tokens)
        return urgency_s(rest_s, now_s - row.accepted_s)

    def _waits_for(
        self, row: Row, groups: Sequence[PrefillGroup], fresh: Sequence[Row]
    ) -> Row | None:
        """Returns another row that is computing a prefix of this one, so that the prefix is
        computed once."""
        places = [(other, group) for group in groups for other in group.rows]
        for other, group in (*places, *((other, None) for other in fresh)):
            shared = shared_prefix_tokens(row, other)
            if not shared or not self._reuse.can_store(shared):
                continue
            if other.done_tokens < shared:
                if shared - self._reuse.usable_tokens(row) >= SHARED_TOKENS:
                    other.add_checkpoint(shared)
                    return other
            elif group is not None and self._reuse.usable_tokens(row) < shared:
                # The other row is past the end of the shared prefix: its KV is stored now.
                self._reuse.store_prompt(other, group.view(other))
        return None


def group_size(rows: Sequence[Row]) -> int:
    """Returns how many of the first rows are prefilled together."""
    count = 1
    while count < len(rows):
        rests = [row.rest_tokens for row in rows[:count]]
        depths = [row.done_tokens for row in rows[:count]]
        row = rows[count]
        if not may_group(rests, depths, row.rest_tokens, row.done_tokens):
            break
        count += 1
    return count
