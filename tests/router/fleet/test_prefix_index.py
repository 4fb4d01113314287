"""The mirror of what nodes report of their prefixes."""

import random
from array import array
from collections.abc import Iterable

import pytest

from node.protocol.chain.prefix import Chain, Head
from node.protocol.messages import PrefixDelta, PrefixGone, PrefixSnapshot, Stored
from node.protocol.prefixes import Entry, Tier, pack_entries, pack_hashes
from router.coverage import NOT_COVERED, Coverage
from router.fleet import prefix_index
from router.fleet.prefix_index import PrefixIndex

MEMORY, DISK = Tier.MEMORY, Tier.DISK


def chain(*hashes: int) -> Chain:
    sizes = [1000 * (position + 1) for position in range(len(hashes))]
    return Chain(array("Q", hashes), array("I", sizes), array("I", [len(hashes)]), preamble=0)


def entries(hashes: Iterable[int], *, per_position: int = 100, tier: Tier = MEMORY) -> list[Entry]:
    return [
        Entry(each, per_position * (position + 1), tier) for position, each in enumerate(hashes)
    ]


def snapshot(
    cached: Iterable[Entry],
    *,
    model: str = "m",
    epoch: int = 1,
    seq: int = 0,
    part: tuple[int, int] = (0, 1),
) -> PrefixSnapshot:
    return PrefixSnapshot(model, epoch, seq, *part, entries=pack_entries(cached))


def delta(
    seq: int,
    changed: Iterable[Entry] = (),
    removed: Iterable[int] = (),
    *,
    model: str = "m",
    epoch: int = 1,
) -> PrefixDelta:
    return PrefixDelta(model, epoch, seq, pack_entries(changed), pack_hashes(removed))


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


CHAIN = chain(1, 2, 3, 4)


@pytest.fixture
def index() -> PrefixIndex:
    return PrefixIndex(Clock())


def test_a_node_that_has_reported_nothing_covers_nothing(index: PrefixIndex) -> None:
    assert index.coverage("a", CHAIN) == NOT_COVERED
    assert index.on_snapshot("a", snapshot(entries((1, 2))))
    assert index.coverage("b", CHAIN) == NOT_COVERED
    assert index.coverage("a", chain(9)) == NOT_COVERED
    assert index.coverage("a", chain()) == NOT_COVERED


def test_the_deepest_position_of_a_chain_counts(index: PrefixIndex) -> None:
    index.on_snapshot("a", snapshot(entries((1, 2, 3, 33))))
    assert index.coverage("a", CHAIN) == Coverage(3, 300, 300)
    assert index.coverage("a", chain(1, 2)) == Coverage(2, 200, 200)


def test_what_must_be_read_from_disk_is_distinguished(index: PrefixIndex) -> None:
    cached = entries((1, 2, 3, 4))
    index.on_snapshot("a", snapshot(cached[:2] + [each._replace(tier=DISK) for each in cached[2:]]))
    assert index.coverage("a", CHAIN) == Coverage(4, 400, 200)
    index.on_snapshot("a", snapshot(entries((1, 2, 3), tier=DISK)))
    assert index.coverage("a", CHAIN) == Coverage(3, 300, 0)


def test_positions_from_which_nothing_is_usable_lead_to_those_that_help(index: PrefixIndex) -> None:
    index.on_snapshot(
        "a", snapshot([Entry(1, 0, MEMORY), Entry(2, 0, MEMORY), Entry(3, 300, DISK)])
    )
    assert index.coverage("a", chain(1, 2)) == Coverage(2, 0, 0)
    assert index.coverage("a", CHAIN) == Coverage(3, 300, 0)


def test_a_snapshot_arrives_in_pieces_and_voids_what_was_known(index: PrefixIndex) -> None:
    index.on_snapshot("a", snapshot(entries((7, 8))))
    cached = entries((1, 2, 3, 4))
    assert index.on_snapshot("a", snapshot(cached[:2], epoch=1, seq=5, part=(0, 2)))
    assert index.coverage("a", chain(7, 8)) == NOT_COVERED
    assert index.coverage("a", CHAIN) == Coverage(2, 200, 200)
    assert index.on_snapshot("a", snapshot(cached[2:], epoch=1, seq=5, part=(1, 2)))
    assert index.coverage("a", CHAIN) == Coverage(4, 400, 400)
    assert index.on_delta("a", delta(6, removed=(4,)))
    assert index.coverage("a", CHAIN) == Coverage(3, 300, 300)


@pytest.mark.parametrize(
    "wrong",
    [
        {"part": (2, 3)},
        {"part": (1, 3), "seq": 6},
        {"part": (1, 3), "epoch": 2},
        {"part": (1, 3), "model": "other"},
    ],
)
def test_a_piece_that_does_not_follow_is_a_gap(index: PrefixIndex, wrong: dict[str, int]) -> None:
    assert index.on_snapshot("a", snapshot(entries((1, 2)), seq=5, part=(0, 3)))
    fields = {"seq": 5} | wrong
    assert not index.on_snapshot("a", snapshot(entries((1, 2, 3)), **fields))  # type: ignore[arg-type]
    assert not index.on_delta("a", delta(6))


