"""What the agent tells of the prefix caches of its engines, and to whom."""

from node.ipc.messages import CacheEvent, EngineStats, Loaded, MemoryLease
from node.models.store import ModelEntry
from node.protocol.messages import CacheStatus


class CacheWatch:
    """Is told of the prefix caches of all engines, by the names of their models."""

    def on_loaded(self, entry: ModelEntry, info: Loaded) -> None:
        """Before the engine's first event."""

    def on_cache_events(self, model: str, events: tuple[CacheEvent, ...]) -> None:
        """In their order."""

    def on_gone(self, model: str) -> None:
        """The engine has ended; also where it was not loaded."""


def cache_status(lease: MemoryLease, info: Loaded, stats: EngineStats | None) -> CacheStatus | None:
    """The cache of an engine that serves; None where it has no room for one."""
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
