"""Any order of events, against a dictionary of what was stored: what the cache returns is
exactly what belongs to the prompt, and its figures are right."""

from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from node.engine.cache.config import EDGE_TOKENS
from node.engine.cache.index import Node
from node.engine.cache.lookup import Hit
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
    evict,
    make_config,
)

# Few letters and shared beginnings, so that prompts share, extend and diverge all the time.
PROMPTS = st.builds(
    lambda head, tail: (*((1, 2, 3, 4, 5, 6)[:head]), *tail),
    st.integers(0, 6),
    st.lists(st.integers(1, 3), max_size=6),
)
BUDGETS = st.sampled_from([0, 60, 150, 400, 2_000])


class CacheMachine(RuleBasedStateMachine):
    needs_snapshot = False
    edge_tokens = EDGE_TOKENS

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.budget = 400
        self.snapshot_budget = 100
        self.tier = FakeTier(queue_limit=6)
        self.known: dict[Prefix, None] = {}
        """Every beginning of every prompt that was stored since the last clear."""
        self.snapshots: set[Prefix] = set()
        self.pinned: list[Prefix] = []
        self.held: list[Hit] = []
        self.events: dict[int, tuple[int, int, int]] = {}
        self.start()

    def start(self) -> None:
        config = make_config(
            budget_bytes=self.budget,
            snapshot_bytes=self.snapshot_budget,
            needs_snapshot=self.needs_snapshot,
            edge_tokens=self.edge_tokens,
        )
        self.cache = PrefixCache(config, self.tier, self.clock)

    # --- events --------------------------------------------------------------------------

    @rule(prompt=PROMPTS, snapshot=st.booleans())
    def stores(self, prompt: Prefix, snapshot: bool) -> None:
        tokens = np.array(prompt, np.int32)
        before = self.cache.match(tokens, len(tokens))
        calls: list[tuple[int, int]] = []
        new = (SNAPSHOT_BYTES, lambda: FakeSnapshot(prompt)) if snapshot else None
        covered = self.cache.store(tokens, capture_of(tokens, calls), new, "r")
        assert 0 <= covered <= len(prompt)
        if calls:
            assert covered == len(prompt) or self.over_lease()
            assert calls[-1][1] <= len(prompt) and (calls[0][0] >= before.tokens)
            assert all(left[1] <= right[0] for left, right in zip(calls, calls[1:], strict=False))
        for end in range(1, len(prompt) + 1):
            self.known[prompt[:end]] = None
        if snapshot:
            self.snapshots.add(prompt)

    @rule(prompt=PROMPTS, cut=st.integers(-1, 1))
    def uses(self, prompt: Prefix, cut: int) -> None:
        tokens = np.array(prompt, np.int32)
        hit = self.cache.match(tokens, len(prompt) - cut)
        assert hit.tokens <= hit.disk_tokens <= max(min(len(prompt), len(prompt) - cut), 0)
        assert hit.disk_tokens <= self.cache._index.walk(tokens).shared
        assert (hit.disk_bytes > 0) == (hit.disk_tokens > hit.tokens)
        self.check_taken(hit, prompt)

    def check_taken(self, hit: Hit, prompt: Prefix) -> None:
        spans, snapshot = self.cache.use(hit)
        cells: list[Prefix] = []
        for span, low, high in spans:
            assert isinstance(span, FakeSpan) and 0 <= low < high <= span.tokens
            cells.extend(span.cells[low:high])
        assert cells == [prompt[: end + 1] for end in range(hit.tokens)]
        assert all(cell in self.known for cell in cells)
        if self.needs_snapshot and hit.tokens > 0:
            assert isinstance(snapshot, FakeSnapshot)
            assert snapshot.prefix == prompt[: hit.tokens]
            assert snapshot.prefix in self.snapshots
        else:
            assert snapshot is None

    @rule(prompt=PROMPTS)
    def promotes(self, prompt: Prefix) -> None:
        hit = self.cache.match(np.array(prompt, np.int32), len(prompt))
        self.cache.hold(hit)
        if self.cache.promote(hit):
            assert self.cache.promoting(hit) or hit.disk_tokens == hit.tokens
            self.held.append(hit)
        else:
            self.cache.release(hit)

    @rule(prompt=PROMPTS)
    def holds(self, prompt: Prefix) -> None:
        hit = self.cache.match(np.array(prompt, np.int32), len(prompt))
        self.cache.hold(hit)
        self.held.append(hit)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def releases(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.held) - 1))
        self.cache.release(self.held.pop(at))

    @rule(prompt=PROMPTS)
    def pins(self, prompt: Prefix) -> None:
        tokens = np.array(prompt, np.int32)
        pinned = self.cache.pin(tokens)
        assert pinned == self.in_memory(tokens)
        if pinned == len(prompt):
            self.pinned.append(prompt)

    @rule(budget=BUDGETS, share=st.sampled_from([0, 4, 1]))
    def gets_a_lease(self, budget: int, share: int) -> None:
        self.budget = budget
        self.snapshot_budget = budget // share if share else 0
        self.cache.set_lease(self.budget, self.snapshot_budget)
        self.check_lease()

    @rule(nbytes=st.integers(1, 200))
    def evicts(self, nbytes: int) -> None:
        evict(self.cache, nbytes)

    @rule(storing=st.booleans())
    def sets_storing(self, storing: bool) -> None:
        self.cache.set_storing(storing=storing)
        self.cache.set_storing(storing=True)

    @rule()
    def clears(self) -> None:
        self.cache.clear()
        self.forget_all()
        assert self.cache.nbytes == self.cache.entries == self.cache.disk_nbytes == 0

    def forget_all(self) -> None:
        self.known.clear()
        self.snapshots.clear()
        self.pinned.clear()

    @rule(seconds=st.floats(0.1, 1_000))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def flushes(self) -> None:
        self.cache.flush()

    @rule(refuses=st.booleans())
    def tier_refuses(self, refuses: bool) -> None:
        self.tier.refuses = refuses

    @precondition(lambda self: self.tier.writing or self.tier.reading)
    @rule(data=st.data(), how=st.sampled_from(["succeed", "succeed", "succeed", "fail"]))
    def tier_completes_one(self, data: st.DataObject, how: str) -> None:
        jobs = [*self.tier.writing, *self.tier.reading]
        file = data.draw(st.sampled_from(jobs))
        if file in self.tier.writing:
            (self.tier.finish_write if how == "succeed" else self.tier.fail_write)(file)
        else:
            (self.tier.finish_read if how == "succeed" else self.tier.lose)(file)

    @rule()
    def tier_completes_all(self) -> None:
        self.tier.finish()
        self.polls()

    @precondition(lambda self: self.tier.files)
    @rule(data=st.data())
    def a_file_is_lost(self, data: st.DataObject) -> None:
        self.tier.lose(data.draw(st.sampled_from(sorted(self.tier.files))))

    @rule()
    def polls(self) -> None:
        self.cache.poll()
        self.check_lease()

    def check_lease(self) -> None:
        """Beyond the lease is only what is in use, or is evicted once it is written."""
        index = self.cache._index
        loose = [
            node for node in index.resident if not node.protected and node not in index.leaving
        ]
        assert self.cache.nbytes - index.leaving_bytes <= self.budget or not loose

    @rule()
    def restarts(self) -> None:
        self.tier = self.tier.restarted()
        self.held.clear()
        self.pinned.clear()
        self.events.clear()
        self.start()

    # --- what always holds -----------------------------------------------------------------

    def nodes(self) -> list[Node]:
        return self.cache._index.root.subtree()[1:]

    def in_memory(self, tokens: Any) -> int:
        covered = 0
        walk = self.cache._index.walk(tokens)
        for node in walk.path:
            if node.span is None:
                break
            covered = min(node.end, walk.shared)
        return covered

    def over_lease(self) -> bool:
        return self.cache.nbytes > self.budget

    @invariant()
    def keys_are_as_long_as_what_they_cover(self) -> None:
        for node in self.nodes():
            assert node.parent is not None and node.begin == node.parent.end
            assert node.parent.children[int(node.key[0])] is node
            assert node.span is None or node.span.tokens == len(node.key)

    @invariant()
    def counters_are_the_sums_over_the_nodes(self) -> None:
        index = self.cache._index
        nodes = self.nodes()
        assert index.size == len(nodes) == self.cache.entries
        assert index.span_bytes == sum(node.span_bytes for node in nodes)
        assert index.snapshot_bytes == sum(node.snapshot_bytes for node in nodes)
        assert set(index.resident) == {node for node in nodes if node.resident}
        assert set(index.leaving) <= set(index.resident)
        for node in [index.root, *nodes]:
            assert node.resident_below == sum(each.resident for each in node.subtree()[1:])
        reserved = sum(file.nbytes for file in self.cache._spiller.reading.values())
        assert self.cache.nbytes == index.nbytes + reserved

    @invariant()
    def nothing_is_owned_twice(self) -> None:
        spans = [id(node.span) for node in self.nodes() if node.span is not None]
        assert len(spans) == len(set(spans))
        parts = [
            (file.number, node.file_begin + at)
            for node in self.nodes()
            if (file := node.file) is not None
            for at in range(len(node.key))
        ]
        assert len(parts) == len(set(parts))

    @invariant()
    def what_is_on_disk_can_be_reached(self) -> None:
        files = self.cache._spiller.files
        for node in self.nodes():
            assert node.span is not None or node.on_disk
            if node.file is not None:
                assert node in node.file.owners and files[node.file.number] is node.file
                assert node.parent is not None
                assert node.parent.parent is None or node.parent.file is not None
            if node.snapshot_file is not None:
                assert node.file is not None and node.snapshot_file.owners == [node]
        owned = {n.file for n in self.nodes()} | {n.snapshot_file for n in self.nodes()}
        assert set(files.values()) == owned - {None}
        assert set(self.cache._spiller.reading) <= set(files)

    @invariant()
    def what_is_pinned_stays(self) -> None:
        for prompt in self.pinned:
            assert self.in_memory(np.array(prompt, np.int32)) == len(prompt)

    @invariant()
    def holds_add_up(self) -> None:
        root = self.cache._index.root
        live = [hit for hit in self.held if _root_of(hit.disk_node) is root]
        assert root.holds == len(live)

    @invariant()
    def the_agent_knows_every_entry(self) -> None:
        for event in self.cache.events():
            if event.kind is CacheEventKind.EVICTED:
                del self.events[event.entry]
                continue
            if event.kind is CacheEventKind.SPLIT:
                parent, begin, usable = self.events[event.entry]
                self.events[event.parent] = (parent, begin, event.begin_tokens)
                assert usable >= 0
            elif event.kind in (CacheEventKind.PROMOTED, CacheEventKind.EVICTED):
                assert event.entry in self.events
            self.events[event.entry] = (event.parent, event.begin_tokens, event.usable_tokens)
        known = {entry: reported[:2] for entry, reported in self.events.items()}
        for node in self.nodes():
            assert node.parent is not None
            assert known.pop(node.entry) == (node.parent.entry, node.begin)
        assert known == {}

    def teardown(self) -> None:
        self.cache.clear()
        assert self.cache.nbytes == 0