def test_entries_in_any_order_never_cover_more_than_is_cached(index: PrefixIndex) -> None:
    cached = entries(range(1, 200))
    random.Random(3).shuffle(cached)
    whole = chain(*range(1, 200))
    for part in range(4):
        piece = cached[50 * part : 50 * (part + 1)]
        index.on_snapshot("a", snapshot(piece, part=(part, 4)))
        known = {each.hash for each in cached[: 50 * (part + 1)]}
        covered = index.coverage("a", whole)
        assert covered.positions == 0 or covered.positions in known
        assert covered.usable_tokens == 100 * covered.positions
    assert index.coverage("a", whole).positions == 199


def test_deltas_change_and_remove_entries(index: PrefixIndex) -> None:
    index.on_snapshot("a", snapshot(entries((1, 2)), seq=3))
    assert index.on_delta("a", delta(4, entries((1, 2, 3, 4), per_position=90)))
    assert index.coverage("a", CHAIN) == Coverage(4, 360, 360)
    assert index.on_delta("a", delta(5, [Entry(3, 270, DISK)], removed=(4, 99)))
    assert index.coverage("a", CHAIN) == Coverage(3, 270, 180)


def test_a_missing_delta_is_noticed_and_one_that_is_included_is_passed_over(
    index: PrefixIndex,
) -> None:
    index.on_snapshot("a", snapshot(entries((1, 2)), seq=3))
    assert index.on_delta("a", delta(3, removed=(1, 2)))
    assert not index.on_delta("a", delta(5))
    assert index.coverage("a", CHAIN) == Coverage(2, 200, 200)
    assert index.on_snapshot("a", snapshot(entries((1,)), seq=5))
    assert index.on_delta("a", delta(6))


def test_a_model_that_was_loaded_lately_begins_with_its_first_delta(index: PrefixIndex) -> None:
    assert index.on_delta("a", delta(1, entries((1, 2))))
    assert index.coverage("a", CHAIN) == Coverage(2, 200, 200)
    assert index.on_delta("a", delta(1, entries((1,)), epoch=2))
    assert index.coverage("a", CHAIN) == Coverage(1, 100, 100)
    assert not index.on_delta("a", delta(2, epoch=3))


def test_an_engine_that_has_ended_has_nothing_and_its_late_events_are_ignored(
    index: PrefixIndex,
) -> None:
    index.on_snapshot("a", snapshot(entries((1, 2)), epoch=4))
    index.on_gone("a", PrefixGone("m", 4))
    assert index.coverage("a", CHAIN) == NOT_COVERED
    assert index.on_delta("a", delta(1, entries((1,)), epoch=4))
    assert index.on_snapshot("a", snapshot(entries((1,)), epoch=4))
    assert index.on_delta("a", delta(7, entries((1,)), epoch=3))
    assert index.coverage("a", CHAIN) == NOT_COVERED
    assert index.on_snapshot("a", snapshot(entries((1,)), epoch=5))
    index.on_gone("a", PrefixGone("m", 4))
    assert index.coverage("a", CHAIN) == Coverage(1, 100, 100)


def test_models_of_a_node_are_kept_apart(index: PrefixIndex) -> None:
    index.on_snapshot("a", snapshot(entries((1, 2))))
    index.on_snapshot("a", snapshot(entries((7, 8)), model="other"))
    assert index.entries_by_node() == {"a": 4}
    index.on_gone("a", PrefixGone("m", 1))
    assert index.coverage("a", CHAIN) == NOT_COVERED
    assert index.coverage("a", chain(7, 8)) == Coverage(2, 200, 200)


def test_nothing_is_valid_that_a_lost_node_had_reported(index: PrefixIndex) -> None:
    for node_id in ("a", "b"):
        index.on_snapshot(node_id, snapshot(entries((1, 2)), epoch=9))
    index.forget_node("a")
    assert index.coverage("a", CHAIN) == NOT_COVERED
    assert index.coverage("b", CHAIN) == Coverage(2, 200, 200)
    # Epochs of a restarted agent begin anew.
    assert index.on_snapshot("a", snapshot(entries((1,)), epoch=1))
    assert index.coverage("a", CHAIN) == Coverage(1, 100, 100)


def test_an_entry_that_delivered_less_promises_no_more_until_reported_anew() -> None:
    clock = Clock()
    index = PrefixIndex(clock)
    index.on_snapshot("a", snapshot([*entries((1, 2, 3)), Entry(50, 777, MEMORY)]))
    clock.now_s += 1
    index.lower("a", CHAIN, 120, reported_before_s=clock.now_s)
    assert index.coverage("a", CHAIN) == Coverage(3, 120, 120)
    assert index.coverage("a", chain(1)) == Coverage(1, 100, 100)
    assert index.coverage("a", chain(50)) == Coverage(1, 777, 777)
    index.on_delta("a", delta(1, [Entry(3, 300, DISK)]))
    assert index.coverage("a", CHAIN) == Coverage(3, 300, 120)


