"""Queries macOS's kernel for facts about this Mac, without a process for each query.

The calls are those of sysctl(3) and of host_statistics64 (mach/host_info.h, mach/vm_statistics.h).
They have been tested with a C library of recorded outputs only, not on a Mac.
"""

import ctypes
import platform
from dataclasses import dataclass
from typing import Any, Protocol

_VM_INFO64 = 4
"""HOST_VM_INFO64."""
_INTEGER_BYTES = 4
"""Size of an `integer_t`, the unit in which the kernel counts its structures."""


@dataclass(frozen=True, slots=True)
class VirtualMemory:
    """Memory of all programs, in bytes."""

    free_bytes: int
    inactive_bytes: int
    """Not used recently; file pages of it can be dropped, the rest compressed."""
    purgeable_bytes: int
    """Memory that programs allow to be dropped."""
    compressor_bytes: int
    """Memory occupied by compressed pages."""


class Kernel(Protocol):
    """The interface to macOS."""

    @property
    def architecture(self) -> str:
        """Architecture of this process: arm64, or x86_64 on an Intel Mac and under Rosetta."""

    def number(self, name: str) -> int | None:
        """The numeric sysctl of that name; None if there is none."""

    def text(self, name: str) -> str | None:
        """The text sysctl of that name; None if there is none."""

    def virtual_memory(self) -> VirtualMemory | None: ...

    def swap_bytes(self) -> int | None:
        """Bytes used in swap files."""


class _VmStatistics64(ctypes.Structure):
    """`vm_statistics64`, in pages."""

    _fields_ = (
        *((name, ctypes.c_uint32) for name in ("free", "active", "inactive", "wire")),
        *((f"count_{number}", ctypes.c_uint64) for number in range(9)),
        *((name, ctypes.c_uint32) for name in ("purgeable", "speculative")),
        *((f"compression_{number}", ctypes.c_uint64) for number in range(4)),
        *((name, ctypes.c_uint32) for name in ("compressor", "throttled", "external", "internal")),
        ("uncompressed", ctypes.c_uint64),
    )


class _SwapUsage(ctypes.Structure):
    """`xsw_usage`, in bytes."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("total", "avail", "used")),
        ("page_size", ctypes.c_uint32),
        ("encrypted", ctypes.c_uint32),
    )


class Darwin:
    """The `Kernel` of this machine."""

    def __init__(self, library: Any = None) -> None:
        self._library = ctypes.CDLL(None) if library is None else library
        self._host: int | None = None
        """A port right, kept since each query for it would allocate another one."""

    @property
    def architecture(self) -> str:
        return platform.machine()

    def number(self, name: str) -> int | None:
        # A 32-bit number fills only the lower half.
        value = ctypes.c_uint64()
        return int(value.value) if self._sysctl(name, value) else None

    def text(self, name: str) -> str | None:
        buffer = ctypes.create_string_buffer(256)
        return buffer.value.decode(errors="replace") if self._sysctl(name, buffer) else None

    def virtual_memory(self) -> VirtualMemory | None:
        page_bytes = self.number("hw.pagesize")
        if page_bytes is None or not hasattr(self._library, "host_statistics64"):
            return None
        if self._host is None:
            self._library.mach_host_self.restype = ctypes.c_uint32
            self._host = self._library.mach_host_self()
        pages = _VmStatistics64()
        count = ctypes.c_uint32(ctypes.sizeof(pages) // _INTEGER_BYTES)
        host = ctypes.c_uint32(self._host)
        failed = self._library.host_statistics64(
            host, ctypes.c_int(_VM_INFO64), ctypes.byref(pages), ctypes.byref(count)
        )
        if failed:
            return None
        return VirtualMemory(
            free_bytes=pages.free * page_bytes,
            inactive_bytes=pages.inactive * page_bytes,
            purgeable_bytes=pages.purgeable * page_bytes,
            compressor_bytes=pages.compressor * page_bytes,
        )

    def swap_bytes(self) -> int | None:
        usage = _SwapUsage()
        return int(usage.used) if self._sysctl("vm.swapusage", usage) else None

    def _sysctl(self, name: str, into: Any) -> bool:
        """Reads a sysctl into `into`; False if there is none or it does not fit."""
        if not hasattr(self._library, "sysctlbyname"):
            return False
        size = ctypes.c_size_t(ctypes.sizeof(into))
        failed = self._library.sysctlbyname(
            name.encode(), ctypes.byref(into), ctypes.byref(size), None, ctypes.c_size_t(0)
        )
        return not failed
