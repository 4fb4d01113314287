"""The positions of prefix hash chains from which one loaded model can continue, from its cache's
events.

A digest mirrors the engine's cache tree without the tokens. Each position of a chain is bound to
the entry with its last token, and lives and dies with that entry.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from node.ipc.messages import CacheEvent, CacheEventKind
from node.prefixes.saved_positions import SavedPositions
from node.protocol.chain.prefix import Chain
from node.protocol.prefixes import MAX_ENTRIES, Entry, Tier

MOST_SAVED = 1 << 18
"""Most positions that are saved, of 12 bytes each."""


@dataclass(slots=True, eq=False)
class _Node:
    """An entry of the engine's cache."""

    parent: int
    """Id of the entry before it; 0 for an entry at the start of a prompt."""
    begin_tokens: int
    end_tokens: int
    usable_tokens: int
    tier: Tier
    file: int
    """The same as `CacheEvent.file`."""
    children: set[int] = field(default_factory=set)
    positions: dict[int, int] = field(default_factory=dict)
    """For each hash, the number of prompt tokens up to there."""


@dataclass(slots=True, eq=False)
class _Pending:
    """A request that the engine has not ended."""

    hashes: "array[int]"
    tokens: Sequence[int]
    prompt_tokens: int
    bound: int = 0
    """Number of positions that are bound, from the first on."""
    deepest: int = 0
    """The last entry that was stored for it; 0: none."""
    stored_tokens: int = 0
    """Tokens of prompt and response that are stored, up to the end of `deepest`."""


