"""Publishes the prefixes that this node's engines have cached."""

import asyncio
import itertools
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from node.agent.events import EventHub
from node.engines.cache_events import CacheWatch
from node.ipc.messages import CacheEvent, Loaded
from node.models.store import ModelEntry
from node.prefixes.digest import PrefixDigest
from node.prefixes.persist import PositionSaver
from node.protocol.messages import PrefixDelta, PrefixGone, PrefixSnapshot
from node.protocol.prefixes import MAX_ENTRIES, pack_entries, pack_hashes

GATHER_S = 0.02
"""Seconds for which changes are gathered before they are published."""


@dataclass(slots=True, eq=False)
class _PublishedModel:
    """The published prefixes of one loaded model."""

    model: str
    epoch: int
    digest: PrefixDigest
    seq: int = 0
    timer: asyncio.TimerHandle | None = None
    """Pending publication of its changes."""
    saver: PositionSaver | None = None


class PrefixFeed(CacheWatch):
    """The digests of all loaded models, and their events."""

    def __init__(self, hub: EventHub, version: str = "") -> None:
        """`version`: the agent's."""
        self._hub = hub
        self._version = version
        self._epochs = itertools.count(1)
        self._models: dict[str, _PublishedModel] = {}
        self._saving: set[asyncio.Task[None]] = set()

    def digest(self, model: str) -> PrefixDigest | None:
        """The digest of a model, None if it is not loaded. Call `changed` after changing it."""
        published = self._models.get(model)
        return None if published is None else published.digest

    def changed(self, digest: PrefixDigest) -> None:
        """Schedules the publication of the changes, unless the model's engine has ended."""
        published = next((each for each in self._models.values() if each.digest is digest), None)
        if published is None or published.timer is not None or not digest.has_changes:
            return
        if not self._hub.is_watched:
            # A later subscriber starts with a snapshot.
            digest.drop_changes()
            return
        published.timer = asyncio.get_running_loop().call_later(GATHER_S, self._publish, published)

    def pieces(self) -> Iterator[PrefixSnapshot]:
        """The snapshots of all models as they are now, for a subscriber that gets all changes from
        now on. Each piece is made when it is read: changes since then follow as deltas."""
        now = [
            (published, published.seq, published.digest.hashes())
            for published in self._models.values()
        ]
        return (
            piece for published, seq, hashes in now for piece in _snapshot(published, seq, hashes)
        )

    async def close(self) -> None:
        """Publishes nothing more, and saves the positions on disk for the next start."""
        for published in self._models.values():
            _stop(published)
        self._models.clear()
        if self._saving:
            await asyncio.wait(self._saving)

    # --- engines -----------------------------------------------------------------------------

    def on_loaded(self, entry: ModelEntry, info: Loaded) -> None:
        digest = PrefixDigest(snapshot_only=info.snapshot_only)
        published = self._models[entry.name] = _PublishedModel(
            entry.name, next(self._epochs), digest
        )
        if info.disk_folder:
            published.saver = PositionSaver(
                digest, Path(info.disk_folder), lambda: self.changed(digest)
            )
            task = asyncio.create_task(published.saver.run(entry, self._version))
            self._saving.add(task)
            task.add_done_callback(self._saving.discard)

    def on_cache_events(self, model: str, events: tuple[CacheEvent, ...]) -> None:
        if (published := self._models.get(model)) is not None:
            published.digest.on_events(events)
            self.changed(published.digest)
            if published.saver is not None:
                published.saver.on_events()

    def on_ended(self, model: str) -> None:
        if (published := self._models.pop(model, None)) is not None:
            _stop(published)
            self._hub.publish(PrefixGone(model, published.epoch))

    # --- inside ------------------------------------------------------------------------------

    def _publish(self, published: _PublishedModel) -> None:
        changed, removed = published.digest.take_changes(MAX_ENTRIES)
        published.seq += 1
        packed = pack_entries(changed), pack_hashes(removed)
        self._hub.publish(PrefixDelta(published.model, published.epoch, published.seq, *packed))
        published.timer = None
        if published.digest.has_changes:
            # One event per turn of the event loop, so that streams are not blocked.
            published.timer = asyncio.get_running_loop().call_later(0.0, self._publish, published)


def _stop(published: _PublishedModel) -> None:
    if published.timer is not None:
        published.timer.cancel()
    if published.saver is not None:
        published.saver.close()


def _snapshot(
    published: _PublishedModel, seq: int, hashes: "array[int]"
) -> Iterator[PrefixSnapshot]:
    """All pieces of a model's snapshot, even if its engine has ended: that event follows them."""
    parts = max(1, -(-len(hashes) // MAX_ENTRIES))
    for part in range(parts):
        piece = hashes[part * MAX_ENTRIES : (part + 1) * MAX_ENTRIES]
        found = [entry for each in piece if (entry := published.digest.entry(each)) is not None]
        yield PrefixSnapshot(
            published.model, published.epoch, seq, part, parts, pack_entries(found)
        )
