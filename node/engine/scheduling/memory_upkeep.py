"""Keeps an engine within its lease: evicts stored KV and returns free buffers to the system."""

import time
from dataclasses import dataclass

from node.engine.decoding.rates import Rates
from node.engine.model.device import IDLE_KEEP_BYTES, Device
from node.engine.scheduling.memory_plan import MemoryPlan
from node.engine.scheduling.prefix_reuse import PrefixReuse
from node.ipc.disk_figures import DiskFigures
from node.ipc.messages import EngineSpec, EngineStats, MemoryLease, Pressure

RELEASE_AFTER_S = 0.5
"""Idle interval in seconds after which buffers kept for reuse are returned to the system."""


@dataclass(frozen=True, slots=True)
class RowCounts:
    """The numbers of an engine's rows, and what they take."""

    waiting: int
    prefilling: int
    decoding: int
    prefilled_tokens: int
    """Tokens of requests that the model has prefilled since the load."""
    live_kv_bytes: int


class MemoryUpkeep:
    """Applies the lease and the memory pressure of one engine, mostly between two steps."""

    def __init__(self, plan: MemoryPlan, reuse: PrefixReuse, spec: EngineSpec) -> None:
        self.device = Device(plan.lease, is_wired=spec.wired == "lease")
        self._plan = plan
        self._reuse = reuse
        self._worked_s = time.monotonic()
        self._has_released = True

    def wait_s(self) -> float | None:
        """Returns the seconds until an idle engine must release memory or poll the disk; None if it
        need not."""
        stored_s = self._reuse.wait_s()
        if self._has_released:
            return stored_s
        release_in_s = max(0.0, self._worked_s + RELEASE_AFTER_S - time.monotonic())
        return release_in_s if stored_s is None else min(stored_s, release_in_s)

    def after_step(self, live_bytes: int, *, busy: bool) -> None:
        """Applies the limits after a step. `live_bytes` is the live KV of all rows; `busy` is True
        if rows are prefilled or decoded."""
        self._plan.note_step(live_bytes, self._reuse.pinned_bytes)
        before_bytes = self._reuse.cap_bytes
        self._reuse.set_stored_bytes(self._plan.stored_bytes(live_bytes))
        now_s = time.monotonic()
        if busy:
            self._worked_s, self._has_released = now_s, False
            if self._plan.pressure is Pressure.HARD:
                self.device.release_free_buffers(keep_bytes=IDLE_KEEP_BYTES)
        elif not self._has_released and now_s >= self._worked_s + RELEASE_AFTER_S:
            self.device.release_free_buffers(keep_bytes=IDLE_KEEP_BYTES)
            # KV that is being written to disk is freed only after that, so free buffers are
            # released once more.
            self._has_released, self._worked_s = not self._reuse.cache.writing, now_s
        if self._is_cap_lowered(before_bytes):
            self._return_buffers()

    def release_soon(self) -> None:
        """Makes the next idle step return free buffers. MLX may raise there an error that the GPU
        has had since."""
        self._worked_s, self._has_released = -RELEASE_AFTER_S, False

    def set_lease(self, lease: MemoryLease, live_bytes: int) -> None:
        """Sets the lease and evicts stored KV beyond it at once."""
        shrinks = lease.total_bytes < self._plan.lease.total_bytes
        self._plan.set_lease(lease, live_bytes)
        self.device.set_lease(lease)
        self._reuse.set_stored_bytes(self._plan.stored_bytes(live_bytes))
        if shrinks:
            self.device.release_free_buffers(keep_bytes=0)

    def set_pressure(self, level: Pressure) -> None:
        before_bytes = self._reuse.cap_bytes
        self._plan.set_pressure(level)
        self._reuse.set_pressure(level)
        if self._is_cap_lowered(before_bytes):
            self._return_buffers()

    def _is_cap_lowered(self, before_bytes: int | None) -> bool:
        """True if memory pressure has lowered the cap on stored KV."""
        cap_bytes = self._reuse.cap_bytes
        return cap_bytes is not None and (before_bytes is None or cap_bytes < before_bytes)

    def _return_buffers(self) -> None:
        """Returns free buffers to the system at once, and buffers that are being written later."""
        self.device.release_free_buffers(keep_bytes=0)
        self._worked_s, self._has_released = time.monotonic(), False

    def stats(self, rates: Rates, rows: RowCounts) -> EngineStats:
        cache, tier = self._reuse.cache, self._reuse.tier
        return EngineStats(
            weight_bytes=self._plan.weight_bytes,
            live_kv_bytes=rows.live_kv_bytes,
            stored_kv_bytes=cache.nbytes,
            snapshot_bytes=cache.snapshot_nbytes,
            disk_kv_bytes=cache.disk_nbytes,
            active_bytes=self.device.active_bytes,
            free_bytes=self.device.free_bytes,
            entries=cache.entries,
            waiting_rows=rows.waiting,
            prefilling_rows=rows.prefilling,
            decoding_rows=rows.decoding,
            prefill_tokens=rows.prefilled_tokens,
            cached_tokens=self._reuse.cached_tokens,
            prefill_rates=rates.prefill_rates(),
            decode_rates=rates.decode_rates(),
            lease=self._plan.lease,
            pinned_kv_bytes=cache.pinned_nbytes,
            stored_cap_bytes=self._reuse.cap_bytes,
            disk=tier.figures if tier is not None else DiskFigures(),
        )
