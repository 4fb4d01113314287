"""Watches the machine's memory, and reports memory pressure to the engines."""

import asyncio
import logging

from node.agent.status_report import pressure_of
from node.engines.memory_pressure import PressureGauge
from node.engines.supervisor import Supervisor
from node.hardware import MemoryReading, read_memory, this_kernel
from serving.units import gib

WATCH_S = 1.0

logger = logging.getLogger(__name__)


async def watch_pressure(supervisor: Supervisor, memory_bytes: int) -> None:
    """Keeps the supervisor's pressure level up to date with the machine's memory of so many bytes;
    never returns."""
    gauge = PressureGauge(memory_bytes)
    kernel = this_kernel()
    while True:
        reading = read_memory(kernel)
        level = gauge.feed(reading)
        if level is not supervisor.pressure:
            before = pressure_of(supervisor)
            supervisor.set_pressure(level)
            now = pressure_of(supervisor)
            logger.warning(
                "Memory pressure of this machine is now %s, after %.0f s of %s: %s.%s",
                *(now.level, before.for_s, before.level, now.effect, _memory_sentence(reading)),
            )
        await asyncio.sleep(WATCH_S)


def _memory_sentence(reading: MemoryReading) -> str:
    """The memory that the machine has free, as a sentence; empty if it does not report it."""
    known = {
        "available": reading.available_bytes,
        "compressed": reading.compressor_bytes,
        "in swap": reading.swap_bytes,
    }
    sizes = [f"{gib(nbytes)} {word}" for word, nbytes in known.items() if nbytes is not None]
    return f" There are {', '.join(sizes)}." if sizes else ""
