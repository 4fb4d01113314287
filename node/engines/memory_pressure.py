"""The level of memory pressure, with hysteresis. Pure: readings in, level out."""

from node.hardware import MemoryReading
from node.ipc.messages import Pressure

SOFT_PERCENT = 6
"""Percentage of available memory below which engines store nothing new and evict."""
HARD_PERCENT = 3
"""Percentage of available memory below which new requests are rejected."""
EXIT_FACTOR = 1.5
"""Factor on the thresholds at which a level ends, so that it ends later than it began."""
CALM_READINGS = 5
"""Number of better readings in a row before the level falls."""
_KERNEL_LEVELS = {1: Pressure.NONE, 2: Pressure.SOFT, 4: Pressure.HARD}


class PressureGauge:
    """Derives the level from each reading. It rises at once and falls by one step after
    `CALM_READINGS`, since memory that an engine evicts is free only until it stores again."""

    def __init__(self, memory_bytes: int) -> None:
        self._memory_bytes = memory_bytes
        self._better = 0
        self.level = Pressure.NONE

    def feed(self, reading: MemoryReading) -> Pressure:
        """Returns the level after the reading; a reading without values changes nothing."""
        entered = self._level_of(reading, 1.0)
        staying = self._level_of(reading, EXIT_FACTOR)
        if entered is None or staying is None:
            return self.level
        self._better = self._better + 1 if staying < self.level else 0
        if entered > self.level:
            self.level = entered
        elif self._better >= CALM_READINGS:
            self.level = Pressure(self.level - 1)
            self._better = 0
        return self.level

    def _level_of(self, reading: MemoryReading, factor: float) -> Pressure | None:
        if reading.kernel_level is not None:
            return _KERNEL_LEVELS.get(reading.kernel_level)
        if reading.available_bytes is None:
            return None
        share_percent = reading.available_bytes * 100 / self._memory_bytes
        if share_percent < HARD_PERCENT * factor:
            return Pressure.HARD
        return Pressure.SOFT if share_percent < SOFT_PERCENT * factor else Pressure.NONE