class PrefixDigest:
    """The positions of one engine. They are closed under prefixes: positions from which nothing is
    usable are included. A position that was bound twice belongs to the later prompt's entry, with
    the smaller of the two token counts."""

    def __init__(self, *, snapshot_only: bool) -> None:
        """`snapshot_only`: the model continues from stored snapshots only, not from any token."""
        self._snapshot_only = snapshot_only
        self._nodes: dict[int, _Node] = {}
        self._entries: dict[int, int] = {}
        """For each hash, the entry that it is bound to."""
        self._changes: set[int] = set()
        self._pending: dict[str, _Pending] = {}
        self._has_unsaved = False

    def __len__(self) -> int:
        return len(self._entries)

    # --- requests -----------------------------------------------------------------------------

    def on_request(self, uid: str, chain: Chain, tokens: Sequence[int], prompt_tokens: int) -> None:
        """The engine gets a prompt. `tokens`: for each position, the number of prompt tokens up to
        there, ascending."""
        if not self._snapshot_only:
            # When a prompt comes again, its last token is computed again.
            tokens = [min(each, prompt_tokens - 1) for each in tokens]
        self._pending[uid] = _Pending(chain.hashes, tokens, prompt_tokens)

    def on_response(self, uid: str, chain: Chain, reusable_tokens: int | None) -> None:
        """The request's response is complete, and `chain` is the request's chain extended by it.

        `reusable_tokens`: prompt tokens that a prompt continuing from the response shares with this
        one; None: all of them, and the response as it was stored. Has no effect for a request of
        which nothing was stored.
        """
        pending = self._pending.get(uid)
        if pending is None or pending.deepest not in self._nodes:
            return
        stored_tokens = pending.stored_tokens
        most = pending.prompt_tokens if reusable_tokens is None else reusable_tokens
        before = min(stored_tokens, most)
        response_positions = len(chain) - len(pending.hashes)
        # The end of the response is known in tokens, its cuts are not.
        tokens = [min(each, before) for each in pending.tokens] + [before] * response_positions
        if response_positions and reusable_tokens is None:
            tokens[-1] = stored_tokens
        pending.hashes, pending.tokens = chain.hashes, tokens
        self._bind(pending)

    def on_end(self, uid: str) -> None:
        """The request has ended; no more calls concern it."""
        self._pending.pop(uid, None)

    # --- the cache ----------------------------------------------------------------------------

    def on_events(self, events: Iterable[CacheEvent]) -> None:
        for event in events:
            if event.kind is CacheEventKind.EVICTED:
                self._evict(event)
            elif event.kind is CacheEventKind.SPLIT:
                self._split(event)
            else:
                self._place(event)

    def _evict(self, event: CacheEvent) -> None:
        node = self._nodes.pop(event.entry, None)
        if node is None:
            return
        self._has_unsaved = True
        for hash_ in node.positions:
            del self._entries[hash_]
        self._changes.update(node.positions)
        if (parent := self._nodes.get(node.parent)) is not None:
            parent.children.discard(event.entry)

    def _split(self, event: CacheEvent) -> None:
        """The tokens before `begin_tokens` go to a new entry; no position's value changes."""
        lower = self._nodes.get(event.entry)
        if lower is None:
            return
        at_tokens = event.begin_tokens
        usable_tokens = self._usable_above(lower) if self._snapshot_only else at_tokens
        upper = replace(
            lower,
            end_tokens=at_tokens,
            usable_tokens=usable_tokens,
            children={event.entry},
            positions={},
        )
        if (parent := self._nodes.get(lower.parent)) is not None:
            parent.children.discard(event.entry)
            parent.children.add(event.parent)
        self._nodes[event.parent] = upper
        lower.parent, lower.begin_tokens = event.parent, at_tokens
        for hash_, tokens in tuple(lower.positions.items()):
            if tokens <= at_tokens:
                del lower.positions[hash_]
                upper.positions[hash_] = tokens
                self._entries[hash_] = event.parent

    def _place(self, event: CacheEvent) -> None:
        """An entry was stored or moved, or the number of its usable tokens changed."""
        tier = Tier.DISK if event.kind is CacheEventKind.SPILLED else Tier.MEMORY
        node = self._nodes.get(event.entry)
        if node is None:
            node = _Node(
                event.parent,
                event.begin_tokens,
                event.end_tokens,
                event.usable_tokens,
                tier,
                event.file,
            )
            self._nodes[event.entry] = node
            if (parent := self._nodes.get(event.parent)) is not None:
                parent.children.add(event.entry)
        elif (node.usable_tokens, node.tier) != (event.usable_tokens, tier):
            if node.usable_tokens != event.usable_tokens:
                # Positions before a child's own snapshot depend on this value.
                for child in node.children:
                    self._changes.update(self._nodes[child].positions)
            node.usable_tokens, node.tier = event.usable_tokens, tier
            self._changes.update(node.positions)
        if node.file != event.file:
            node.file = event.file
            self._has_unsaved = True
        pending = self._pending.get(event.uid)
        if pending is not None and event.end_tokens >= pending.stored_tokens:
            pending.deepest, pending.stored_tokens = event.entry, event.end_tokens
            self._bind(pending)

    def _bind(self, pending: _Pending) -> None:
        """Binds the positions that are stored and not bound yet."""
        count = bisect_right(pending.tokens, pending.stored_tokens, pending.bound)
        entry = pending.deepest
        for at in range(count - 1, pending.bound - 1, -1):
            hash_ = pending.hashes[at]
            tokens = self._fewest_tokens(hash_, pending.tokens[at])
            entry = self._entry_with(entry, tokens)
            self._put(hash_, entry, tokens)
        pending.bound = count

    def _entry_with(self, entry: int, tokens: int) -> int:
        """The entry, this one or an ancestor, that has the last of so many tokens; the first one
        for 0."""
        node = self._nodes[entry]
        while tokens <= node.begin_tokens and node.parent in self._nodes:
            entry = node.parent
            node = self._nodes[entry]
        return entry

    def _fewest_tokens(self, hash_: int, tokens: int) -> int:
        """Token count for a position that is to be bound at so many tokens."""
        bound_to = self._entries.get(hash_)
        return tokens if bound_to is None else min(tokens, self._nodes[bound_to].positions[hash_])

    def _put(self, hash_: int, entry: int, tokens: int) -> None:
        bound_to = self._entries.get(hash_)
        positions = self._nodes[entry].positions
        if bound_to == entry and positions[hash_] == tokens:
            return
        if bound_to is not None and bound_to != entry:
            del self._nodes[bound_to].positions[hash_]
        self._entries[hash_] = entry
        positions[hash_] = tokens
        self._changes.add(hash_)
        self._has_unsaved = True

    # --- saved positions ----------------------------------------------------------------------

    @property
    def has_unsaved(self) -> bool:
        """True if `saved` may return something else than at the last call."""
        return self._has_unsaved

    def saved(self, most: int = MOST_SAVED) -> list[SavedPositions]:
        """The positions whose tokens are in files, of the oldest entries; about `most` of them."""
        self._has_unsaved = False
        saved = []
        for node in self._nodes.values():
            if most <= 0:
                break
            if node.file and node.positions:
                positions = node.positions
                saved.append(
                    SavedPositions(node.file, array("Q", positions), array("I", positions.values()))
                )
                most -= len(positions)
        return saved

    def files(self) -> dict[int, int]:
        """For each file, the last entry with tokens of it."""
        found: dict[int, int] = {}
        for entry, node in self._nodes.items():
            last = found.get(node.file)
            if node.file and (last is None or self._nodes[last].end_tokens < node.end_tokens):
                found[node.file] = entry
        return found

    def restore(self, entry: int, saved: SavedPositions) -> None:
        """Binds the saved positions of a file to its last entry and to its ancestors, unless
        requests have bound them."""
        node = self._nodes.get(entry)
        if node is None or node.file != saved.file:
            return
        for hash_, tokens in zip(saved.hashes, saved.tokens, strict=True):
            if tokens <= node.end_tokens and hash_ not in self._entries:
                self._put(hash_, self._entry_with(entry, tokens), tokens)

    # --- reports to routers -------------------------------------------------------------------

    def hashes(self) -> "array[int]":
        """All hashes that are cached at present."""
        return array("Q", self._entries)

    def entry(self, hash_: int) -> Entry | None:
        """The entry that routers get for a position; None if it is not cached."""
        bound_to = self._entries.get(hash_)
        if bound_to is None:
            return None
        node = self._nodes[bound_to]
        return Entry(hash_, self._usable(node, node.positions[hash_]), node.tier)

    def take_changes(self, most: int = MAX_ENTRIES) -> tuple[list[Entry], list[int]]:
        """The changes since the last call, at most so many: entries that are new or have other
        values, and hashes that are no longer cached."""
        changed: list[Entry] = []
        removed: list[int] = []
        while self._changes and len(changed) + len(removed) < most:
            hash_ = self._changes.pop()
            entry = self.entry(hash_)
            if entry is None:
                removed.append(hash_)
            else:
                changed.append(entry)
        return changed, removed

    def drop_changes(self) -> None:
        """Discards the changes so far: nobody needs them."""
        self._changes.clear()

    @property
    def has_changes(self) -> bool:
        return bool(self._changes)

    def _usable(self, node: _Node, tokens: int) -> int:
        if not self._snapshot_only:
            return tokens
        # A snapshot is at an entry's end; within an entry, only those of its ancestors count.
        return node.usable_tokens if node.usable_tokens <= tokens else self._usable_above(node)

    def _usable_above(self, node: _Node) -> int:
        parent = self._nodes.get(node.parent)
        return 0 if parent is None else parent.usable_tokens
