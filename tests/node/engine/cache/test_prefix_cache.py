import numpy as np
import pytest

from node.engine.cache.index import salt_number
from node.engine.cache.lookup import Hit
from node.engine.cache.parts import Tokens
from node.engine.cache.prefix_cache import PrefixCache
from node.ipc.messages import CacheEvent, CacheEventKind
from tests.fakes import FakeClock
from tests.node.engine.cache.fake_parts import (
    SNAPSHOT_BYTES,
    TOKEN_BYTES,
    FakeSnapshot,
    FakeSpan,
    FakeTier,
    Prefix,
    capture_of,
    count,
    evict,
    ids,
    make_config,
    store,
)


def _cache(
    *, budget_bytes: int = 100_000, snapshot_bytes: int = 0, needs_snapshot: bool = False
) -> PrefixCache:
    config = make_config(
        budget_bytes=budget_bytes, snapshot_bytes=snapshot_bytes, needs_snapshot=needs_snapshot
    )
    return PrefixCache(config, None, FakeClock())


def _match(cache: PrefixCache, tokens: Tokens) -> Hit:
    return cache.match(tokens, len(tokens) - 1)


def _cells(cache: PrefixCache, hit: Hit) -> list[Prefix]:
    spans, _ = cache.use(hit)
    cells: list[Prefix] = []
    for span, low, high in spans:
        assert isinstance(span, FakeSpan)
        cells.extend(span.cells[low:high])
    return cells


def _prefixes(tokens: Tokens, length: int) -> list[Prefix]:
    return [tuple(tokens[: end + 1].tolist()) for end in range(length)]


# --- the five kinds of hit -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        (count(1, 11), 9),
        (count(1, 6), 4),
        (count(1, 21), 10),
        (np.concatenate([count(1, 5), count(50, 60)]), 4),
        (count(50, 60), 0),
    ],
    ids=["exact", "prefix of an entry", "longer than an entry", "diverging", "none"],
)
def test_what_a_prompt_can_reuse_of_an_entry(prompt: Tokens, expected: int) -> None:
    cache = _cache()
    assert store(cache, count(1, 11)) == 10
    hit = _match(cache, prompt)
    assert (hit.tokens, hit.disk_tokens, hit.disk_bytes) == (expected, expected, 0)
    assert _cells(cache, hit) == _prefixes(prompt, expected)


def test_a_system_prompt_is_shared_across_sessions_and_stored_once() -> None:
    cache = _cache()
    system = count(100, 120)
    for session in range(3):
        store(cache, np.concatenate([system, count(session * 10 + 1, session * 10 + 9)]))
    assert cache.nbytes == (20 + 3 * 8) * 10
    prompt = np.concatenate([system, ids(7777, 1)])
    hit = _match(cache, prompt)
    assert hit.tokens == 20
    assert _cells(cache, hit) == _prefixes(prompt, 20)


def test_a_match_changes_nothing() -> None:
    cache = _cache()
    store(cache, count(1, 11))
    cache.events()
    _match(cache, np.concatenate([count(1, 5), count(50, 60)]))
    assert cache.entries == 1 and cache.events() == []


def test_a_long_prompt_takes_a_chain_of_edges_each_of_which_can_be_evicted_alone() -> None:
    cache = PrefixCache(make_config(edge_tokens=4), None, FakeClock())
    prompt = count(1, 11)
    calls: list[tuple[int, int]] = []
    assert cache.store(prompt, capture_of(prompt, calls), None, "r") == 10
    assert calls == [(0, 4), (4, 8), (8, 10)] and cache.entries == 3
    assert [event.end_tokens for event in cache.events()] == [4, 8, 10]
    hit = _match(cache, prompt)
    assert _cells(cache, hit) == _prefixes(prompt, hit.tokens)
    assert evict(cache, 1) == 2 * TOKEN_BYTES
    assert _match(cache, prompt).tokens == 8


def test_a_prompt_that_is_not_all_there_is_not_pinned() -> None:
    cache = _cache()
    store(cache, count(1, 6))
    assert cache.pin(count(1, 11)) == 5
    assert cache.pinned_nbytes == 0 and evict(cache, 1_000) == 5 * TOKEN_BYTES


def test_a_held_hit_outlives_a_split() -> None:
    cache = _cache()
    store(cache, count(1, 11))
    hit = _match(cache, count(1, 9))
    cache.hold(hit)
    store(cache, np.concatenate([count(1, 4), count(50, 60)]))
    assert _cells(cache, hit) == _prefixes(count(1, 9), 7)
    cache.release(hit)


