"""Tests the digest's reports against the cache's own tree, after any order of events."""

import random
from array import array
from collections.abc import Sequence

import numpy as np
import pytest

from node.engine.cache.config import EDGE_TOKENS
from node.engine.cache.index import Node
from node.engine.cache.prefix_cache import PrefixCache
from node.ipc.messages import CacheEvent, CacheEventKind
from node.prefixes.digest import PrefixDigest
from node.prefixes.saved_positions import SavedPositions
from node.protocol.chain.prefix import Chain
from node.protocol.prefixes import Entry, Tier
from tests.fakes import FakeClock
from tests.node.engine.cache.fake_parts import (
    SNAPSHOT_BYTES,
    FakeSnapshot,
    FakeTier,
    Prefix,
    capture_of,
    evict,
    make_config,
)

SCHEDULES = 50
STEPS = 60


def chain_of(hashes: Sequence[int]) -> Chain:
    return Chain(array("Q", hashes), array("I", range(1, len(hashes) + 1)), array("I"), 0)


def stored(entry: int, begin: int, end: int, *, parent: int = 0, uid: str = "r") -> CacheEvent:
    return CacheEvent(CacheEventKind.STORED, entry, parent, begin, end, end, uid)


def evicted(entry: int) -> CacheEvent:
    return CacheEvent(CacheEventKind.EVICTED, entry, 0, 0, 0, 0)


def reported(digest: PrefixDigest) -> dict[int, tuple[int, Tier]]:
    entries = [digest.entry(each) for each in digest.hashes()]
    return {each.hash: (each.usable_tokens, each.tier) for each in entries if each is not None}


def add_request(
    digest: PrefixDigest, tokens: Sequence[int], prompt_tokens: int, uid: str = "r"
) -> Chain:
    """A request with a position for each of `tokens`, whose hashes are 1, 2, 3 …"""
    chain = chain_of(range(1, len(tokens) + 1))
    digest.on_request(uid, chain, tokens, prompt_tokens)
    return chain


def hash_of(prefix: Prefix) -> int:
    return hash(prefix) % (1 << 64)


