"""How much memory the live rows may take, and what is left for stored KV.

Pure but for the lease it keeps. Sizes come from the layout of the model's caches.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from node.engine.decoding.chunking import Companions, place
from node.ipc.messages import MemoryLease, Pressure

_SAMPLE_TOKENS = 4096
"""Beyond most sliding windows: what grows there grows with every token."""


@dataclass(slots=True)
class Room:
    """The lease of one engine, and the projections made against it."""

    lease: MemoryLease
    live_bytes: Callable[[int], int]
    """KV of one live row of so many tokens."""
    weight_bytes: int
    tolerated_bytes: int = 0
    """What live rows held beyond a lease that shrank: they may go on with it, and not grow."""

    kept_bytes: int = 0
    """Stored KV that is never evicted."""

    pressure: Pressure = Pressure.NONE
    """How short the machine is of memory."""

    @property
    def most_bytes(self) -> int:
        """What live rows may take if nothing is stored. Without a lease there is no limit."""
        lease = self.lease
        if lease.total_bytes <= 0:
            return 1 << 62
        return lease.live_kv_bytes + max(0, lease.stored_kv_bytes - self.kept_bytes)

    @property
    def usual_bytes(self) -> int:
        """What live rows take before stored KV has to make room for them."""
        return self.most_bytes if self.lease.total_bytes <= 0 else self.lease.live_kv_bytes

    @property
    def pass_tokens(self) -> int:
        """Reading so many tokens of KV costs as much as a pass over the weights."""
        grown = self.live_bytes(2 * _SAMPLE_TOKENS) - self.live_bytes(_SAMPLE_TOKENS)
        return 1 << 40 if grown <= 0 else self.weight_bytes * _SAMPLE_TOKENS // grown

    def longest_tokens(self, upper: int) -> int:
        """The longest row, up to `upper` tokens, that can live alone."""
        if self.live_bytes(upper) <= self.most_bytes:
            return upper
        low, high = 0, upper
        while low < high - 1:
            middle = (low + high) // 2
            low, high = (
                (middle, high) if self.live_bytes(middle) <= self.most_bytes else (low, middle)
            )
        return low

    def projected_bytes(self, batches: Sequence[Companions], coming: Sequence[int]) -> int:
        """What all rows take once they are as long as expected: those that decode, and those to
        come, each where it would be placed."""
        projected = list(batches)
        for length in coming:
            index = self.place(projected, length)
            if index is None:
                projected.append(Companions((length,)))
            else:
                projected[index] = Companions((*projected[index].lengths, length))
        return self._bytes(projected)

    def admits(
        self, batches: Sequence[Companions], coming: Sequence[int], lengths: Sequence[int]
    ) -> bool:
        """Whether the rows of one more request may go in beside those that decode and those to
        come. A request that comes alone always may: `fitting` tells how many rows of it decode."""
        if not batches and not coming:
            return True
        return self.projected_bytes(batches, (*coming, *lengths)) <= self.usual_bytes

    def fitting(
        self, batches: Sequence[Companions], coming: Sequence[int], lengths: Sequence[int]
    ) -> int:
        """How many rows of these lengths there is room for beside the others; at least one."""
        count = len(lengths)
        while count > 1 and not (
            self.projected_bytes(batches, (*coming, *lengths[:count])) <= self.usual_bytes
        ):
            count -= 1
        return count

    def place(self, batches: Sequence[Companions], length: int) -> int | None:
        """The batch that a row of this length joins; None for one of its own."""

        def fits(index: int | None) -> bool:
            lengths = batches[index].lengths if index is not None else ()
            joined = Companions((*lengths, length))
            others = [batch for i, batch in enumerate(batches) if i != index]
            return self._bytes([*others, joined]) <= self.usual_bytes

        return place(batches, length, self.pass_tokens, fits)

    def stored_bytes(self, live_bytes: int) -> int:
        """What stored KV may take beside so much live KV."""
        if self.lease.total_bytes <= 0:
            return 1 << 62
        excess = max(0, live_bytes - self.lease.live_kv_bytes)
        return max(0, self.lease.stored_kv_bytes - excess)

    def _bytes(self, batches: Sequence[Companions]) -> int:
        return sum(batch.bytes(self.live_bytes) for batch in batches)
