import numpy as np

from node.engine.cache.parts import EntryKind, FileRead, Tensors, Tokens
from node.engine.cache.prefix_cache import PrefixCache
from node.ipc.messages import CacheEventKind
from tests.fakes import FakeClock
from tests.node.engine.cache.fake_parts import (
    SNAPSHOT_BYTES,
    FakeSnapshot,
    FakeSpan,
    FakeTier,
    Prefix,
    capture_of,
    count,
    evict,
    make_config,
    store,
)


class World:
    """A cache of 30 tokens (300 bytes) over a disk tier that does nothing by itself."""

    def __init__(
        self,
        *,
        tier: FakeTier | None = None,
        budget_bytes: int = 300,
        needs_snapshot: bool = False,
        prefill_s: float = 1.0,
    ) -> None:
        self.clock = FakeClock()
        self.tier = tier or FakeTier()
        config = make_config(
            budget_bytes=budget_bytes,
            needs_snapshot=needs_snapshot,
            prefill_s=lambda begin, end: prefill_s * (end - begin),
        )
        self.cache = PrefixCache(config, self.tier, self.clock)

    def finish(self) -> None:
        self.tier.finish()
        self.cache.poll()

    def spilled(self, tokens: Tokens, *, snapshot: bool = False) -> None:
        """Stores the tokens, and has them on disk only."""
        store(self.cache, tokens, snapshot=snapshot)
        evict(self.cache, 1_000_000)
        self.finish()
        assert self.cache.nbytes == 0
        self.cache.events()

    def usable(self, tokens: Tokens) -> tuple[int, int]:
        hit = self.cache.match(tokens, len(tokens))
        return hit.tokens, hit.disk_tokens

    def promote(self, tokens: Tokens) -> bool:
        return self.cache.promote(self.cache.match(tokens, len(tokens)))

    def check(self, tokens: Tokens, length: int) -> None:
        hit = self.cache.match(tokens, len(tokens))
        assert hit.tokens == length
        cells: list[Prefix] = []
        for span, low, high in self.cache.use(hit)[0]:
            assert isinstance(span, FakeSpan)
            cells.extend(span.cells[low:high])
        assert cells == [tuple(tokens[: end + 1].tolist()) for end in range(length)]


# --- to disk -----------------------------------------------------------------------------


def test_memory_counts_until_the_file_is_written() -> None:
    world = World()
    store(world.cache, count(1, 11))
    assert evict(world.cache, 1) == 100
    assert world.cache.nbytes == 100
    assert world.usable(count(1, 11)) == (10, 10)
    world.cache.events()
    world.finish()
    assert world.cache.nbytes == 0
    assert world.usable(count(1, 11)) == (0, 10)
    assert [event.kind for event in world.cache.events()] == [CacheEventKind.SPILLED]


def test_those_above_are_written_first_and_stay_in_memory() -> None:
    world = World()
    store(world.cache, count(1, 11))
    store(world.cache, count(1, 16))
    evict(world.cache, 10)
    entries = [queued.entry for queued in world.tier.writing.values()]
    assert [(e.parent_file, e.parent_tokens, len(e.tokens)) for e in entries] == [
        (0, 0, 10),
        (1, 10, 5),
    ]
    world.finish()
    assert world.cache.nbytes == 100
    assert world.usable(count(1, 16)) == (10, 15)


def test_what_is_on_disk_already_is_evicted_from_memory_at_once() -> None:
    world = World()
    world.spilled(count(1, 11))
    assert world.promote(count(1, 11))
    world.finish()
    assert world.cache.nbytes == 100
    evict(world.cache, 1)
    assert world.cache.nbytes == 0 and not world.tier.writing
    assert world.usable(count(1, 11)) == (0, 10)


def test_what_the_tier_refuses_is_dropped() -> None:
    world = World(tier=FakeTier(refuses=True))
    store(world.cache, count(1, 11))
    evict(world.cache, 1)
    assert (world.cache.nbytes, world.cache.entries) == (0, 0)
    assert world.cache.events()[-1].kind is CacheEventKind.EVICTED


def test_what_fails_to_be_written_is_dropped() -> None:
    world = World()
    store(world.cache, count(1, 11))
    evict(world.cache, 1)
    world.tier.fail_write(1)
    world.cache.poll()
    assert (world.cache.nbytes, world.cache.entries) == (0, 0)


def test_what_is_sooner_computed_than_read_is_not_written() -> None:
    world = World(prefill_s=1e-12)
    store(world.cache, count(1, 11))
    evict(world.cache, 1)
    assert world.cache.nbytes == 0 and not world.tier.writing


def test_a_use_before_the_write_ends_keeps_it_in_memory() -> None:
    world = World()
    store(world.cache, count(1, 11))
    evict(world.cache, 1)
    world.check(count(1, 11), 10)
    world.finish()
    assert world.usable(count(1, 11)) == (10, 10)
    assert world.cache.nbytes == 100


