"""Tests the disk tier's catalog, and the order of its evictions."""

from node.engine.cache.disk.catalog import Catalog, Item
from node.engine.cache.parts import EntryKind


def _catalog(*files: tuple[int, int]) -> Catalog:
    """(file, parent) of 10 bytes each, on disk, in this order."""
    catalog = Catalog()
    for file, parent in files:
        item = Item(file, EntryKind.SPAN, parent, 10)
        catalog.add(item)
        catalog.written(item, 0)
    return catalog


def _order(catalog: Catalog) -> list[int]:
    """Takes one after the other."""
    order = []
    while (item := catalog.coldest(busy=())) is not None:
        order += [each.file for each in catalog.remove(item.file)]
    return order


def test_the_least_recently_used_is_evicted_first() -> None:
    catalog = _catalog((1, 0), (2, 0), (3, 0))
    catalog.touch([1])
    assert _order(catalog) == [2, 3, 1]


def test_what_others_continue_is_evicted_after_them() -> None:
    assert _order(_catalog((1, 0), (2, 1), (3, 2), (4, 0))) == [3, 2, 1, 4]


def test_files_touched_together_are_evicted_leaf_first() -> None:
    catalog = _catalog((1, 0), (2, 1), (3, 0))
    catalog.touch([1, 2])
    assert _order(catalog) == [3, 2, 1]


def test_a_file_to_be_written_keeps_what_it_continues() -> None:
    catalog = _catalog((1, 0))
    catalog.add(Item(2, EntryKind.SPAN, 1, 10))
    assert catalog.coldest(busy=()) is None


def test_busy_files_stay() -> None:
    item = _catalog((1, 0), (2, 0)).coldest(busy={1})
    assert item is not None
    assert item.file == 2


def test_only_files_on_disk_count() -> None:
    catalog = _catalog((1, 0), (2, 0))
    catalog.add(Item(3, EntryKind.SPAN, 1, 10))
    assert (catalog.nbytes, catalog.files) == (20, 2)
    catalog.remove(3)
    catalog.remove(1)
    assert (catalog.nbytes, catalog.files) == (10, 1)
    catalog.clear()
    assert (catalog.nbytes, catalog.files) == (0, 0)


def test_what_continues_a_removed_file_is_removed_before_it() -> None:
    catalog = _catalog((1, 0), (2, 1), (3, 1), (4, 2), (5, 0))
    order = [item.file for item in catalog.remove(1)]
    assert set(order) == {1, 2, 3, 4}
    assert order.index(4) < order.index(2) < order.index(1)
    assert order.index(3) < order.index(1)
    assert 5 in catalog


def test_restored_files_are_evicted_in_the_order_of_their_last_use() -> None:
    catalog = Catalog()
    catalog.restore(
        [
            Item(1, EntryKind.SPAN, 0, 10, used=9, on_disk=True),
            Item(2, EntryKind.SPAN, 1, 10, used=9, on_disk=True),
            Item(3, EntryKind.SPAN, 0, 10, used=4, on_disk=True),
        ]
    )
    assert catalog.nbytes == 30
    assert catalog.touch([3, 77]) == {3: 10}
    assert _order(catalog) == [2, 1, 3]
