"""Notices that the machine has slept: connections may be dead, and statuses outdated.

During a machine's sleep Python's monotonic clock stands still (CLOCK_MONOTONIC of Linux,
mach_absolute_time of macOS), and the time of day goes on.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

LEAST_S = 30.0
"""Shortest sleep that is noticed. A shorter one does no harm, and the time of day may be corrected
by some seconds."""
CHECK_S = 1.0

logger = logging.getLogger(__name__)


class SleepGauge:
    """Compares the two clocks."""

    def __init__(self, wall: Callable[[], float], monotonic: Callable[[], float]) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._ahead_s = wall() - monotonic()
        """Difference of the two clocks at the last check."""

    def check(self) -> float | None:
        """Seconds that the machine has slept since the last check; None if it has not. Setting the
        time of day forward has the same effect as a sleep."""
        ahead_s = self._wall() - self._monotonic()
        slept_s, self._ahead_s = ahead_s - self._ahead_s, ahead_s
        return slept_s if slept_s > LEAST_S else None


async def nothing_to_renew() -> None:
    """The default of `on_wake`: a sleep is only logged."""


async def watch_sleep(
    on_wake: Callable[[], Awaitable[None]] = nothing_to_renew, gauge: SleepGauge | None = None
) -> None:
    """Logs that the machine has slept, and calls `on_wake`; never returns."""
    gauge = gauge or SleepGauge(time.time, time.monotonic)
    while True:
        await asyncio.sleep(CHECK_S)
        slept_s = gauge.check()
        if slept_s is None:
            continue
        logger.info(
            "This machine has slept for %.0f s, or its time was set forward by as much.", slept_s
        )
        try:
            await on_wake()
        except Exception:
            # The callback may fail; the next sleep is noticed all the same.
            logger.exception("The callback after a sleep failed.")
