"""Controls MLX's memory: limits, the wired limit, and the buffers kept for reuse.

Calls that need Metal are guarded by `mx.metal.is_available()`; they have not been run on a Mac.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import mlx.core as mx

from node.ipc.messages import MemoryLease

IDLE_KEEP_BYTES = 64 * 1024**2
"""Buffers that an idle engine keeps for reuse."""
_SPARE = 1.25
"""Free buffers to keep, as a multiple of a step's scratch memory: sizes differ from step to
step."""


def release_thread() -> None:
    """Ends the thread's use of MLX; without it the process may abort at its exit."""
    mx.clear_cache()
    mx.clear_streams()


def wire(most_bytes: int) -> None:
    """Lets macOS keep up to `most_bytes` of MLX's memory resident for the GPU, from the buffers
    that are allocated first. Kernel panics have been reported with it (docs/decisions)."""
    if mx.metal.is_available():
        working_set_bytes = int(mx.device_info().get("max_recommended_working_set_size", 0))
        mx.set_wired_limit(min(most_bytes, working_set_bytes))


class Device:
    """Keeps MLX within a lease, wired as a whole or not at all."""

    def __init__(self, lease: MemoryLease, *, is_wired: bool = False) -> None:
        self._is_wired = is_wired
        self._scratch_bytes = 0
        """Largest scratch memory of a step so far."""
        self._lease = lease
        self.set_lease(lease)

    def set_lease(self, lease: MemoryLease) -> None:
        """Configures MLX's allocator: beyond `total_bytes` it frees its buffers before it allocates
        more, and it keeps no more free buffers than a step needs, or than the lease has room for
        beside weights and KV."""
        self._lease = lease
        if lease.total_bytes <= 0:
            return
        mx.set_memory_limit(lease.total_bytes)
        self._keep_buffers()
        if self._is_wired:
            wire(lease.total_bytes)

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Measures how many free buffers are worth keeping: if those of one step are freed, the
        next step waits for the system to allocate them again."""
        before_bytes = mx.get_active_memory()
        mx.reset_peak_memory()
        yield
        taken_bytes = mx.get_peak_memory() - before_bytes
        if taken_bytes > self._scratch_bytes:
            self._scratch_bytes = taken_bytes
            if self._lease.total_bytes > 0:
                self._keep_buffers()

    def _keep_buffers(self) -> None:
        lease = self._lease
        # Unused KV memory leaves room for buffers; when KV needs it, MLX keeps to the memory limit.
        most_bytes = lease.total_bytes - lease.weight_bytes
        wanted_bytes = min(int(_SPARE * self._scratch_bytes), most_bytes)
        mx.set_cache_limit(max(wanted_bytes, lease.overhead_bytes))

    @property
    def active_bytes(self) -> int:
        return mx.get_active_memory()

    @property
    def free_bytes(self) -> int:
        return mx.get_cache_memory()

    def release_free_buffers(self, *, keep_bytes: int) -> None:
        """Returns free buffers to the system if there are more than `keep_bytes`. Called once per
        step at most, and only while the engine is idle or memory is short."""
        if mx.get_cache_memory() > keep_bytes:
            mx.synchronize()
            mx.clear_cache()
