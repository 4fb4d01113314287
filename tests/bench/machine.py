"""The machine that a benchmark runs on, and which of its cores do what."""

import os
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

_CORES_TO_SPLIT = 4
"""With fewer cores the load generator shares them with what it measures."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions of a run, which a reader must know to compare a figure with another run's."""

    date: str
    system: str
    processor: str
    cores: int
    load_before: float
    load_after: float
    pinned: str
    blas_threads: int

    def line(self) -> str:
        return (
            f"{self.date} · {self.system} · {self.processor}, {self.cores} cores · load average "
            f"{self.load_before:.1f} before, {self.load_after:.1f} after · {self.pinned} · "
            f"{self.blas_threads} BLAS thread(s) on each side"
        )


@dataclass(frozen=True, slots=True)
class Cores:
    """The division of the cores between servers and load; empty sets where they are not divided."""

    servers: frozenset[int] = frozenset()
    load: frozenset[int] = frozenset()

    @property
    def apart(self) -> bool:
        return bool(self.load)

    def sentence(self) -> str:
        if self.apart:
            return f"load generator pinned apart, to core(s) {sorted(self.load)}"
        if not hasattr(os, "sched_setaffinity"):
            return "load generator not pinned apart: this system cannot pin"
        return "load generator not pinned apart: too few cores"

    def take_load_cores(self) -> None:
        """Moves this process, the load generator, to its own cores."""
        if self.apart:
            os.sched_setaffinity(0, self.load)

    @contextmanager
    def starting_a_server(self) -> Iterator[None]:
        """Lets processes that are started inside inherit the servers' cores."""
        if not self.apart:
            yield
            return
        os.sched_setaffinity(0, self.servers)
        try:
            yield
        finally:
            os.sched_setaffinity(0, self.load)


def share_out_cores() -> Cores:
    """The last core, or the last two of eight and more, for the load; the others for servers."""
    if not hasattr(os, "sched_getaffinity"):
        return Cores()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < _CORES_TO_SPLIT:
        return Cores()
    count = 1 if len(cores) < 2 * _CORES_TO_SPLIT else 2
    return Cores(frozenset(cores[:-count]), frozenset(cores[-count:]))


def blas_threads(cores: Cores) -> int:
    """Threads of OpenBLAS: one core less than there are, since two that spin on shared cores
    stall each other."""
    if cores.apart:
        return len(cores.servers)
    return max(1, (os.cpu_count() or 2) - 1)


def load_average() -> float:
    return os.getloadavg()[0]


def conditions(cores: Cores, load_before: float) -> Conditions:
    return Conditions(
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        system=f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        processor=_processor(),
        cores=os.cpu_count() or 1,
        load_before=load_before,
        load_after=load_average(),
        pinned=cores.sentence(),
        blas_threads=blas_threads(cores),
    )


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for text in information.read_text().splitlines():
            if text.startswith("model name"):
                return text.partition(":")[2].strip()
    if platform.system() == "Darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return platform.processor() or "unknown processor"
