"""Watches the machine's memory, and tells the engines when it becomes short."""

import asyncio
import logging

from node.hardware import read_memory, this_kernel
from node.pressure import PressureGauge
from node.supervisor import Supervisor

WATCH_S = 1.0

logger = logging.getLogger(__name__)


async def watch_pressure(supervisor: Supervisor, memory_bytes: int) -> None:
    """Keeps the supervisor's pressure at what the machine's memory of so many bytes tells; for
    ever."""
    gauge = PressureGauge(memory_bytes)
    kernel = this_kernel()
    while True:
        level = gauge.feed(read_memory(kernel))
        if level is not supervisor.pressure:
            logger.warning("Memory pressure of this machine is now %s.", level.name.lower())
            supervisor.set_pressure(level)
        await asyncio.sleep(WATCH_S)