class World:
    """A cache with a disk tier, its digest, and a router's mirror of that."""

    def __init__(self, seed: int, *, snapshot_only: bool, edge_tokens: int) -> None:
        self.draw = random.Random(seed)
        self.snapshot_only = snapshot_only
        self.edge_tokens = edge_tokens
        self.clock = FakeClock()
        self.tier = FakeTier(queue_limit=6)
        self.revived = 0
        """Files."""
        self.prefixes: dict[int, Prefix] = {}
        self.bound: set[Prefix] = set()
        """The prefixes that a stored prompt went through, and that the cache has kept since."""
        self.start()

    def start(self) -> None:
        config = make_config(
            budget_bytes=400,
            snapshot_bytes=100,
            needs_snapshot=self.snapshot_only,
            edge_tokens=self.edge_tokens,
        )
        self.cache = PrefixCache(config, self.tier, self.clock)
        self.digest = PrefixDigest(snapshot_only=self.snapshot_only)
        self.mirror: dict[int, Entry] = {}
        self.bound.clear()

    def step(self) -> None:
        steps = [self.store] * 6 + [self.evict, self.promote, self.promote, self.finish_disk]
        steps += [self.lose, self.lease, self.pin]
        self.draw.choice(steps)()
        if self.draw.random() < 0.04:
            self.restart()
        self.clock.advance(1.0)
        self.take_events(())
        self.check()

    def restart(self) -> None:
        if self.draw.random() < 0.5:
            # As an engine that ends.
            self.cache.flush()
            self.tier.finish()
            self.cache.poll()
            self.take_events(())
        saved = self.digest.saved()
        self.tier = self.tier.restarted()
        self.start()
        self.take_events(())
        files = self.digest.files()
        there = [each for each in saved if each.file in files]
        self.revived += len(there)
        for each in there:
            self.digest.restore(files[each.file], each)
        prefixes = {self.prefixes[hash_] for each in there for hash_ in each.hashes}
        self.bound = {each for each in prefixes if each and len(self.path(each)[0]) == len(each)}
        now = {self.prefixes[each] for each in reported(self.digest)}
        assert all(each[:-1] in now for each in now if len(each) > 1), "closed under prefixes"

    def prompt(self) -> Prefix:
        head = (1, 2, 3, 4, 5, 6)[: self.draw.randint(0, 6)]
        return (*head, *(self.draw.randint(1, 3) for _ in range(self.draw.randint(0, 6))))

    def store(self) -> None:
        prompt = self.prompt()
        tokens = np.array(prompt, np.int32)
        prefixes = [prompt[:end] for end in range(len(prompt) + 1)]
        self.prefixes |= {hash_of(each): each for each in prefixes}
        chain = chain_of([hash_of(each) for each in prefixes])
        self.digest.on_request("r", chain, range(len(prefixes)), len(prompt) + 1)
        snapshot = None
        if self.snapshot_only and self.draw.random() < 0.7:
            snapshot = (SNAPSHOT_BYTES, lambda: FakeSnapshot(prompt))
        self.cache.store(tokens, capture_of(tokens), snapshot, "r")
        self.take_events(prompt)
        self.digest.on_end("r")

    def take_events(self, prompt: Prefix) -> None:
        events = self.cache.events()
        self.digest.on_events(events)
        deepest = max((each.end_tokens for each in events if each.uid), default=0)
        self.bound |= {prompt[:end] for end in range(1, deepest + 1)}
        self.bound = {each for each in self.bound if len(self.path(each)[0]) == len(each)}

    def evict(self) -> None:
        evict(self.cache, self.draw.randint(1, 200))

    def promote(self) -> None:
        prompt = self.prompt()
        self.cache.promote(self.cache.match(np.array(prompt, np.int32), len(prompt)))

    def finish_disk(self) -> None:
        self.tier.finish()
        self.cache.poll()

    def lose(self) -> None:
        if self.tier.files:
            self.tier.lose(self.draw.choice(sorted(self.tier.files)))
            self.cache.poll()

    def lease(self) -> None:
        self.cache.set_lease(self.draw.choice([0, 150, 400, 800]), 0)

    def pin(self) -> None:
        prompt = self.prompt()
        if self.draw.random() < 0.3:
            self.cache.pin(np.array(prompt, np.int32))
        elif self.draw.random() < 0.1:
            self.cache.clear()

    def path(self, prefix: Prefix) -> tuple[Prefix, list[Node]]:
        walk = self.cache._index.walk(np.array(prefix, np.int32))
        return prefix[: walk.shared], walk.path

    def check(self) -> None:
        now = reported(self.digest)
        for hash_, (usable_tokens, tier) in now.items():
            prefix = self.prefixes[hash_]
            shared, path = self.path(prefix)
            assert shared == prefix
            if not prefix:
                continue
            assert usable_tokens == self.usable(prefix, path)
            assert tier == (Tier.DISK if path[-1].span is None else Tier.MEMORY)
        assert self.bound <= {self.prefixes[each] for each in now}
        changed, removed = self.digest.take_changes(self.draw.choice([1, 5, 1000]))
        for each in removed:
            self.mirror.pop(each, None)
        self.mirror |= {each.hash: each for each in changed}
        if not self.digest.has_changes:
            assert {
                each.hash: (each.usable_tokens, each.tier) for each in self.mirror.values()
            } == now

    def usable(self, prefix: Prefix, path: list[Node]) -> int:
        if not self.snapshot_only:
            return len(prefix)
        ends = [each.end for each in path if each.has_snapshot and each.end <= len(prefix)]
        return max(ends, default=0)


@pytest.mark.parametrize("edge_tokens", [EDGE_TOKENS, 3])
@pytest.mark.parametrize("snapshot_only", [False, True])
def test_every_position_has_the_place_and_the_use_that_the_cache_gives_it(
    snapshot_only: bool, edge_tokens: int
) -> None:
    revived = 0
    for seed in range(SCHEDULES):
        world = World(seed, snapshot_only=snapshot_only, edge_tokens=edge_tokens)
        for _ in range(STEPS):
            world.step()
        revived += world.revived
    assert revived > SCHEDULES


def test_only_what_is_stored_is_reported() -> None:
    digest = PrefixDigest(snapshot_only=False)
    add_request(digest, [10, 20, 30], 31)
    assert reported(digest) == {}
    digest.on_events([stored(1, 0, 25)])
    assert reported(digest) == {1: (10, Tier.MEMORY), 2: (20, Tier.MEMORY)}
    digest.on_events([stored(2, 25, 30, parent=1)])
    assert reported(digest)[3] == (30, Tier.MEMORY)