def test_what_was_reported_after_a_request_had_begun_outlives_its_disappointment() -> None:
    clock = Clock()
    index = PrefixIndex(clock)
    index.on_snapshot("a", snapshot(entries((1, 2))))
    clock.now_s += 1
    granted_s = clock.now_s
    index.on_delta("a", delta(1, removed=(2,)))
    clock.now_s += 1
    index.on_delta("a", delta(2, entries((1, 2, 3, 4))[1:]))
    index.lower("a", CHAIN, 0, reported_before_s=granted_s)
    assert index.coverage("a", chain(1)) == Coverage(1, 0, 0)
    assert index.coverage("a", CHAIN) == Coverage(4, 400, 400)


def test_bytes_that_are_no_entries_are_refused(index: PrefixIndex) -> None:
    with pytest.raises(ValueError):
        index.on_snapshot("a", PrefixSnapshot("m", 1, 0, 0, 1, b"12345"))
    with pytest.raises(ValueError):
        index.on_delta("b", PrefixDelta("m", 1, 1, b"", b"12345"))


def test_a_foreign_node_is_covered_by_what_it_served(index: PrefixIndex) -> None:
    index.on_served("f", CHAIN, 4000)
    assert index.coverage("f", chain(1, 2, 99)) == Coverage(2, 2000, 2000)
    assert index.entries_by_node() == {"f": 4}
    index.forget_node("f")
    assert index.coverage("f", CHAIN) == NOT_COVERED and index.entries_by_node() == {}


@pytest.mark.parametrize("seed", range(20))
def test_the_mirror_equals_the_truth_after_any_changes(seed: int) -> None:
    """A tree of positions that grows, moves between tiers and is evicted from its leaves."""
    rng = random.Random(seed)
    index = PrefixIndex()
    truth: dict[int, Entry] = {}
    paths: dict[int, list[int]] = {0: []}
    seq = 0
    index.on_snapshot("a", snapshot(()))
    for step in range(200):
        changed: dict[int, Entry] = {}
        removed: set[int] = set()
        leaves = [each for each in truth if all(each not in path[:-1] for path in paths.values())]
        if leaves and rng.random() < 0.4:
            leaf = rng.choice(leaves)
            removed.add(leaf)
            del truth[leaf], paths[leaf]
        else:
            path = rng.choice(list(paths.values()))
            each = step + 1
            changed[each] = Entry(each, 10 * (len(path) + 1), MEMORY)
            paths[each] = [*path, each]
        truth |= changed
        if rng.random() < 0.05:
            index.on_snapshot("a", snapshot(truth.values(), seq=seq))
            continue
        seq += 1
        assert index.on_delta("a", delta(seq, changed.values(), removed))
    for path in paths.values():
        expected = Coverage(len(path), 10 * len(path), 10 * len(path))
        assert index.coverage("a", chain(*path, 10**9)) == expected
    assert index.entries_by_node()["a"] == len(truth)


def test_the_ends_of_stored_responses_are_kept_the_least_recently_used_dropped(
    index: PrefixIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefix_index, "MOST_HEADS", 2)
    for number in (1, 2):
        index.on_stored(Stored(f"resp_{number}", "r/k", number, 10 * number, 100 * number))
    assert index.head("resp_1") == Head(1, 10, 100)
    index.on_stored(Stored("resp_3", "r/k", 3, 30, 300))
    assert index.head("resp_2") is None
    assert (index.head("resp_1"), index.head("resp_3")) == (Head(1, 10, 100), Head(3, 30, 300))
    index.on_stored(Stored("resp_1", "r/k", 4, 40, 400))
    index.on_stored(Stored("resp_5", "r/k", 5, 50, 500))
    assert (index.head("resp_1"), index.head("resp_3")) == (Head(4, 40, 400), None)


def test_a_node_that_reports_too_much_is_ignored_beyond_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prefix_index, "MOST_ENTRIES", 6)
    monkeypatch.setattr(prefix_index, "MAX_MODELS", 2)
    index = PrefixIndex()
    for seq in range(1, 9):
        hashes = range(4 * seq, 4 * seq + 4)
        assert index.on_delta("n", delta(seq, entries(hashes)))
    assert index.entries_by_node() == {"n": 8}
    assert index.on_delta("n", delta(9, removed=range(8)))
    assert index.on_delta("n", delta(10, entries(CHAIN.hashes)))
    assert index.coverage("n", CHAIN).positions == 4
    for number in range(9):
        assert index.on_snapshot("n", snapshot((), model=str(number)))
        assert index.on_delta("n", delta(1, model=f"d{number}"))
        index.on_gone("n", PrefixGone(f"g{number}", 1))
    assert len(index._mirrors["n"]) == 2
