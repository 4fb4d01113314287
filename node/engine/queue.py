"""Rows that wait to go in, and who of them is next."""

import time
from collections.abc import Sequence

from node.engine.batches import PrefillGroup
from node.engine.rates import Rates
from node.engine.reuse import Reuse, shared_tokens
from node.engine.row import Row
from node.engine.schedule import SHARED_TOKENS, may_group, urgency_s


class Queue:
    """Waiting rows, in the order of their coming."""

    def __init__(self, reuse: Reuse, rates: Rates) -> None:
        self._reuse = reuse
        self._rates = rates
        self._rows: dict[str, Row] = {}
        self.promoting = 0
        """Rows that wait for KV from disk, as of the last `next`."""

    def rows(self) -> list[Row]:
        return list(self._rows.values())

    def add(self, row: Row) -> int:
        """Takes in a row; how many of its tokens are in memory now."""
        usable_tokens = self._reuse.usable_tokens(row.tokens)
        row.rest_estimate = row.prefill_tokens - usable_tokens
        self._rows[row.uid] = row
        return usable_tokens

    def remove(self, row: Row) -> None:
        """Nothing happens where the row does not wait."""
        if self._rows.pop(row.uid, None) is not None:
            self._reuse.forget(row)

    def next(self, groups: Sequence[PrefillGroup], fresh: Sequence[Row]) -> Row | None:
        """The most urgent row that need not wait for a prefix: for one that comes from disk, or
        one that `groups` prefill or `fresh` rows are about to."""
        now_s = time.monotonic()
        self.promoting = 0
        found: Row | None = None
        for row in sorted(self._rows.values(), key=lambda row: self._urgency_s(row, now_s)):
            if self._reuse.is_promoting(row):
                self.promoting += 1
            elif found is None and not self._waits(row, groups, fresh):
                found = row
        return found

    def _urgency_s(self, row: Row, now_s: float) -> float:
        rest_s = self._rates.prefill_s(row.prefill_tokens - row.rest_estimate, row.prefill_tokens)
        return urgency_s(rest_s, now_s - row.accepted_s)

    def _waits(self, row: Row, groups: Sequence[PrefillGroup], fresh: Sequence[Row]) -> bool:
        """Whether another row computes a prefix of this one, so that it is computed once."""
        places = [(other, group) for group in groups for other in group.rows]
        for other, group in (*places, *((other, None) for other in fresh)):
            shared = shared_tokens(row, other)
            if not shared or not self._reuse.can_keep(shared):
                continue
            if other.done_tokens < shared:
                if shared - self._reuse.usable_tokens(row.tokens) >= SHARED_TOKENS:
                    other.add_cut(shared)
                    return True
            elif group is not None and self._reuse.usable_tokens(row.tokens) < shared:
                # It has passed the place; what it has so far is stored now.
                self._reuse.keep_prompt(other, group.view(other))
        return False


def grouped(rows: Sequence[Row]) -> int:
    """How many of the rows, from the first on, are prefilled together."""
    count = 1
    while count < len(rows):
        rests = [row.rest_tokens for row in rows[:count]]
        depths = [row.done_tokens for row in rows[:count]]
        row = rows[count]
        if not may_group(rests, depths, row.rest_tokens, row.done_tokens):
            break
        count += 1
    return count
