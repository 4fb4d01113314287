"""The machine: its chip, its memory, and the part of it that models may use.

The macOS side uses `node.darwin`; it has been tested with recorded outputs only, not on a Mac.
"""

import functools
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from node.darwin import Darwin, Kernel
from serving.units import GIB

COMMAND_TIMEOUT_S = 5.0
PACKAGE_ROOT = Path(__file__).parents[1]

Runner = Callable[[Sequence[str]], str | None]
"""Runs a command; returns its standard output stripped, or None if it fails."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One computer, as far as placement and the memory limit need it."""

    chip: str
    memory_bytes: int
    wired_limit_bytes: int | None = None
    """Most memory that macOS lets the GPU wire, if it has been set; else None."""
    has_gpu: bool = False
    """True if models run on a GPU, in the same memory."""

    @property
    def reserve_bytes(self) -> int:
        """Bytes for the system and other programs."""
        return max(2 * GIB, self.memory_bytes * 15 // 100)

    @property
    def working_set_bytes(self) -> int:
        """Most memory that a GPU may wire; without a GPU, all memory. By default macOS recommends
        two thirds, and three quarters from 36 GiB on."""
        if not self.has_gpu:
            return self.memory_bytes
        if self.wired_limit_bytes is not None:
            return self.wired_limit_bytes
        if self.memory_bytes < 36 * GIB:
            return self.memory_bytes * 2 // 3
        return self.memory_bytes * 3 // 4

    @property
    def default_limit_bytes(self) -> int:
        """Most memory for models: the working set, but never the reserve; half of a memory that is
        smaller than twice the reserve."""
        rest_bytes = max(self.memory_bytes - self.reserve_bytes, self.memory_bytes // 2)
        return min(self.working_set_bytes, rest_bytes)


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """The free memory at one moment; None for values that the system does not report."""

    available_bytes: int | None = None
    """Memory that programs can get without swapping; on macOS free, inactive and purgeable
    memory."""
    kernel_level: int | None = None
    """Pressure level of macOS: 1 normal, 2 warning, 4 critical."""
    compressor_bytes: int | None = None
    """Memory occupied by compressed pages, on macOS."""
    swap_bytes: int | None = None
    """Bytes used in swap files, on macOS."""


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """A Linux control group that limits the memory of this process, as in containers."""

    limit_bytes: int
    used_bytes: int
    """Used memory without inactive file pages."""

    @property
    def available_bytes(self) -> int:
        return max(self.limit_bytes - self.used_bytes, 0)


def run_command(command: Sequence[str], timeout_s: float = COMMAND_TIMEOUT_S) -> str | None:
    """The command's standard output, or None if it is absent, fails or exceeds the timeout."""
    try:
        done = subprocess.run(
            list(command), capture_output=True, text=True, timeout=timeout_s, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def python_command() -> list[str]:
    """The first arguments of a command that runs our own code in a child process.

    The current folder stays off the module path, since a user's `queue.py` or `node` there must not
    be imported. The exception is the folder of this code itself, which may be on the path by no
    other way.
    """
    return [sys.executable] if Path.cwd() == PACKAGE_ROOT else [sys.executable, "-P"]


def is_mac() -> bool:
    return platform.system() == "Darwin"


@functools.cache
def this_kernel() -> Kernel | None:
    """The kernel of macOS; None on another system."""
    return Darwin() if is_mac() else None


def read_machine(kernel: Kernel | None, run: Runner = run_command) -> Machine:
    """The computer that this process runs on."""
    return _read_linux() if kernel is None else _read_mac(kernel, run)


def _read_mac(kernel: Kernel, run: Runner) -> Machine:
    limit_mb = kernel.number("iogpu.wired_limit_mb")
    return Machine(
        chip=kernel.text("machdep.cpu.brand_string") or kernel.architecture,
        memory_bytes=kernel.number("hw.memsize") or _system_memory_bytes(),
        # 0 means that macOS decides, about three quarters of the memory.
        wired_limit_bytes=limit_mb * 1024**2 if limit_mb else None,
        has_gpu=why_unfit(kernel) is None and _has_metal(kernel, run),
    )


def why_unfit(kernel: Kernel | None) -> str | None:
    """The reason why MLX cannot run in this process, with advice; None if it can."""
    if kernel is None or kernel.architecture == "arm64":
        return None
    if kernel.number("sysctl.proc_translated"):
        return (
            "This Python is one for Intel Macs, translated by Rosetta, and MLX does not run "
            "in it. Install one for Apple silicon (`arch -arm64 brew install python@3.13`), "
            "and recreate the environment with it."
        )
    return (
        "This is an Intel Mac, and MLX runs on Apple silicon only. It can be the fleet's router: "
        "`router serve` needs no MLX."
    )


def _has_metal(kernel: Kernel, run: Runner) -> bool:
    """True if there is a GPU for MLX. Every Mac with Apple silicon has one; in a virtual machine
    only MLX knows."""
    if not kernel.number("kern.hv_vmm_present"):
        return True
    code = "import mlx.core as mx; print(mx.metal.is_available())"
    return run([*python_command(), "-c", code]) == "True"


def _read_linux() -> Machine:
    limits_bytes = [group.limit_bytes for group in memory_groups()]
    return Machine(chip=linux_chip(), memory_bytes=min([_system_memory_bytes(), *limits_bytes]))


def memory_groups(
    own: Path = Path("/proc/self/cgroup"), mount: Path = Path("/sys/fs/cgroup")
) -> list[MemoryGroup]:
    """The control groups, of version 1 or 2, that limit this process's memory."""
    groups = []
    for line in (_text(own) or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            groups += _groups(mount, path, ("memory.max", "memory.current", "inactive_file"))
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            groups += _groups(mount / "memory", path, names)
    return groups


def _groups(root: Path, path: str, names: tuple[str, str, str]) -> list[MemoryGroup]:
    """The process's group and the groups around it. A container sees its own group as the root,
    whatever the path says."""
    limit_name, used_name, inactive_name = names
    folder = root / path.lstrip("/")
    found = []
    for each in (folder, *(above for above in folder.parents if above.is_relative_to(root))):
        limit_bytes = _whole(_text(each / limit_name))
        used_bytes = _whole(_text(each / used_name))
        if limit_bytes is None or used_bytes is None:
            continue  # there is no limit, or it is "max"
        lines = (_text(each / "memory.stat") or "").splitlines()
        stat = dict(line.split(maxsplit=1) for line in lines if " " in line)
        found.append(MemoryGroup(limit_bytes, used_bytes - (_whole(stat.get(inactive_name)) or 0)))
    return found


def _text(file: Path) -> str | None:
    try:
        return file.read_text(errors="replace").strip()
    except OSError:
        return None


def linux_chip(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name, or its architecture if the system does not report the name (ARM)."""
    for line in (_text(cpuinfo) or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name" and value.strip():
            return value.strip()
    return platform.machine()


def read_memory(kernel: Kernel | None) -> MemoryReading:
    """The free memory now, by a few system calls, or from small files on Linux."""
    if kernel is not None:
        return _read_mac_memory(kernel)
    available_bytes = linux_available_bytes()
    known_bytes = [] if available_bytes is None else [available_bytes]
    known_bytes += [group.available_bytes for group in memory_groups()]
    return MemoryReading(available_bytes=min(known_bytes, default=None))


def _read_mac_memory(kernel: Kernel) -> MemoryReading:
    memory = kernel.virtual_memory()
    level = kernel.number("kern.memorystatus_vm_pressure_level")
    if memory is None:
        return MemoryReading(kernel_level=level)
    return MemoryReading(
        available_bytes=memory.free_bytes + memory.inactive_bytes + memory.purgeable_bytes,
        kernel_level=level,
        compressor_bytes=memory.compressor_bytes,
        swap_bytes=kernel.swap_bytes(),
    )


def linux_available_bytes(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """`MemAvailable` in bytes; None if the system does not report it."""
    for line in (_text(meminfo) or "").splitlines():
        key, _, value = line.partition(":")
        kib = _whole(value.removesuffix("kB").strip())
        if key == "MemAvailable" and kib is not None:
            return kib * 1024
    return None


def process_bytes(pid: int) -> int:
    """Resident memory of a process; 0 if it has ended."""
    # psutil is part of the node extra, like everything that starts processes with large memory.
    import psutil

    try:
        resident: int = psutil.Process(pid).memory_info().rss
    except psutil.NoSuchProcess:
        return 0
    return resident


def free_disk_bytes(folder: Path) -> int:
    """Bytes free for this user on the disk where `folder` is or would be made; 0 if unknown."""
    return _disk(folder)[1]


def disk_bytes(folder: Path) -> int:
    """Size of the disk where `folder` is or would be made; 0 if unknown."""
    return _disk(folder)[0]


def _disk(folder: Path) -> tuple[int, int]:
    """Size and free bytes of the folder's disk."""
    try:
        existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        usage = shutil.disk_usage(existing)
    except OSError:
        return 0, 0
    return usage.total, usage.free


def _system_memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
