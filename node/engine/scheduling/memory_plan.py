"""Divides an engine's memory lease between live rows and stored KV.

Pure except for the lease it keeps. Sizes come from the layout of the model's caches.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from node.engine.decoding.chunking import BatchShape, place
from node.ipc.messages import MemoryLease, Pressure

_SAMPLE_TOKENS = 4096
"""Length beyond most sliding windows: KV that still grows there grows with every token."""


@dataclass(slots=True)
class MemoryPlan:
    """The lease of one engine, and the decisions that depend on it."""

    lease: MemoryLease
    live_bytes: Callable[[int], int]
    """Bytes of KV of one live row, by its number of tokens."""
    weight_bytes: int
    tolerated_bytes: int = 0
    """Bytes of live KV when the lease shrank: the rows may keep as much, but not grow."""

    pinned_bytes: int = 0
    """Bytes of pinned stored KV, which is never evicted."""

    pressure: Pressure = Pressure.NONE
    """The machine's level of memory pressure."""

    def set_lease(self, lease: MemoryLease, live_bytes: int) -> None:
        """Sets the lease; rows whose KV takes `live_bytes` keep it."""
        self.lease, self.tolerated_bytes = lease, live_bytes

    def set_pressure(self, level: Pressure) -> None:
        self.pressure = level

    def note_step(self, live_bytes: int, pinned_bytes: int) -> None:
        """Records the bytes of live and of pinned stored KV after a step."""
        self.pinned_bytes = pinned_bytes
        self.tolerated_bytes = min(self.tolerated_bytes, live_bytes)

    @property
    def max_live_bytes(self) -> int:
        """Most bytes of live KV, if no KV but the pinned is stored. Unlimited without a lease."""
        lease = self.lease
        if lease.total_bytes <= 0:
            return 1 << 62
        return lease.live_kv_bytes + max(0, lease.stored_kv_bytes - self.pinned_bytes)

    @property
    def usual_bytes(self) -> int:
        """Bytes of live KV up to which no stored KV must be evicted for it."""
        return self.max_live_bytes if self.lease.total_bytes <= 0 else self.lease.live_kv_bytes

    @property
    def pass_tokens(self) -> int:
        """Number of tokens whose KV takes as long to read as the weights in one pass."""
        grown = self.live_bytes(2 * _SAMPLE_TOKENS) - self.live_bytes(_SAMPLE_TOKENS)
        return 1 << 40 if grown <= 0 else self.weight_bytes * _SAMPLE_TOKENS // grown

    def longest_tokens(self, upper: int) -> int:
        """Returns the length in tokens, at most `upper`, of the longest row that fits into memory
        when it runs alone."""
        if self.live_bytes(upper) <= self.max_live_bytes:
            return upper
        low, high = 0, upper
        while low < high - 1:
            middle = (low + high) // 2
            low, high = (
                (middle, high) if self.live_bytes(middle) <= self.max_live_bytes else (low, middle)
            )
        return low

    def projected_bytes(self, batches: Sequence[BatchShape], coming: Sequence[int]) -> int:
        """Returns the bytes of all rows at their expected lengths: the decoding ones in `batches`,
        and the `coming` ones, each in the batch where it would be placed."""
        projected = list(batches)
        for length in coming:
            index = self.place(projected, length)
            if index is None:
                projected.append(BatchShape((length,)))
            else:
                projected[index] = BatchShape((*projected[index].lengths, length))
        return self._bytes(projected)

    def admits(
        self, batches: Sequence[BatchShape], coming: Sequence[int], lengths: Sequence[int]
    ) -> bool:
        """True if the rows of one more request fit beside the decoding and the coming ones. A
        request without others is always admitted; `fitting` limits the number of its rows."""
        if not batches and not coming:
            return True
        return self.projected_bytes(batches, (*coming, *lengths)) <= self.usual_bytes

    def fitting(
        self, batches: Sequence[BatchShape], coming: Sequence[int], lengths: Sequence[int]
    ) -> int:
        """Returns how many of the rows of these lengths fit beside the others; at least one."""
        count = len(lengths)
        while count > 1 and not (
            self.projected_bytes(batches, (*coming, *lengths[:count])) <= self.usual_bytes
        ):
            count -= 1
        return count

    def place(self, batches: Sequence[BatchShape], length: int) -> int | None:
        """Returns the index of the batch that a row of this length joins; None for a new one."""

        def fits(index: int | None) -> bool:
            lengths = batches[index].lengths if index is not None else ()
            joined = BatchShape((*lengths, length))
            others = [batch for i, batch in enumerate(batches) if i != index]
            return self._bytes([*others, joined]) <= self.usual_bytes

        return place(batches, length, self.pass_tokens, fits)

    def stored_bytes(self, live_bytes: int) -> int:
        """Returns the most bytes of stored KV beside so many bytes of live KV."""
        if self.lease.total_bytes <= 0:
            return 1 << 62
        excess = max(0, live_bytes - self.lease.live_kv_bytes)
        return max(0, self.lease.stored_kv_bytes - excess)

    def _bytes(self, batches: Sequence[BatchShape]) -> int:
        return sum(batch.bytes(self.live_bytes) for batch in batches)
