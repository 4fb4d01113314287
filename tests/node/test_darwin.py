"""The calls to macOS's C library, and how its answers are read. The library is played: it fills
what it is given as the real one does, byte by byte."""

import ctypes
import struct
from typing import Any

import pytest

from node.darwin import Darwin, VirtualMemory

PAGE_BYTES = 16_384
HOST = 0x1203
STATISTICS = struct.pack(
    "<4I9Q2I4Q4IQ",
    *(1_000, 2_000, 3_000, 4_000),
    *range(9),
    *(500, 60),
    *range(4),
    *(7_000, 0, 8_000, 9_000),
    77_000,
)
SWAP = struct.pack("<3QII", 2 << 30, 1 << 30, 1_234, PAGE_BYTES, 1)
SYSCTLS = {
    b"hw.pagesize": struct.pack("<Q", PAGE_BYTES),
    b"hw.memsize": struct.pack("<Q", 64 << 30),
    b"kern.memorystatus_vm_pressure_level": struct.pack("<i", 2),
    b"machdep.cpu.brand_string": b"Apple M4 Max\0",
    b"vm.swapusage": SWAP,
}


class Library:
    """libSystem, as far as it is called."""

    def __init__(self) -> None:
        self.sysctls = dict(SYSCTLS)
        self.hosts = 0
        self.status = 0
        self.mach_host_self = lambda: self._host()

    def _host(self) -> int:
        self.hosts += 1
        return HOST

    def sysctlbyname(self, name: bytes, into: Any, size: Any, new: None, new_size: Any) -> int:
        assert (new, new_size.value) == (None, 0)
        answer = self.sysctls.get(name)
        if answer is None or len(answer) > size._obj.value:
            return -1
        ctypes.memmove(into, answer, len(answer))
        size._obj.value = len(answer)
        return 0

    def host_statistics64(self, host: Any, flavor: Any, into: Any, count: Any) -> int:
        assert (host.value, flavor.value) == (HOST, 4)
        assert count._obj.value * 4 == len(STATISTICS) == 152
        ctypes.memmove(into, STATISTICS, len(STATISTICS))
        return self.status


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    made = Library()
    # A function of a library has a result type; ours names what it means.
    monkeypatch.setattr(made, "mach_host_self", _Function(made._host))
    return made


class _Function:
    restype: Any = None

    def __init__(self, function: Any) -> None:
        self._function = function

    def __call__(self) -> Any:
        return self._function()


def test_numbers_are_read_in_either_width(library: Library) -> None:
    darwin = Darwin(library)
    assert darwin.number("hw.memsize") == 64 << 30
    assert darwin.number("kern.memorystatus_vm_pressure_level") == 2
    assert darwin.number("kern.hv_vmm_present") is None


def test_texts_end_where_they_end(library: Library) -> None:
    darwin = Darwin(library)
    assert darwin.text("machdep.cpu.brand_string") == "Apple M4 Max"
    assert darwin.text("no.such.name") is None


def test_memory_is_read_in_pages(library: Library) -> None:
    darwin = Darwin(library)
    for _ in range(3):
        assert darwin.virtual_memory() == VirtualMemory(
            free_bytes=1_000 * PAGE_BYTES,
            inactive_bytes=3_000 * PAGE_BYTES,
            purgeable_bytes=500 * PAGE_BYTES,
            compressor_bytes=7_000 * PAGE_BYTES,
        )
    assert library.hosts == 1, "each right to a port that is requested has to be given back"
    library.status = 5
    assert darwin.virtual_memory() is None


def test_what_is_swapped_out_is_read_in_bytes(library: Library) -> None:
    assert Darwin(library).swap_bytes() == 1_234
    del library.sysctls[b"vm.swapusage"]
    assert Darwin(library).swap_bytes() is None


def test_where_the_library_lacks_a_call_nothing_is_reported() -> None:
    bare = Darwin(object())
    assert (bare.number("hw.memsize"), bare.text("x")) == (None, None)
    assert (bare.virtual_memory(), bare.swap_bytes()) == (None, None)
