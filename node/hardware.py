"""The seam to the machine: its chip, its memory, and what of it models may take.

The macOS side asks `sysctl`; it has been tested with recorded answers only, not on a Mac.
"""

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

GIB = 1024**3
COMMAND_TIMEOUT_S = 5.0
PACKAGE_ROOT = Path(__file__).parents[1]

Runner = Callable[[Sequence[str]], str | None]
"""Runs a command; its standard output stripped, or None if it fails."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One computer, as far as placement and the memory limit need it."""

    chip: str
    memory_bytes: int
    wired_limit_bytes: int | None = None
    """What macOS lets the GPU wire, where somebody has set it."""
    has_gpu: bool = False
    """Whether models run on a GPU, in the same memory."""

    @property
    def reserve_bytes(self) -> int:
        """For the system and other programs."""
        return max(2 * GIB, self.memory_bytes * 15 // 100)

    @property
    def working_set_bytes(self) -> int:
        """What a GPU may wire; without one, all of the memory. Unless somebody has set it, macOS
        recommends two thirds, from 36 GiB on three quarters."""
        if not self.has_gpu:
            return self.memory_bytes
        if self.wired_limit_bytes is not None:
            return self.wired_limit_bytes
        if self.memory_bytes < 36 * GIB:
            return self.memory_bytes * 2 // 3
        return self.memory_bytes * 3 // 4

    @property
    def default_limit_bytes(self) -> int:
        """Most that models may take: the working set, and never the reserve; half of a memory that
        is smaller than twice the reserve."""
        rest_bytes = max(self.memory_bytes - self.reserve_bytes, self.memory_bytes // 2)
        return min(self.working_set_bytes, rest_bytes)


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """How much memory is left at a moment; None what the system does not tell."""

    available_bytes: int | None = None
    """What programs can have without swapping."""
    kernel_level: int | None = None
    """Of macOS: 1 normal, 2 warning, 4 critical."""


def run_command(command: Sequence[str], timeout_s: float = COMMAND_TIMEOUT_S) -> str | None:
    """The command's standard output, or None if it is absent, fails or takes too long."""
    try:
        done = subprocess.run(
            list(command), capture_output=True, text=True, timeout=timeout_s, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def python_command() -> list[str]:
    """The start of a command that runs our own code in a process of its own.

    The current folder stays off the module path: a user's `queue.py` or `node` there must not be
    imported. Only where that folder is this code itself may nothing else lead to it.
    """
    return [sys.executable] if Path.cwd() == PACKAGE_ROOT else [sys.executable, "-P"]


def is_mac() -> bool:
    return platform.system() == "Darwin"


def read_machine(run: Runner = run_command, *, mac: bool | None = None) -> Machine:
    """The computer that this process runs on."""
    return _read_mac(run) if (is_mac() if mac is None else mac) else _read_linux()


def _read_mac(run: Runner) -> Machine:
    memory_bytes = _whole(run(["sysctl", "-n", "hw.memsize"])) or _system_memory_bytes()
    limit_mb = _whole(run(["sysctl", "-n", "iogpu.wired_limit_mb"]))
    return Machine(
        chip=run(["sysctl", "-n", "machdep.cpu.brand_string"]) or platform.machine(),
        memory_bytes=memory_bytes,
        # 0 means that macOS decides, about three quarters of the memory.
        wired_limit_bytes=limit_mb * 1024**2 if limit_mb else None,
        has_gpu=True,
    )


def _read_linux() -> Machine:
    return Machine(chip=linux_chip(), memory_bytes=_system_memory_bytes())


def linux_chip(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name, or its architecture where the system does not tell (ARM)."""
    try:
        lines = cpuinfo.read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name" and value.strip():
            return value.strip()
    return platform.machine()


def read_memory(run: Runner = run_command, *, mac: bool | None = None) -> MemoryReading:
    """How much memory is left now. Spawns a process on macOS, so not for an event loop."""
    if is_mac() if mac is None else mac:
        level = _whole(run(["sysctl", "-n", "kern.memorystatus_vm_pressure_level"]))
        return MemoryReading(kernel_level=level)
    return MemoryReading(available_bytes=linux_available_bytes())


def linux_available_bytes(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """`MemAvailable`; None where the system does not tell."""
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        key, _, value = line.partition(":")
        kib = _whole(value.removesuffix("kB").strip())
        if key == "MemAvailable" and kib is not None:
            return kib * 1024
    return None


def free_disk_bytes(folder: Path) -> int:
    """Free for us on the disk where `folder` is or would be made; 0 where that cannot be told."""
    try:
        existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        return shutil.disk_usage(existing).free
    except OSError:
        return 0


def _system_memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