def test_a_hit_that_was_cleared_is_an_error() -> None:
    cache = _cache()
    store(cache, count(1, 11))
    hit = _match(cache, count(1, 11))
    cache.clear()
    with pytest.raises(LookupError):
        cache.use(hit)


# --- snapshots ---------------------------------------------------------------------------


def test_a_model_that_needs_snapshots_reuses_up_to_one() -> None:
    cache = _cache(needs_snapshot=True)
    store(cache, count(1, 6), snapshot=True)
    store(cache, count(1, 11), snapshot=True)
    assert _match(cache, count(1, 11)).tokens == 5
    hit = _match(cache, count(1, 21))
    assert hit.tokens == 10
    spans, snapshot = cache.use(hit)
    assert sum(high - low for _, low, high in spans) == 10
    assert snapshot == FakeSnapshot(tuple(range(1, 11)))
    assert _match(cache, np.concatenate([count(1, 9), ids(99, 99)])).tokens == 5


def test_a_snapshot_inside_an_edge_splits_it() -> None:
    cache = _cache(needs_snapshot=True)
    calls: list[tuple[int, int]] = []
    store(cache, count(1, 11), snapshot=True)
    prompt = count(1, 6)
    new = (SNAPSHOT_BYTES, lambda: FakeSnapshot((1, 2, 3, 4, 5)))
    assert cache.store(prompt, capture_of(prompt, calls), new, "r2") == 5
    assert calls == []
    assert cache.entries == 2
    assert _match(cache, count(1, 9)).tokens == 5


def test_a_second_snapshot_of_the_same_point_is_not_made() -> None:
    cache = _cache(needs_snapshot=True)
    store(cache, count(1, 6), snapshot=True)
    prompt = count(1, 6)

    def make() -> FakeSnapshot:
        raise AssertionError("made")

    assert cache.store(prompt, capture_of(prompt), (SNAPSHOT_BYTES, make), "r2") == 5
    assert cache.snapshot_nbytes == SNAPSHOT_BYTES


def test_snapshots_have_a_budget_of_their_own_and_the_least_valuable_is_evicted() -> None:
    cache = _cache(snapshot_bytes=3 * SNAPSHOT_BYTES, needs_snapshot=True)
    # Prefill seconds from the snapshot before: 10, 2, 10.
    for end in (11, 13, 23):
        store(cache, count(1, end), snapshot=True)
    store(cache, count(1, 33), snapshot=True)
    assert cache.snapshot_nbytes == 3 * SNAPSHOT_BYTES
    assert [_match(cache, count(1, end + 1)).tokens for end in (11, 13, 23, 33)] == [10, 10, 22, 32]
    assert cache.match(count(1, 23), 12).tokens == 10


def test_what_leads_to_no_snapshot_is_not_kept() -> None:
    cache = _cache(snapshot_bytes=SNAPSHOT_BYTES, needs_snapshot=True)
    store(cache, count(1, 11), snapshot=True)
    store(cache, count(50, 70), snapshot=True)
    assert _match(cache, count(1, 21)).tokens == 0
    assert cache.nbytes == 20 * 10 + SNAPSHOT_BYTES


def test_nothing_is_stored_where_its_snapshot_does_not_fit() -> None:
    cache = _cache(snapshot_bytes=SNAPSHOT_BYTES - 1, needs_snapshot=True)
    assert store(cache, count(1, 11), snapshot=True) == 0
    assert cache.entries == 0


# --- storing -------------------------------------------------------------------------------


def test_only_what_is_missing_is_captured() -> None:
    cache = _cache()
    store(cache, count(1, 11))
    prompt = np.concatenate([count(1, 5), count(50, 60)])
    calls: list[tuple[int, int]] = []
    assert cache.store(prompt, capture_of(prompt, calls), None, "r2") == 14
    assert calls == [(4, 14)]
    assert cache.store(prompt, capture_of(prompt, calls), None, "r3") == 14
    assert cache.store(prompt[:3], capture_of(prompt, calls), None, "r3") == 3
    assert calls == [(4, 14)] and cache.entries == 3


def test_nothing_is_stored_while_storing_is_off() -> None:
    cache = _cache()
    cache.set_storing(storing=False)
    assert store(cache, count(1, 11)) == 0
    cache.set_storing(storing=True)
    assert store(cache, count(1, 11)) == 10
    cache.set_storing(storing=False)
    assert store(cache, count(1, 21)) == 10


def test_an_empty_prompt_is_nothing() -> None:
    cache = _cache()
    assert store(cache, ids()) == 0
    assert cache.match(ids(), -1).tokens == 0
    assert cache.pin(ids()) == 0


