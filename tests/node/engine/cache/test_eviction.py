import numpy as np
import pytest

from node.engine.cache.prefix_cache import PrefixCache
from tests.fakes import FakeClock
from tests.node.engine.cache.fake_parts import SNAPSHOT_BYTES, count, evict, make_config, store

CLOCK_STEP_S = 30.0


class World:
    """A cache of 30 tokens (300 bytes) without a disk, and its clock."""

    def __init__(self, *, needs_snapshot: bool = False, budget_bytes: int = 300) -> None:
        self.clock = FakeClock()
        self.cache = PrefixCache(
            make_config(budget_bytes=budget_bytes, needs_snapshot=needs_snapshot), None, self.clock
        )

    def store(self, begin: int, end: int, *, snapshot: bool = False) -> int:
        covered = store(self.cache, count(begin, end), snapshot=snapshot)
        self.clock.advance(CLOCK_STEP_S)
        return covered

    def usable(self, begin: int, end: int) -> int:
        return self.cache.match(count(begin, end), end - begin).tokens

    def use(self, begin: int, end: int) -> None:
        self.cache.use(self.cache.match(count(begin, end), end - begin))
        self.clock.advance(CLOCK_STEP_S)


def test_the_least_recently_used_of_equal_entries_is_evicted_first() -> None:
    world = World()
    for begin in (100, 200, 300):
        world.store(begin, begin + 10)
    world.use(100, 110)
    assert world.store(400, 410) == 10
    assert [world.usable(begin, begin + 10) for begin in (100, 200, 300, 400)] == [10, 0, 10, 10]
    assert world.cache.nbytes == 300


def test_what_is_dearer_to_compute_again_stays_longer() -> None:
    clock = FakeClock()
    config = make_config(budget_bytes=300, prefill_s=lambda begin, end: float(end**2 - begin**2))
    cache = PrefixCache(config, None, clock)
    store(cache, count(1, 21))
    store(cache, count(100, 110))
    assert store(cache, count(200, 210)) == 10
    assert cache.match(count(1, 21), 20).tokens == 20
    assert cache.match(count(100, 110), 10).tokens == 0


def test_a_conversation_is_evicted_from_its_end() -> None:
    world = World()
    for end in (10, 20, 30):
        world.store(0, end)
    assert world.store(400, 405) == 5
    assert world.usable(0, 30) == 20


def test_a_shared_beginning_outlives_what_hangs_on_it() -> None:
    world = World()
    system = count(0, 10)
    store(world.cache, system)
    for session in (100, 200):
        store(world.cache, np.concatenate([system, count(session, session + 10)]))
    world.clock.advance(1_000.0)
    assert world.store(400, 420) == 20
    assert world.usable(0, 10) == 10
    assert world.cache.entries == 2


def test_an_entry_larger_than_the_budget_is_skipped_and_nothing_evicted_for_it() -> None:
    world = World()
    world.store(100, 110)
    assert world.store(200, 231) == 0
    assert world.usable(100, 110) == 10


def test_nothing_is_evicted_where_it_would_not_free_enough_memory() -> None:
    world = World()
    world.store(100, 110)
    world.store(200, 210)
    world.cache.pin(count(100, 110))
    assert world.store(300, 325) == 0
    assert world.usable(200, 210) == 10
    assert world.store(300, 320) == 20


def test_what_is_held_or_pinned_stays_with_all_above_it() -> None:
    world = World()
    world.store(0, 10)
    world.store(0, 20)
    hit = world.cache.match(count(0, 20), 20)
    world.cache.hold(hit)
    assert evict(world.cache, 1_000) == 0
    world.cache.release(hit)
    assert world.cache.pin(count(0, 5)) == 5
    # What follows the pinned tokens is evicted, in the same edge too.
    assert evict(world.cache, 1_000) == 150
    assert world.usable(0, 20) == 5


def test_a_prompt_is_not_evicted_for_its_own_continuation() -> None:
    world = World()
    world.store(0, 20)
    assert world.store(0, 31) == 20
    assert world.store(0, 30) == 30


def test_a_smaller_lease_evicts_at_once() -> None:
    world = World()
    for begin in (100, 200, 300):
        world.store(begin, begin + 10)
    world.cache.set_lease(150, 0)
    assert world.cache.nbytes == 100
    assert world.usable(300, 310) == 10
    world.cache.set_lease(0, 0)
    assert (world.cache.nbytes, world.cache.entries) == (0, 0)


def test_evict_frees_at_least_what_is_requested_and_returns_how_much() -> None:
    world = World()
    for begin in (100, 200, 300):
        world.store(begin, begin + 10)
    assert evict(world.cache, 101) == 200
    assert world.cache.nbytes == 100
    assert evict(world.cache, 1_000) == 100


def test_a_long_session_gives_up_its_own_older_snapshots() -> None:
    world = World(needs_snapshot=True, budget_bytes=4 * 100)
    world.cache.set_lease(400, 2 * SNAPSHOT_BYTES)
    for end in (5, 10, 15, 20):
        assert world.store(0, end, snapshot=True) == end
        assert world.cache.snapshot_nbytes <= 2 * SNAPSHOT_BYTES
    assert world.usable(0, 20) == 20


@pytest.mark.parametrize("bytes_over", [1, SNAPSHOT_BYTES + 1])
def test_a_smaller_share_for_snapshots_evicts_snapshots(bytes_over: int) -> None:
    world = World(needs_snapshot=True, budget_bytes=1_000)
    for begin in (100, 200, 300):
        world.store(begin, begin + 10, snapshot=True)
    world.cache.set_lease(1_000, 3 * SNAPSHOT_BYTES - bytes_over)
    left = 2 if bytes_over == 1 else 1
    assert world.cache.snapshot_nbytes == left * SNAPSHOT_BYTES
    # A span that leads to no snapshot is of no use.
    assert world.cache.entries == left


def test_where_there_are_many_entries_a_plan_frees_more_than_is_requested() -> None:
    world = World(budget_bytes=64_000)
    for first in range(0, 320 * 20, 20):
        world.store(first, first + 20)
    assert len(world.cache._index.resident) == 320 and world.cache.nbytes == 64_000
    world.store(10_000, 10_010)
    # 100 bytes were requested, and a 64th of the budget.
    assert world.cache.nbytes <= 64_000 - 1_000
