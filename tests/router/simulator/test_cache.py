"""Tests what a simulated cache keeps, evicts, and can continue from."""

from __future__ import annotations

import random

from router.simulator.cache import NOT_CACHED, Cache, CachedPath

ENDS = (100, 200, 300, 400)


def test_a_path_reaches_as_far_as_what_was_stored() -> None:
    cache = Cache(1000, snapshot_only=False)
    cache.store((1, 2, 3), ENDS[:3], ())
    assert cache.reach((1, 2, 9), ENDS[:3]) == CachedPath(2, 200, 200)
    assert cache.reach((1, 2, 3, 4), ENDS) == CachedPath(3, 300, 300)
    assert cache.reach((8, 2), ENDS[:2]) == NOT_CACHED
    assert cache.memory_used == 300


def test_what_is_shared_counts_once() -> None:
    cache = Cache(1000, snapshot_only=False)
    cache.store((1, 2), ENDS[:2], ())
    cache.store((1, 3), ENDS[:2], ())
    assert (cache.memory_used, cache.leaves) == (300, 2)


def test_leaves_of_the_least_recently_used_path_go_first() -> None:
    cache = Cache(500, snapshot_only=False)
    cache.store((1, 2, 3), ENDS[:3], ())
    cache.store((1, 4, 5), ENDS[:3], ())
    assert cache.memory_used == 500
    cache.store((6,), ENDS[:1], ())
    assert cache.reach((1, 2, 3), ENDS[:3]).positions == 2
    assert cache.reach((1, 4, 5), ENDS[:3]).positions == 3


def test_a_path_longer_than_the_cache_keeps_its_beginning() -> None:
    cache = Cache(250, snapshot_only=False)
    cache.store((1, 2, 3, 4), ENDS, ())
    assert cache.reach((1, 2, 3, 4), ENDS) == CachedPath(2, 200, 200)


def test_slots_bound_the_number_of_paths() -> None:
    cache = Cache(10_000, slots=2, snapshot_only=False)
    for first in (10, 20, 30):
        cache.store((first, first + 1), ENDS[:2], ())
    assert cache.leaves == 2
    assert cache.reach((10, 11), ENDS[:2]) == NOT_CACHED
    assert cache.reach((20, 21), ENDS[:2]).positions == 2


def test_with_snapshots_only_a_path_goes_on_where_an_earlier_one_ended() -> None:
    cache = Cache(1000, snapshot_only=True)
    cache.store((1, 2, 3), ENDS[:3], (2, 3))
    assert cache.reach((1, 2, 9), ENDS[:3]).positions == 2
    assert cache.reach((1, 8), ENDS[:2]) == NOT_CACHED


def test_a_snapshot_goes_with_its_segment() -> None:
    cache = Cache(300, snapshot_only=True)
    cache.store((1, 2), ENDS[:2], (2,))
    cache.store((7, 8), ENDS[:2], (8,))
    assert cache.reach((1, 2), ENDS[:2]) == NOT_CACHED
    cache.store((1, 5), ENDS[:2], (5,))
    assert cache.reach((1, 2), ENDS[:2]) == NOT_CACHED


def test_what_falls_out_of_memory_is_read_from_disk() -> None:
    cache = Cache(300, disk_tokens=1000, snapshot_only=False)
    cache.store((1, 2, 3), ENDS[:3], ())
    cache.store((4, 5), ENDS[:2], ())
    assert cache.reach((1, 2, 3), ENDS[:3]) == CachedPath(3, 300, 100)
    assert (cache.memory_used, cache.disk_used) == (300, 200)


def test_the_disk_has_its_limit_too() -> None:
    cache = Cache(100, disk_tokens=200, snapshot_only=False)
    for first in range(0, 50, 10):
        cache.store((first, first + 1), ENDS[:2], ())
    assert cache.disk_used <= 200
    assert cache.reach((0, 1), ENDS[:2]) == NOT_CACHED


def test_an_unloaded_model_s_memory_is_gone_and_its_disk_stays() -> None:
    cache = Cache(200, disk_tokens=1000, snapshot_only=True)
    cache.store((1, 2), ENDS[:2], (2,))
    cache.store((3, 4), ENDS[:2], (4,))
    cache.clear_memory()
    assert cache.reach((1, 2), ENDS[:2]) == CachedPath(2, 200, 0)
    assert cache.reach((3, 4), ENDS[:2]) == NOT_CACHED
    assert cache.memory_used == 0


def test_every_cached_segment_has_what_stands_before_it() -> None:
    chance = random.Random(4)
    cache = Cache(900, snapshot_only=False)
    paths = [
        (1, *(10 * branch + depth for depth in range(2, chance.randint(3, 6))))
        for branch in range(1, 9)
    ]
    for _ in range(500):
        path = chance.choice(paths)
        ends = tuple(100 * (place + 1) for place in range(len(path)))
        cache.store(path, ends, ())
        reached = [
            cache.reach(each, tuple(100 * (place + 1) for place in range(len(each)))).positions
            for each in paths
        ]
        cached = 1 + sum(max(0, positions - 1) for positions in reached)
        assert cache.memory_used == 100 * cached <= 900
        assert cache.leaves == max(1, sum(positions > 1 for positions in reached))
