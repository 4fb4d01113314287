"""Reports of the engines' prefix caches."""

from node.ipc.messages import CacheEvent, EngineStats, Loaded, MemoryLease
from node.models.store import ModelEntry
from node.protocol.messages import CacheStatus


class CacheWatch:
    """Receives the events of all engines' prefix caches, by model name."""

    def on_loaded(self, entry: ModelEntry, info: Loaded) -> None:
        """Called before the engine's first event."""

    def on_cache_events(self, model: str, events: tuple[CacheEvent, ...]) -> None:
        """Called with the events in their order."""

    def on_ended(self, model: str) -> None:
        """Called when the engine has ended, even if it was never loaded."""


def cache_status(lease: MemoryLease, info: Loaded, stats: EngineStats | None) -> CacheStatus | None:
    """Returns the state of a serving engine's prefix cache; None if it has no room for one."""
    if not lease.stored_kv_bytes and not info.disk_bytes:
        return None
    return CacheStatus(
        memory_bytes=lease.stored_kv_bytes,
        memory_used_bytes=0 if stats is None else stats.stored_kv_bytes,
        bytes_per_token=info.stored_bytes_per_token,
        disk_bytes=info.disk_bytes,
        disk_used_bytes=0 if stats is None else stats.disk_kv_bytes,
        snapshot_only=info.snapshot_only,
    )
