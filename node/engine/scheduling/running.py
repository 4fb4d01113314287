"""The rows that are being prefilled or decoded, and the memory that they take."""

from collections.abc import Sequence

from node.engine.decoding.batches import DecodeBatch, PrefillGroup
from node.engine.decoding.chunking import BatchShape
from node.engine.decoding.row import Row
from node.engine.kv.cache_layout import CacheLayout
from node.engine.scheduling.prefix_reuse import PrefixReuse


class RunningRows:
    """The prefill groups and decode batches of one engine."""

    def __init__(self, layout: CacheLayout, reuse: PrefixReuse) -> None:
        self.groups: list[PrefillGroup] = []
        self.batches: list[DecodeBatch] = []
        self._layout = layout
        self._reuse = reuse

    def places(self) -> list[PrefillGroup | DecodeBatch]:
        return [*self.groups, *self.batches]

    def rows(self) -> list[Row]:
        """Returns all rows, without the choices that wait for a row's prefill."""
        return [row for place in self.places() for row in place.rows]

    def clear(self) -> None:
        self.groups, self.batches = [], []

    def drop_empty(self) -> None:
        self.groups = [group for group in self.groups if group.rows]
        self.batches = [batch for batch in self.batches if batch.rows]

    def remove(self, row: Row) -> None:
        """Removes a row from its group or batch and stores its KV."""
        for group in self.groups:
            if row in group.rows:
                self._reuse.store_partial(row, group.view(row))
                group.remove(row)
        for batch in self.batches:
            if row in batch.rows:
                self._reuse.store_output(row, batch.view(row))
                batch.remove([row])
        self.drop_empty()

    def batch_shapes(self) -> list[BatchShape]:
        """Returns the expected lengths of the rows of each batch."""
        return [
            BatchShape(tuple(row.expected_tokens for row in batch.rows)) for batch in self.batches
        ]

    def coming(self) -> list[int]:
        """Returns the expected lengths of the rows in prefill and of the choices that wait for
        them."""
        return [length for group in self.groups for length in expected_lengths(group.rows)]

    def live_bytes(self) -> int:
        """Returns the bytes of the KV of all rows, including padding and reserved tokens."""
        live_bytes = self._layout.live_bytes
        return sum(len(place.rows) * live_bytes(place.reserved_tokens) for place in self.places())

    @property
    def nbytes(self) -> int:
        """Bytes that the caches take at present."""
        return sum(place.nbytes for place in self.places())


def expected_lengths(rows: Sequence[Row]) -> list[int]:
    """Returns the expected lengths in tokens of the rows and of the choices that wait for them."""
    return [each.expected_tokens for row in rows for each in row.choices]
