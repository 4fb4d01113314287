"""The events that the agent gets of the cache: one for each change of an entry."""

from node.engine.cache.index import Node
from node.ipc.messages import CacheEvent, CacheEventKind


def last_snapshot_end(node: Node) -> int:
    """Returns the number of tokens up to the deepest snapshot at this node or above, in memory or
    on disk."""
    for owner in (node, *node.ancestors()):
        if owner.has_snapshot:
            return owner.end
    return 0


class Journal:
    """Events since the last `drain`, oldest first."""

    def __init__(self, *, needs_snapshot: bool) -> None:
        self._needs_snapshot = needs_snapshot
        self._events: list[CacheEvent] = []

    def drain(self) -> list[CacheEvent]:
        events, self._events = self._events, []
        return events

    def note(self, kind: CacheEventKind, node: Node, uid: str = "") -> None:
        assert node.parent is not None
        self._events.append(
            CacheEvent(
                kind=kind,
                entry=node.entry,
                parent=node.parent.entry,
                begin_tokens=node.begin,
                end_tokens=node.end,
                usable_tokens=last_snapshot_end(node) if self._needs_snapshot else node.end,
                uid=uid,
                file=0 if node.file is None else node.file.name,
            )
        )

    def note_usable(self, node: Node, uid: str = "") -> None:
        """Reports this entry again, and those below it that depend on it, after a snapshot was
        added to or removed from the node: their usable tokens have changed. `uid` applies to this
        entry only."""
        if not self._needs_snapshot:
            return
        nodes = [node]
        for each in nodes:
            where = CacheEventKind.SPILLED if each.span is None else CacheEventKind.STORED
            self.note(where, each, uid if each is node else "")
            nodes.extend(child for child in each.children.values() if not child.has_snapshot)
