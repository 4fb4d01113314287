"""Keeps an engine within its lease: stored KV gives way to live KV, free buffers go back."""

import time

from node.engine.device import IDLE_KEEP_BYTES, Device
from node.engine.reuse import Reuse
from node.engine.room import Room
from node.types import MemoryLease, Pressure

TIDY_AFTER_S = 0.5
"""Of idleness, until buffers kept for reuse go back to the system."""


class Upkeep:
    """What is done for memory between two steps."""

    def __init__(self, room: Room, reuse: Reuse, snapshot_bytes: int) -> None:
        self.device = Device(room.lease)
        self._room = room
        self._reuse = reuse
        self._snapshot_bytes = snapshot_bytes
        self._pressure = Pressure.NONE
        self._worked_s = time.monotonic()
        self._tidied = True

    def wait_s(self) -> float | None:
        """Seconds until an idle engine has something to tidy; None if it has not."""
        return None if self._tidied else max(0.0, self._worked_s + TIDY_AFTER_S - time.monotonic())

    def after_step(self, live_bytes: int, *, busy: bool) -> None:
        """Called once per step, with what live rows take."""
        stored_bytes = self._room.stored_bytes(live_bytes)
        self._reuse.set_stored_bytes(stored_bytes, self._snapshot_bytes)
        now_s = time.monotonic()
        if busy:
            self._worked_s, self._tidied = now_s, False
            if self._pressure is not Pressure.NONE:
                self.device.tidy(keep_bytes=IDLE_KEEP_BYTES)
        elif not self._tidied and now_s >= self._worked_s + TIDY_AFTER_S:
            self.device.tidy(keep_bytes=IDLE_KEEP_BYTES)
            self._tidied = True

    def set_lease(self, lease: MemoryLease, live_bytes: int) -> None:
        """Evicts at once what is beyond the new lease."""
        self._room.lease = lease
        self.device.set_lease(lease)
        self._reuse.set_stored_bytes(self._room.stored_bytes(live_bytes), self._snapshot_bytes)
        self.device.tidy(keep_bytes=0)

    def set_pressure(self, level: Pressure) -> None:
        """Stops storing while there is any, and evicts each time when it rises."""
        rising = level > self._pressure
        self._pressure = level
        self._reuse.set_storing(level is Pressure.NONE)
        if rising:
            self._reuse.relieve(all_of_it=level is Pressure.HARD)
            self.device.tidy(keep_bytes=0)
