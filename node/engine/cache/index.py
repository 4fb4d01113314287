"""The radix tree over token ids: its nodes, matching, splitting, and the memory that they own.

A node is one edge, a run of tokens, and the point at its end. `RadixIndex` makes every change of
the memory that a node owns, so it always knows the bytes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np

from node.engine.cache.parts import Snapshot, Span, Tokens

_TOKEN_BITS = 32


def salt_number(salt: str) -> int:
    """Returns the number that separates the entries of a salt from all others: 0 for no salt,
    otherwise 63 bits, which fit an SQLite integer."""
    if not salt:
        return 0
    digest = blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1 | 1


@dataclass(slots=True, eq=False)
class File:
    """A file of the disk tier, as nodes refer to it."""

    number: int
    kind: str
    """One of `EntryKind`."""
    tokens: int
    """Tokens of its span; 0 for a snapshot."""
    nbytes: int
    """An estimate until it is written."""
    written: bool
    owners: list["Node"]
    """Several if a span's edge was split after it was written."""
    reserved_bytes: int = 0
    """Memory reserved for its contents; not 0 only while it is read."""
    name: int = 0
    """Name of a span file in `CacheEvent.file`."""


@dataclass(slots=True, eq=False)
class Node:
    """An entry of the cache. Only `RadixIndex`, `Spiller` and `Promoter` change its fields.

    A node with a span file has a parent with one, up to the root, so that everything on disk can be
    reached after a restart.
    """

    entry: int
    """Its number in `CacheEvent`; 0 for the root."""
    parent: "Node | None"
    """Kept when the node is removed, so that holds can be released."""
    key: Tokens
    begin: int
    """Number of prompt tokens before `key`."""
    salt: int = 0
    """Salt number of an entry that begins a prompt; 0 for all others."""
    children: dict[int, "Node"] = field(default_factory=dict)
    """By `branch`."""
    span: Span | None = None
    snapshot: Snapshot | None = None
    file: File | None = None
    file_begin: int = 0
    """Token of the file's span at which this node begins."""
    snapshot_file: File | None = None
    span_leaving: bool = False
    """True if the span is dropped from memory as soon as it is written."""
    snapshot_leaving: bool = False
    awaited: bool = False
    """True while the file is read for this node's span."""
    holds: int = 0
    """Number of holds on this node and on those below it."""
    pinned: bool = False
    """True if this node or one below it is pinned."""
    used_s: float = 0.0
    snapshot_used_s: float = 0.0
    resident_below: int = 0
    """Number of nodes below this one that own memory."""
    removed: bool = False

    @property
    def end(self) -> int:
        return self.begin + len(self.key)

    @property
    def branch(self) -> int:
        """Key of this node among its parent's children: first token and salt."""
        return branch_of(self.salt, self.key)

    @property
    def resident(self) -> bool:
        """True if it owns memory."""
        return self.span is not None or self.snapshot is not None

    @property
    def protected(self) -> bool:
        """True if it must not be evicted."""
        return self.pinned or self.holds > 0

    @property
    def on_disk(self) -> bool:
        """True if the span can be read back."""
        return self.file is not None and self.file.written

    @property
    def snapshot_on_disk(self) -> bool:
        return self.snapshot_file is not None and self.snapshot_file.written

    @property
    def has_snapshot(self) -> bool:
        """True if there is one in memory or on disk."""
        return self.snapshot is not None or self.snapshot_file is not None

    @property
    def span_bytes(self) -> int:
        return 0 if self.span is None else self.span.nbytes

    @property
    def snapshot_bytes(self) -> int:
        return 0 if self.snapshot is None else self.snapshot.nbytes

    def ancestors(self) -> "Iterator[Node]":
        """Yields the nodes from the parent to the root."""
        node = self.parent
        while node is not None:
            yield node
            node = node.parent

    def path(self) -> "list[Node]":
        """Returns the nodes from the root's child down to this node."""
        nodes = [self, *self.ancestors()]
        return nodes[-2::-1]

    def holder_of(self, depth_tokens: int) -> "Node":
        """Returns the node at or above this one that contains the last of `depth_tokens` tokens,
        even if edges were split since; the root for 0."""
        node = self
        while node.begin >= depth_tokens and node.parent is not None:
            node = node.parent
        return node

    def subtree(self) -> "list[Node]":
        """Returns this node and all below, parents first."""
        nodes = [self]
        for node in nodes:
            nodes.extend(node.children.values())
        return nodes


