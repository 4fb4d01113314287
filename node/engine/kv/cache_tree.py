"""The nesting of a model's caches in mlx-lm: a list with an entry for each layer, where a
`CacheList` contains several. The innermost entries are called leaves."""

from collections.abc import Iterator, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import BatchKVCache, CacheList, KVCache

Caches = list[Any]
"""One entry for each layer with a cache, of one row or of a batch."""


def flatten(caches: Sequence[Any]) -> list[Any]:
    """Returns the leaves in order."""
    leaves: list[Any] = []
    for cache in caches:
        leaves += flatten(cache.caches) if isinstance(cache, CacheList) else [cache]
    return leaves


def assemble(template: Sequence[Any], leaves: Iterator[Any]) -> Caches:
    """Nests the leaves as those of the template are."""
    return [
        CacheList(*assemble(cache.caches, leaves)) if isinstance(cache, CacheList) else next(leaves)
        for cache in template
    ]


def merge(rows: Sequence[Caches]) -> Caches:
    """Returns batch caches of the rows, in their order. A batch of one takes over the row's KV
    without a copy: the row must not be used afterwards."""
    columns = zip(*(flatten(row) for row in rows), strict=True)
    return assemble(rows[0], iter([_merge_leaves(column) for column in columns]))


def _merge_leaves(column: tuple[Any, ...]) -> Any:
    if len(column) == 1 and type(column[0]) is KVCache and not column[0].empty():
        batch = BatchKVCache([0])
        adopt(batch, column[0])
        return batch
    return column[0].merge(list(column))


def adopt(batch: Any, row: Any) -> None:
    """Makes the buffers of a row's KV those of a batch of one."""
    batch.keys, batch.values = row.keys, row.values
    batch.offset = mx.array([row.offset])
    batch._idx = row.offset