def test_a_repeated_prompt_computes_its_last_token() -> None:
    digest = PrefixDigest(snapshot_only=False)
    add_request(digest, [10, 30], 30)
    digest.on_events([stored(1, 0, 29)])
    assert reported(digest) == {1: (10, Tier.MEMORY), 2: (29, Tier.MEMORY)}


def test_a_position_without_a_token_lives_with_the_first_entry() -> None:
    digest = PrefixDigest(snapshot_only=False)
    add_request(digest, [0, 0, 20], 31)
    digest.on_events([stored(1, 0, 8), stored(2, 8, 30, parent=1)])
    assert [reported(digest)[each][0] for each in (1, 2, 3)] == [0, 0, 20]
    digest.on_events([evicted(2)])
    assert sorted(reported(digest)) == [1, 2]


def test_an_entry_from_before_is_bound_by_what_is_stored_behind_it() -> None:
    digest = PrefixDigest(snapshot_only=False)
    event = CacheEvent(CacheEventKind.SPILLED, 1, 0, 0, 20, 20)
    digest.on_events([event])
    add_request(digest, [10, 20, 30], 31)
    digest.on_events([stored(2, 20, 30, parent=1)])
    assert reported(digest) == {1: (10, Tier.DISK), 2: (20, Tier.DISK), 3: (30, Tier.MEMORY)}
    digest.on_events([CacheEvent(CacheEventKind.PROMOTED, 1, 0, 0, 20, 20)])
    assert reported(digest)[1] == (10, Tier.MEMORY)


def test_two_requests_with_the_same_beginning_share_its_positions() -> None:
    digest = PrefixDigest(snapshot_only=False)
    add_request(digest, [10, 20], 21, "a")
    digest.on_events([stored(1, 0, 20, uid="a")])
    digest.take_changes()
    digest.on_request("b", chain_of([1, 2, 7]), [10, 20, 40], 41)
    digest.on_events([stored(2, 20, 40, parent=1, uid="b")])
    assert digest.take_changes() == ([Entry(7, 40, Tier.MEMORY)], [])
    assert len(digest) == 3


def test_a_position_that_two_bind_lives_with_the_later_prompt() -> None:
    digest = PrefixDigest(snapshot_only=False)
    add_request(digest, [10, 20], 21, "a")
    digest.on_events([stored(1, 0, 20, uid="a")])
    add_request(digest, [10, 18], 21, "b")
    digest.on_events([stored(2, 0, 18, uid="b")])
    digest.on_events([evicted(1)])
    assert reported(digest) == {1: (10, Tier.MEMORY), 2: (18, Tier.MEMORY)}


def test_a_position_that_was_worth_fewer_tokens_stays_so() -> None:
    digest = PrefixDigest(snapshot_only=False)
    add_request(digest, [10, 18], 21, "a")
    digest.on_events([stored(1, 0, 18, uid="a")])
    add_request(digest, [10, 20], 21, "b")
    digest.on_events([stored(2, 0, 20, uid="b"), evicted(1)])
    assert reported(digest) == {1: (10, Tier.MEMORY), 2: (18, Tier.MEMORY)}


def test_an_answer_is_bound_to_what_was_stored_of_it() -> None:
    digest = PrefixDigest(snapshot_only=False)
    add_request(digest, [10, 20], 24)
    digest.on_events([stored(1, 0, 23), stored(2, 23, 50, parent=1)])
    digest.on_response("r", chain_of([1, 2, 3, 4]), None)
    # A cut within the answer is worth the prompt; its end is worth all.
    assert reported(digest)[3] == (24, Tier.MEMORY)
    assert reported(digest)[4] == (50, Tier.MEMORY)


def test_an_answer_that_is_not_repeated_is_worth_what_is_kept_of_the_prompt() -> None:
    digest = PrefixDigest(snapshot_only=False)
    add_request(digest, [10, 30], 34)
    digest.on_events([stored(1, 0, 22)])
    digest.on_response("r", chain_of([1, 2, 3]), 20)
    assert [reported(digest)[each][0] for each in (1, 2, 3)] == [10, 20, 20]


def test_nothing_is_bound_of_an_answer_whose_entry_is_evicted() -> None:
    digest = PrefixDigest(snapshot_only=False)
    add_request(digest, [10], 24)
    digest.on_events([stored(1, 0, 23), evicted(1)])
    digest.on_response("r", chain_of([1, 2]), None)
    digest.on_end("r")
    assert reported(digest) == {}