def test_the_least_valuable_is_written_ahead_so_that_memory_can_be_freed_at_once() -> None:
    world = World()
    for begin in (100, 200, 300):
        store(world.cache, count(begin, begin + 10))
        world.clock.advance(30.0)
        world.finish()
    assert store(world.cache, count(400, 410)) == 10
    assert world.cache.nbytes == 300
    assert world.usable(count(100, 110)) == (0, 10)


def test_nothing_is_written_while_little_is_in_memory() -> None:
    world = World(budget_bytes=400)
    store(world.cache, count(1, 11))
    assert not world.tier.writing


def test_flush_writes_the_most_valuable_first_as_far_as_the_tier_accepts_it() -> None:
    world = World(tier=FakeTier(queue_limit=1), budget_bytes=10_000)
    store(world.cache, count(1, 11))
    world.clock.advance(1_000.0)
    store(world.cache, count(50, 60))
    assert world.cache.flush() == 100
    assert world.tier.writing[1].entry.tokens[0] == 50
    world.finish()
    assert world.cache.flush() == 100
    world.finish()
    assert world.cache.flush() == 0
    assert world.cache.nbytes == 200


# --- back from disk ------------------------------------------------------------------------


def test_a_promotion_reserves_memory_first() -> None:
    world = World()
    world.spilled(count(1, 11))
    hit = world.cache.match(count(1, 11), 10)
    assert hit.disk_bytes == 100
    assert world.cache.promote(hit)
    assert world.cache.nbytes == 100 and world.cache.promoting(hit)
    world.finish()
    assert world.cache.nbytes == 100 and not world.cache.promoting(hit)
    assert [event.kind for event in world.cache.events()] == [CacheEventKind.PROMOTED]
    world.check(count(1, 11), 10)


def test_a_promotion_evicts_what_is_worth_less() -> None:
    world = World()
    world.spilled(count(1, 21))
    store(world.cache, count(50, 65))
    world.finish()
    assert world.promote(count(1, 21))
    assert world.cache.nbytes == 200
    assert world.usable(count(50, 65)) == (0, 15)


def test_a_promotion_that_does_not_fit_changes_nothing() -> None:
    world = World()
    world.spilled(count(1, 21))
    store(world.cache, count(50, 65))
    world.cache.pin(count(50, 65))
    assert not world.promote(count(1, 21))
    assert world.cache.nbytes == 150 and not world.tier.reading


def test_two_promotions_share_a_read() -> None:
    world = World()
    world.spilled(count(1, 11))
    assert world.promote(count(1, 11)) and world.promote(count(1, 11))
    assert world.tier.reading == [1] and world.cache.nbytes == 100


def test_only_the_part_that_is_used_of_a_file_stays_in_memory() -> None:
    world = World()
    world.spilled(count(1, 21))
    prompt = np.concatenate([count(1, 6), count(90, 99)])
    assert world.promote(prompt)
    assert world.cache.nbytes == 200
    world.finish()
    assert world.cache.nbytes == 50
    world.check(prompt, 5)
    assert world.usable(count(1, 21)) == (5, 20)
    assert world.promote(count(1, 21))
    world.finish()
    world.check(count(1, 21), 20)


def test_a_lost_file_is_forgotten_with_all_that_continued_it() -> None:
    world = World()
    world.spilled(count(1, 11))
    world.spilled(count(1, 16))
    assert world.promote(count(1, 16))
    world.tier.lose(1)
    world.cache.poll()
    assert (world.cache.nbytes, world.cache.entries) == (0, 0)
    assert world.usable(count(1, 16)) == (0, 0)


def test_a_lost_copy_of_what_is_in_memory_is_no_loss() -> None:
    world = World(budget_bytes=10_000)
    store(world.cache, count(1, 11))
    world.cache.flush()
    world.finish()
    world.tier.lose(1)
    world.cache.poll()
    assert world.usable(count(1, 11)) == (10, 10)


def test_a_file_that_contains_something_else_is_dropped() -> None:
    world = World()
    world.spilled(count(1, 11))
    world.promote(count(1, 11))
    wrong: Tensors = FakeSpan(((1,), (1, 2))).tensors()
    world.tier.reports.append(FileRead(1, wrong))
    world.cache.poll()
    assert world.usable(count(1, 11)) == (0, 0)
    assert world.tier.entries() == []
    assert world.cache.nbytes == 0


def test_new_spans_are_attached_to_what_is_on_disk_only() -> None:
    world = World()
    world.spilled(count(1, 11))
    calls: list[tuple[int, int]] = []
    prompt = count(1, 14)
    assert world.cache.store(prompt, capture_of(prompt, calls), None, "r2") == 13
    assert calls == [(0, 10), (10, 13)]
    world.check(prompt, 13)
    evict(world.cache, 1_000)
    assert 1 in world.tier.files and len(world.tier.writing) == 1


def test_a_split_makes_two_views_of_one_file() -> None:
    world = World()
    world.spilled(count(1, 11))
    prompt = np.concatenate([count(1, 5), count(50, 53)])
    store(world.cache, prompt)
    world.finish()
    assert world.usable(count(1, 11)) == (4, 10)
    assert len([f for f in world.tier.files.values() if len(f.entry.tokens) == 10]) == 1
    assert world.promote(count(1, 11))
    world.finish()
    world.check(count(1, 11), 10)
    world.check(prompt, 7)


