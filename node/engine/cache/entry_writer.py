"""Adds entries to the tree of the prefix cache."""

from collections.abc import Callable

from node.engine.cache.budget import CacheBudget
from node.engine.cache.config import CacheConfig
from node.engine.cache.index import Node, RadixIndex, Walk
from node.engine.cache.journal import Journal
from node.engine.cache.parts import Snapshot, Span, Tokens
from node.engine.cache.recency import Recency
from node.ipc.messages import CacheEventKind

Capture = Callable[[int, int], Span]
"""Makes a span of the tokens begin..end of the prompt that is stored."""
NewSnapshot = tuple[int, Callable[[], Snapshot]]
"""Bytes of a snapshot, and the function that makes it."""


class EntryWriter:
    """Adds, splits and marks entries. Every change is noted in the journal."""

    def __init__(
        self,
        index: RadixIndex,
        budget: CacheBudget,
        journal: Journal,
        recency: Recency,
        config: CacheConfig,
    ) -> None:
        self._is_storing = True
        self._index = index
        self._budget = budget
        self._journal = journal
        self._recency = recency
        self._config = config

    def set_storing(self, *, storing: bool) -> None:
        """While `storing` is False, `store` stores nothing new."""
        self._is_storing = storing

    def store(
        self,
        tokens: Tokens,
        capture: Capture,
        snapshot: NewSnapshot | None,
        uid: str,
        salt: int = 0,
    ) -> int:
        """See `PrefixCache.store`."""
        walk = self._index.walk(tokens, salt)
        if self._is_storing and len(tokens) > 0:
            if walk.ends_at_snapshot(len(tokens)):
                snapshot = None
            if self._make_room(walk, len(tokens), snapshot):
                self._store(walk, tokens, capture, snapshot, uid, salt)
                self._budget.fit()
                self._budget.spill_ahead()
                walk = self._index.walk(tokens, salt)
        return walk.covered

    def pin(self, tokens: Tokens, salt: int = 0) -> int:
        """Protects the entries of the tokens from eviction until `clear`, if all of them are in
        memory. Returns how many are."""
        walk = self._index.walk(tokens, salt)
        if walk.covered < len(tokens):
            return walk.covered
        if walk.diverging is not None:
            # The rest of the edge stays evictable.
            self.split(walk.diverging, walk.shared - walk.diverging.begin)
            walk = self._index.walk(tokens, salt)
        for node in walk.path:
            node.pinned = True
            self._index.set_leaving(node, span=False, snapshot=False)
        return walk.covered

    def split(self, node: Node, at_tokens: int) -> Node:
        """Splits an edge; returns the new node, with the upper part."""
        upper = self._index.split(node, at_tokens)
        self._journal.note(CacheEventKind.SPLIT, node)
        return upper

    def _make_room(self, walk: Walk, length: int, snapshot: NewSnapshot | None) -> bool:
        missing_tokens = (
            length
            - walk.shared
            + sum(min(node.end, length) - node.begin for node in walk.path if node.span is None)
        )
        snapshot_bytes = 0 if snapshot is None else snapshot[0]
        span_bytes = missing_tokens * self._config.span_bytes_per_token
        deepest = walk.path[-1] if walk.path else self._index.root
        return self._budget.make_room(span_bytes + snapshot_bytes, snapshot_bytes, deepest)

    def _store(
        self,
        walk: Walk,
        tokens: Tokens,
        capture: Capture,
        snapshot: NewSnapshot | None,
        uid: str,
        salt: int,
    ) -> None:
        path = list(walk.path)
        if walk.diverging is not None and self._must_split(walk, len(tokens), snapshot):
            path[-1] = self.split(walk.diverging, walk.shared - walk.diverging.begin)
        new = [node for node in path if node.span is None]
        for node in new:
            self._index.attach_span(node, capture(node.begin, min(node.end, len(tokens))))
        edge_tokens = self._config.edge_tokens
        for begin in range(walk.shared, len(tokens), edge_tokens):
            end = min(begin + edge_tokens, len(tokens))
            span = capture(begin, end)
            parent = path[-1] if path else self._index.root
            node = self._index.add(parent, tokens[begin:end], self._recency.clock(), salt)
            self._index.attach_span(node, span)
            path.append(node)
            new.append(node)
        self._recency.mark_used(path, at_snapshot=snapshot is not None)
        had_snapshot = path[-1].has_snapshot
        if snapshot is not None:
            self._index.attach_snapshot(path[-1], snapshot[1]())
        for node in new:
            self._journal.note(CacheEventKind.STORED, node, uid)
        if snapshot is not None and not had_snapshot and (path[-1].children or not new):
            self._journal.note_usable(path[-1], uid)

    def _must_split(self, walk: Walk, length: int, snapshot: NewSnapshot | None) -> bool:
        assert walk.diverging is not None
        return walk.shared < length or snapshot is not None or walk.diverging.span is None
