"""The seam to the machine: its chip, its memory, and what of it models may take.

The macOS side asks `sysctl`; it has been tested with recorded answers only, not on a Mac.
"""

import os
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

COMMAND_TIMEOUT_S = 5.0
PACKAGE_ROOT = Path(__file__).parents[1]

Runner = Callable[[Sequence[str]], str | None]
"""Runs a command; its standard output stripped, or None if it fails."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One computer, as far as placement and the memory budget need it."""

    chip: str
    memory_bytes: int
    wired_limit_bytes: int | None = None
    """What macOS lets the GPU wire, where somebody has set it."""

    @property
    def default_budget_bytes(self) -> int:
        """Three quarters of the memory, and no more than the GPU may wire."""
        budget_bytes = self.memory_bytes * 3 // 4
        if self.wired_limit_bytes is None:
            return budget_bytes
        return min(budget_bytes, self.wired_limit_bytes)


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


def _system_memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
