"""Finds out that the machine has slept: connections may be dead, and what was heard is old.

Python's monotonic clock stands still in a machine's sleep (CLOCK_MONOTONIC of Linux,
mach_absolute_time of macOS), and the time of day goes on.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

LEAST_S = 30.0
"""A shorter sleep does no harm, and the time of day may be corrected by some seconds."""
LOOK_S = 1.0

logger = logging.getLogger(__name__)


class SleepGauge:
    """Compares two clocks. Pure but for what it keeps of them."""

    def __init__(self, wall: Callable[[], float], monotonic: Callable[[], float]) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._ahead_s = wall() - monotonic()
        """By how much the time of day was ahead at the last look."""

    def look(self) -> float | None:
        """How many seconds the machine has slept since the last look; None where it has not. Who
        sets the time of day forward looks like a sleep."""
        ahead_s = self._wall() - self._monotonic()
        slept_s, self._ahead_s = ahead_s - self._ahead_s, ahead_s
        return slept_s if slept_s > LEAST_S else None


async def nothing_to_renew() -> None:
    """Where a sleep is only told."""


async def watch_sleep(
    on_wake: Callable[[], Awaitable[None]] = nothing_to_renew, gauge: SleepGauge | None = None
) -> None:
    """Says in the log when the machine has slept, and calls `on_wake`; for ever."""
    gauge = gauge or SleepGauge(time.time, time.monotonic)
    while True:
        await asyncio.sleep(LOOK_S)
        slept_s = gauge.look()
        if slept_s is None:
            continue
        logger.info(
            "This machine has slept for %.0f s, or its time was set forward by as much.", slept_s
        )
        try:
            await on_wake()
        except Exception:
            # Who is to be told may fail; the next sleep is noticed all the same.
            logger.exception("A fault at the end of a sleep.")