def _root_of(node: Node) -> Node:
    return [node, *node.ancestors()][-1]


class SnapshotCacheMachine(CacheMachine):
    """The same for a model of which some layers can be restored only at a snapshot."""

    needs_snapshot = True

    @invariant()
    def the_agent_knows_what_is_usable(self) -> None:
        for node in self.nodes():
            usable = next((n.end for n in (node, *node.ancestors()) if n.has_snapshot), 0)
            assert self.events[node.entry][2] == usable or node.snapshot is None


class ShortEdgesMachine(CacheMachine):
    """The same where a prompt takes a chain of edges."""

    edge_tokens = 3


class SnapshotShortEdgesMachine(SnapshotCacheMachine):
    edge_tokens = 3


_SETTINGS = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    phases=(Phase.reuse, Phase.generate, Phase.shrink),
    suppress_health_check=[HealthCheck.too_slow],
)

TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = _SETTINGS
TestSnapshotCacheMachine = SnapshotCacheMachine.TestCase
TestSnapshotCacheMachine.settings = _SETTINGS
TestShortEdgesMachine = ShortEdgesMachine.TestCase
TestShortEdgesMachine.settings = _SETTINGS
TestSnapshotShortEdgesMachine = SnapshotShortEdgesMachine.TestCase
TestSnapshotShortEdgesMachine.settings = _SETTINGS
