"""The engine's end of MLX's memory: limits, the wired limit, and the buffers kept for reuse.

What only Metal has is guarded by `mx.metal.is_available()`; it has not been run on a Mac.
"""

import mlx.core as mx

from node.types import MemoryLease

IDLE_KEEP_BYTES = 64 * 1024**2
"""Buffers that an idle engine keeps for reuse."""


def leave_thread() -> None:
    """Ends the thread's use of MLX; without it the process may abort at its exit."""
    mx.clear_cache()
    mx.clear_streams()


def wire(most_bytes: int) -> None:
    """Asks macOS to keep that much of MLX's memory resident for the GPU, from the buffers that are
    made first. Macs have been reported to panic with it (docs/decisions)."""
    if mx.metal.is_available():
        working_set_bytes = int(mx.device_info().get("max_recommended_working_set_size", 0))
        mx.set_wired_limit(min(most_bytes, working_set_bytes))


class Device:
    """Keeps MLX within a lease, wired as a whole or not at all."""

    def __init__(self, lease: MemoryLease, *, is_wired: bool = False) -> None:
        self._is_wired = is_wired
        self.set_lease(lease)

    def set_lease(self, lease: MemoryLease) -> None:
        """Guides MLX's allocator: beyond `total_bytes` it frees its buffers before it takes more,
        and it keeps no more free buffers than the lease has room for beside weights and KV."""
        if lease.total_bytes <= 0:
            return
        mx.set_memory_limit(lease.total_bytes)
        mx.set_cache_limit(lease.overhead_bytes)
        if self._is_wired:
            wire(lease.total_bytes)

    @property
    def active_bytes(self) -> int:
        return mx.get_active_memory()

    @property
    def free_bytes(self) -> int:
        return mx.get_cache_memory()

    def tidy(self, *, keep_bytes: int) -> None:
        """Gives free buffers back to the system where there are more than `keep_bytes`. Called
        once per step at most, and only while the engine is idle or memory is short."""
        if mx.get_cache_memory() > keep_bytes:
            mx.synchronize()
            mx.clear_cache()