@dataclass(frozen=True, slots=True)
class Walk:
    """The longest match of a prompt in the tree."""

    path: list[Node]
    """Matched nodes; the last one may match in part only."""
    shared: int
    """Number of matched tokens."""

    @property
    def diverging(self) -> Node | None:
        """The node inside whose edge the walk ended; None if it ended at a node's end."""
        return self.path[-1] if self.path and self.path[-1].end > self.shared else None

    @property
    def covered(self) -> int:
        """Number of matched tokens that are in memory without a gap."""
        covered = 0
        for node in self.path:
            if node.span is None:
                break
            covered = min(node.end, self.shared)
        return covered

    def ends_at_snapshot(self, length: int) -> bool:
        """True if the walk ended after `length` tokens, at a node with a snapshot in memory."""
        if self.shared != length or self.diverging is not None or not self.path:
            return False
        return self.path[-1].snapshot is not None


class RadixIndex:
    """The tree, and the bytes that its nodes own in memory."""

    def __init__(self) -> None:
        self._last_entry = 0
        self.reset()

    def reset(self) -> None:
        """Drops all nodes; their numbers are not used again."""
        self.root = Node(entry=0, parent=None, key=np.empty(0, np.int32), begin=0)
        self.size = 0
        self.span_bytes = 0
        self.snapshot_bytes = 0
        self.resident: dict[Node, None] = {}
        """Nodes that own memory."""
        self.leaving: dict[Node, None] = {}
        """Nodes with a part that is dropped from memory once it is written."""

    @property
    def pinned_nbytes(self) -> int:
        """Memory of pinned nodes."""
        pinned = (node for node in self.resident if node.pinned)
        return sum(node.span_bytes + node.snapshot_bytes for node in pinned)

    @property
    def nbytes(self) -> int:
        return self.span_bytes + self.snapshot_bytes

    @property
    def leaving_bytes(self) -> int:
        """Memory of spans and snapshots that only wait to be written."""
        spans = sum(node.span_bytes for node in self.leaving if node.span_leaving)
        return spans + self.leaving_snapshot_bytes

    @property
    def leaving_snapshot_bytes(self) -> int:
        return sum(node.snapshot_bytes for node in self.leaving if node.snapshot_leaving)

    def walk(self, tokens: Tokens, salt: int = 0) -> Walk:
        """Matches the tokens down the tree; each token is compared once."""
        path: list[Node] = []
        node = self.root
        at = 0
        # memcmp on bytes is about a third faster than comparing arrays.
        tokens = np.ascontiguousarray(tokens, np.int32)
        data = tokens.tobytes()
        while at < len(tokens):
            child = node.children.get(branch_of(0 if at else salt, tokens[at : at + 1]))
            if child is None:
                break
            path.append(child)
            if not data.startswith(child.key.data, at * tokens.itemsize):
                at += _shared(child.key, tokens[at : at + len(child.key)])
                break
            at += len(child.key)
            node = child
        return Walk(path, at)

    def add(self, parent: Node, key: Tokens, now_s: float, salt: int = 0) -> Node:
        """Adds a node that owns nothing yet. The key is copied."""
        node = Node(
            entry=self._next_entry(), parent=parent, key=np.array(key, np.int32), begin=parent.end
        )
        node.salt = salt if parent is self.root else 0
        node.used_s = now_s
        parent.children[node.branch] = node
        self.size += 1
        return node

    def split(self, node: Node, at_tokens: int) -> Node:
        """Splits an edge in two; 0 < at_tokens < len(key). The node keeps the lower part with its
        number, children and snapshot; the upper part becomes a new node, which is returned."""
        parent = node.parent
        assert parent is not None
        upper = Node(
            entry=self._next_entry(), parent=parent, key=node.key[:at_tokens], begin=node.begin
        )
        upper.salt, node.salt = node.salt, 0
        upper.used_s = node.used_s
        upper.holds, upper.pinned, upper.awaited = node.holds, node.pinned, node.awaited
        upper.resident_below = node.resident_below + node.resident
        self._split_span(node, upper, at_tokens)
        if node.file is not None:
            upper.file, upper.file_begin = node.file, node.file_begin
            node.file.owners.append(upper)
            node.file_begin += at_tokens
        node.key = node.key[at_tokens:]
        node.begin += at_tokens
        node.parent = upper
        parent.children[upper.branch] = upper
        upper.children[node.branch] = node
        self.size += 1
        return upper

    def _split_span(self, node: Node, upper: Node, at_tokens: int) -> None:
        if node.span is None:
            return
        head, tail = node.span.split(at_tokens)
        self.span_bytes += head.nbytes + tail.nbytes - node.span.nbytes
        upper.span, node.span = head, tail
        self.resident[upper] = None
        for ancestor in upper.ancestors():
            ancestor.resident_below += 1
        if node.span_leaving:
            upper.span_leaving = True
            self.leaving[upper] = None

    def unlink(self, node: Node) -> None:
        """Removes a node without children, memory or files from the tree."""
        assert node.parent is not None and not node.children and not node.resident
        del node.parent.children[node.branch]
        node.removed = True
        self.size -= 1

    def attach_span(self, node: Node, span: Span) -> None:
        """Raises `ValueError` if the number of tokens differs from the key's."""
        if span.tokens != len(node.key):
            raise ValueError(f"a span of {span.tokens} tokens for a key of {len(node.key)}")
        assert node.span is None
        self._became_resident(node)
        node.span = span
        self.span_bytes += span.nbytes

    def attach_snapshot(self, node: Node, snapshot: Snapshot) -> None:
        assert node.snapshot is None
        self._became_resident(node)
        node.snapshot = snapshot
        self.snapshot_bytes += snapshot.nbytes

    def detach_span(self, node: Node) -> None:
        """Drops the span from memory, if there is one."""
        if node.span is not None:
            self.span_bytes -= node.span.nbytes
            node.span = None
            self.set_leaving(node, span=False, snapshot=node.snapshot_leaving)
            self._ceased_resident(node)

    def detach_snapshot(self, node: Node) -> None:
        """Drops the snapshot from memory, if there is one."""
        if node.snapshot is not None:
            self.snapshot_bytes -= node.snapshot.nbytes
            node.snapshot = None
            self.set_leaving(node, span=node.span_leaving, snapshot=False)
            self._ceased_resident(node)

    def set_leaving(self, node: Node, *, span: bool, snapshot: bool) -> None:
        """Sets which parts are dropped from memory once they are written."""
        node.span_leaving, node.snapshot_leaving = span, snapshot
        if span or snapshot:
            self.leaving[node] = None
        else:
            self.leaving.pop(node, None)

    def hold(self, node: Node) -> None:
        """Protects a node and all above it until `release`. They stay in memory."""
        for held in (node, *node.ancestors()):
            held.holds += 1
            self.set_leaving(held, span=False, snapshot=False)

    def release(self, node: Node) -> None:
        """Ends a `hold` of the same node, even if edges were split or removed since."""
        for held in (node, *node.ancestors()):
            held.holds -= 1

    def _next_entry(self) -> int:
        self._last_entry += 1
        return self._last_entry

    def _became_resident(self, node: Node) -> None:
        if not node.resident:
            self.resident[node] = None
            for ancestor in node.ancestors():
                ancestor.resident_below += 1

    def _ceased_resident(self, node: Node) -> None:
        if not node.resident:
            del self.resident[node]
            for ancestor in node.ancestors():
                ancestor.resident_below -= 1


def branch_of(salt: int, tokens: Tokens) -> int:
    """Returns the key of the child that continues with the tokens, for a prompt of that salt."""
    return salt << _TOKEN_BITS | int(tokens[0])


def _shared(key: Tokens, tokens: Tokens) -> int:
    """Returns the length of the common prefix; the first token is equal, and `tokens` is not
    longer."""
    differs = key[: len(tokens)] != tokens
    first = int(differs.argmax())
    return first if differs[first] else len(tokens)


def files_of(path: list[Node]) -> list[int]:
    """Returns the file numbers of the path, each once, parents first, and that of the snapshot at
    the end."""
    files = [node.file for node in path]
    if path:
        files.append(path[-1].snapshot_file)
    return list(dict.fromkeys(file.number for file in files if file is not None))