def test_a_capture_of_the_wrong_length_is_an_error() -> None:
    cache = _cache()
    with pytest.raises(ValueError, match="tokens for a key"):
        cache.store(count(1, 11), lambda begin, end: FakeSpan(((1,),)), None, "r1")
    assert cache.nbytes == 0


# --- events ----------------------------------------------------------------------------------


def test_the_agent_receives_events_of_stores_splits_and_evictions() -> None:
    cache = _cache()
    store(cache, count(1, 11), uid="r1")
    store(cache, np.concatenate([count(1, 5), count(50, 60)]), uid="r2")
    stored, split, second = cache.events()
    assert stored == CacheEvent(CacheEventKind.STORED, 1, 0, 0, 10, 10, "r1")
    assert split == CacheEvent(CacheEventKind.SPLIT, 1, 2, 4, 10, 10)
    assert second == CacheEvent(CacheEventKind.STORED, 3, 2, 4, 14, 14, "r2")
    cache.clear()
    assert sorted((e.kind, e.entry) for e in cache.events()) == [
        (CacheEventKind.EVICTED, entry) for entry in (1, 2, 3)
    ]


def test_events_report_how_much_is_usable_where_snapshots_count() -> None:
    cache = _cache(snapshot_bytes=2 * SNAPSHOT_BYTES, needs_snapshot=True)
    store(cache, count(1, 6), snapshot=True)
    store(cache, count(1, 11))
    assert [(e.entry, e.usable_tokens) for e in cache.events()] == [(1, 5), (2, 5)]
    store(cache, count(1, 11), snapshot=True)
    assert [(e.kind, e.entry, e.usable_tokens) for e in cache.events()] == [
        (CacheEventKind.STORED, 2, 10)
    ]


def test_events_follow_a_snapshot_that_is_evicted() -> None:
    cache = _cache(snapshot_bytes=2 * SNAPSHOT_BYTES, needs_snapshot=True)
    store(cache, count(1, 6), snapshot=True)
    store(cache, count(1, 21), snapshot=True)
    cache.events()
    store(cache, count(1, 41), snapshot=True)
    first, *_ = cache.events()
    assert (first.kind, first.entry, first.usable_tokens) == (CacheEventKind.STORED, 1, 0)


def test_clear_forgets_pins_too() -> None:
    cache = _cache(budget_bytes=100)
    store(cache, count(1, 11))
    cache.pin(count(1, 11))
    cache.clear()
    assert (cache.nbytes, cache.entries) == (0, 0)
    store(cache, count(1, 11))
    assert store(cache, count(50, 60)) == 10


# --- salts -----------------------------------------------------------------------------------


def _store_salted(cache: PrefixCache, tokens: Tokens, salt: int) -> None:
    cache.store(tokens, capture_of(tokens), None, "r1", salt)


def test_prompts_of_other_salts_share_nothing() -> None:
    cache = _cache()
    one, two = salt_number("one"), salt_number("two")
    _store_salted(cache, count(1, 10), one)
    tokens = count(1, 10)
    assert [cache.match(tokens, 9, salt).tokens for salt in (one, two, 0)] == [9, 0, 0]
    store(cache, count(1, 10))
    _store_salted(cache, np.concatenate([count(1, 5), count(50, 60)]), one)
    assert [cache.match(tokens, 9, salt).tokens for salt in (one, two, 0)] == [9, 0, 9]
    assert cache.pin(count(1, 10), one) == 9 and cache.pin(count(1, 10), two) == 0
    evict(cache, cache.nbytes)
    # What is pinned stays, and only that.
    assert [cache.match(tokens, 9, salt).tokens for salt in (one, two, 0)] == [9, 0, 0]


def test_salts_stay_apart_through_a_restart_from_disk() -> None:
    tier = FakeTier()
    config = make_config(edge_tokens=4)
    cache = PrefixCache(config, tier, FakeClock())
    one, two, prompt = salt_number("one"), salt_number("two"), count(1, 10)
    _store_salted(cache, prompt, one)
    _store_salted(cache, np.concatenate([count(1, 7), count(50, 60)]), one)
    while cache.flush():
        tier.finish()
        cache.poll()
    again = PrefixCache(config, tier.restarted(), FakeClock())
    assert [again.match(prompt, 9, salt).disk_tokens for salt in (one, two, 0)] == [9, 0, 0]


def test_only_the_entry_of_the_request_names_it_where_a_snapshot_was_added_to_it() -> None:
    cache = _cache(needs_snapshot=True)
    store(cache, count(1, 11), snapshot=True, uid="long")
    cache.events()
    store(cache, count(1, 6), snapshot=True, uid="short")
    named = [event.end_tokens for event in cache.events() if event.uid == "short"]
    assert named == [5]