# --- snapshots ---------------------------------------------------------------------------


def test_a_snapshot_is_spilled_and_restored_with_its_span() -> None:
    world = World(needs_snapshot=True)
    world.spilled(count(1, 11), snapshot=True)
    kinds = [queued.entry.kind for queued in world.tier.files.values()]
    assert kinds == [EntryKind.SPAN, EntryKind.SNAPSHOT]
    hit = world.cache.match(count(1, 12), 11)
    assert (hit.tokens, hit.disk_tokens, hit.disk_bytes) == (0, 10, 100 + SNAPSHOT_BYTES)
    assert world.cache.promote(hit)
    assert world.cache.snapshot_nbytes == SNAPSHOT_BYTES
    world.finish()
    _, snapshot = world.cache.use(world.cache.match(count(1, 12), 11))
    assert snapshot == FakeSnapshot(tuple(range(1, 11)))


def test_with_a_lost_snapshot_what_led_to_it_is_evicted() -> None:
    world = World(needs_snapshot=True)
    world.spilled(count(1, 11), snapshot=True)
    world.tier.lose(2)
    world.cache.poll()
    assert world.cache.entries == 0 and not world.tier.files


# --- a new process -----------------------------------------------------------------------


def test_what_is_on_disk_is_found_after_a_restart() -> None:
    world = World(needs_snapshot=True)
    world.spilled(count(1, 11), snapshot=True)
    branch = np.concatenate([count(1, 5), count(50, 53)])
    store(world.cache, branch, snapshot=True)
    evict(world.cache, 1_000)
    world.finish()
    again = World(tier=world.tier.restarted(), needs_snapshot=True)
    assert again.cache.nbytes == 0 and again.cache.entries == 3
    assert {event.kind for event in again.cache.events()} == {CacheEventKind.SPILLED}
    assert again.usable(count(1, 11)) == (0, 10)
    assert again.usable(branch) == (0, 7)
    again.promote(branch)
    again.finish()
    again.check(branch, 7)


def names(world: World) -> dict[tuple[int, int], int]:
    """Returns the files, by the tokens of the entries that they contain."""
    events = world.cache.events()
    return {(each.begin_tokens, each.end_tokens): each.file for each in events if each.file}


def test_a_file_is_named_when_it_is_to_be_written_and_the_same_after_a_restart() -> None:
    world = World()
    store(world.cache, count(1, 11))
    store(world.cache, np.concatenate([count(1, 11), count(50, 53)]))
    world.cache.flush()
    named = names(world)
    assert named.keys() == {(0, 10), (10, 13)} and len(set(named.values())) == 2
    world.finish()
    assert names(World(tier=world.tier.restarted())) == named
    # What continues from within cuts the entry, not the file.
    store(world.cache, np.concatenate([count(1, 5), count(70, 73)]))
    world.cache.flush()
    world.finish()
    again = World(tier=world.tier.restarted())
    branched = names(again)
    assert branched[0, 4] == branched[4, 10] == named[0, 10]
    assert branched[10, 13] == named[10, 13]
    assert branched[4, 7] not in named.values()


def test_other_tokens_another_salt_and_another_beginning_have_other_names() -> None:
    found: list[int] = []
    for begin, end, salt in ((1, 11, 0), (2, 12, 0), (1, 11, 7)):
        # Each has the first file of a new index.
        world = World()
        tokens = count(begin, end)
        world.cache.store(tokens, capture_of(tokens), None, "r", salt)
        longer = np.concatenate([tokens, count(50, 53)])
        world.cache.store(longer, capture_of(longer), None, "r", salt)
        world.cache.flush()
        found += names(world).values()
    assert len(set(found)) == len(found) == 6


def test_files_that_continue_nothing_are_deleted_at_the_start() -> None:
    world = World()
    world.spilled(count(1, 11))
    world.spilled(count(1, 16))
    tier = world.tier.restarted()
    del tier.files[1]
    assert World(tier=tier).cache.entries == 0
    assert not tier.files


def test_clear_forgets_the_disk_too() -> None:
    world = World()
    world.spilled(count(1, 11))
    store(world.cache, count(50, 60))
    world.cache.clear()
    assert (world.cache.nbytes, world.cache.disk_nbytes, world.cache.entries) == (0, 0, 0)
    assert world.usable(count(1, 11)) == (0, 0)


def test_what_a_smaller_budget_has_sent_to_disk_may_stay_beside_it_until_it_is_written() -> None:
    for slack_bytes, kept in ((0, 0), (100, 9)):
        world = World()
        store(world.cache, count(1, 11))
        held = count(50, 60)
        store(world.cache, held)
        world.cache.hold(world.cache.match(held, 10))
        world.cache.set_lease(190, 0, slack_bytes)
        assert world.cache.nbytes == 200 and world.cache.writing
        assert store(world.cache, count(100, 109)) == kept
        world.finish()
        assert world.cache.nbytes == 100 + 10 * kept