def test_what_is_stored_after_a_request_has_ended_binds_nothing() -> None:
    digest = PrefixDigest(snapshot_only=False)
    add_request(digest, [10], 24)
    digest.on_end("r")
    digest.on_events([stored(1, 0, 23)])
    digest.on_response("r", chain_of([1, 2]), None)
    assert reported(digest) == {}


def test_a_snapshot_is_worth_its_end_and_nothing_before() -> None:
    digest = PrefixDigest(snapshot_only=True)
    add_request(digest, [10, 20, 30], 31)
    kind = CacheEventKind.STORED
    digest.on_events(
        [CacheEvent(kind, 1, 0, 0, 20, 20, "r"), CacheEvent(kind, 2, 1, 20, 30, 20, "r")]
    )
    assert [reported(digest)[each][0] for each in (1, 2, 3)] == [0, 20, 20]


def filed(kind: CacheEventKind, entry: int, begin: int, end: int, file: int) -> CacheEvent:
    return CacheEvent(kind, entry, entry - 1, begin, end, end, file=file)


def test_what_is_in_files_is_reported_again_after_a_restart() -> None:
    digest = PrefixDigest(snapshot_only=False)
    add_request(digest, [10, 20, 30], 31)
    digest.on_events([stored(1, 0, 20), stored(2, 20, 30, parent=1)])
    digest.on_events([filed(CacheEventKind.FILED, 1, 0, 20, 77)])
    assert digest.has_unsaved
    saved = digest.saved()
    assert [each.file for each in saved] == [77]
    assert dict(zip(saved[0].hashes, saved[0].tokens, strict=True)) == {1: 10, 2: 20}
    assert not digest.has_unsaved
    later = PrefixDigest(snapshot_only=False)
    # The file's entry has been cut, since another one continues from within.
    later.on_events(
        [
            filed(CacheEventKind.SPILLED, 1, 0, 12, 77),
            filed(CacheEventKind.SPILLED, 2, 12, 20, 77),
            filed(CacheEventKind.SPILLED, 3, 12, 18, 78),
        ]
    )
    assert later.files() == {77: 2, 78: 3}
    later.restore(2, saved[0])
    assert reported(later) == {1: (10, Tier.DISK), 2: (20, Tier.DISK)}
    later.on_events([evicted(2)])
    assert reported(later) == {1: (10, Tier.DISK)}
    # The rest of the file is there, but no entry for it.
    later.restore(1, saved[0])
    assert reported(later) == {1: (10, Tier.DISK)}


def test_what_a_request_has_bound_is_not_revived() -> None:
    digest = PrefixDigest(snapshot_only=False)
    digest.on_events([filed(CacheEventKind.SPILLED, 1, 0, 20, 77)])
    add_request(digest, [8], 21)
    digest.on_events([stored(2, 0, 20)])
    digest.restore(1, SavedPositions(77, array("Q", [1, 2]), array("I", [10, 20])))
    assert reported(digest) == {1: (8, Tier.MEMORY), 2: (20, Tier.DISK)}


def test_nothing_is_revived_for_an_entry_of_another_file() -> None:
    digest = PrefixDigest(snapshot_only=False)
    digest.on_events([filed(CacheEventKind.SPILLED, 1, 0, 20, 78)])
    saved = SavedPositions(77, array("Q", [1]), array("I", [10]))
    digest.restore(1, saved)
    digest.restore(9, saved)
    assert reported(digest) == {}


def test_no_more_is_kept_than_the_limit_and_one_entry() -> None:
    digest = PrefixDigest(snapshot_only=False)
    for number in range(1, 6):
        hashes = [10 * number, 10 * number + 1]
        digest.on_request("r", chain_of(hashes), [10, 20], 31)
        digest.on_events(
            [stored(number, 0, 20), filed(CacheEventKind.FILED, number, 0, 20, number)]
        )
        digest.on_end("r")
    assert [each.file for each in digest.saved(3)] == [1, 2]
    assert len(digest.saved()) == 5


def test_a_removed_hash_is_reported_once() -> None:
    digest = PrefixDigest(snapshot_only=False)
    add_request(digest, [10], 24)
    digest.on_events([stored(1, 0, 23)])
    digest.take_changes()
    digest.on_events([evicted(1)])
    assert digest.take_changes() == ([], [1])
    assert digest.take_changes() == ([], [])
