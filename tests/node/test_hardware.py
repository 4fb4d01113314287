"""Tests the agent's reading of the machine."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from node.darwin import VirtualMemory
from node.hardware import (
    PACKAGE_ROOT,
    Machine,
    MemoryGroup,
    MemoryReading,
    disk_bytes,
    free_disk_bytes,
    linux_available_bytes,
    linux_chip,
    memory_groups,
    python_command,
    read_machine,
    read_memory,
    run_command,
    this_kernel,
    why_unfit,
)
from tests.node.kernels import PlayedKernel

GIB = 1024**3


def test_reads_a_mac_from_its_kernel() -> None:
    kernel = PlayedKernel(
        {
            "hw.memsize": 68719476736,
            "machdep.cpu.brand_string": "Apple M4 Max",
            "iogpu.wired_limit_mb": 0,
        }
    )
    machine = read_machine(kernel, no_command)
    assert machine == Machine("Apple M4 Max", 64 * GIB, has_gpu=True)
    assert machine.default_limit_bytes == 48 * GIB


def no_command(command: Sequence[str]) -> str | None:
    raise AssertionError(command)


@pytest.mark.parametrize(("answer", "has_gpu"), [("True", True), ("False", False), (None, False)])
def test_of_a_virtual_machine_only_mlx_knows_whether_it_has_a_gpu(
    answer: str | None, has_gpu: bool
) -> None:
    kernel = PlayedKernel({"kern.hv_vmm_present": 1, "hw.memsize": 16 * GIB})
    assert read_machine(kernel, lambda command: answer).has_gpu is has_gpu


@pytest.mark.parametrize(
    ("sysctls", "words"),
    [
        ({"sysctl.proc_translated": 1}, "translated by Rosetta"),
        ({"sysctl.proc_translated": 0}, "an Intel Mac"),
        ({}, "an Intel Mac"),
    ],
)
def test_without_apple_silicon_there_is_no_gpu_for_mlx(sysctls: dict[str, int], words: str) -> None:
    kernel = PlayedKernel(dict(sysctls), architecture="x86_64")
    assert words in (why_unfit(kernel) or "")
    assert not read_machine(kernel, no_command).has_gpu
    assert why_unfit(PlayedKernel({})) is None
    assert why_unfit(None) is None


def test_models_may_take_what_the_gpu_may_wire_and_never_the_reserve() -> None:
    def limit_gib(memory_gib: int, wired_gib: int | None = None) -> float:
        wired_bytes = None if wired_gib is None else wired_gib * GIB
        return Machine("x", memory_gib * GIB, wired_bytes, True).default_limit_bytes / GIB

    assert limit_gib(64, 40) == 40
    assert limit_gib(100, 95) == 85
    assert limit_gib(24) == 16
    assert limit_gib(36) == 27
    assert limit_gib(8, 8) == 6


def test_without_a_gpu_models_may_take_all_but_the_reserve() -> None:
    assert Machine("x", 100 * GIB).default_limit_bytes == 85 * GIB
    assert Machine("x", 8 * GIB).default_limit_bytes == 6 * GIB
    assert Machine("x", 2 * GIB).default_limit_bytes == GIB


def test_reads_the_memory_of_a_mac() -> None:
    level = {"kern.memorystatus_vm_pressure_level": 2}
    assert read_memory(PlayedKernel(dict(level))) == MemoryReading(kernel_level=2)
    memory = VirtualMemory(
        free_bytes=1, inactive_bytes=20, purgeable_bytes=300, compressor_bytes=4000
    )
    kernel = PlayedKernel(dict(level), memory=memory, swap=50_000)
    assert read_memory(kernel) == MemoryReading(321, 2, 4000, 50_000)
    assert read_memory(PlayedKernel({})) == MemoryReading()


def test_reads_the_available_memory_of_linux(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       24684092 kB\nMemAvailable:   1000 kB\n")
    assert linux_available_bytes(meminfo) == 1_024_000
    meminfo.write_text("MemTotal:       24684092 kB\n")
    assert linux_available_bytes(meminfo) is None
    assert linux_available_bytes(tmp_path / "none") is None
    assert read_memory(None).kernel_level is None


V1_STAT = "cache 900\ntotal_cache 900\ntotal_inactive_file 300\n"
V2_STAT = "anon 500\nfile 400\ninactive_file 100\n"


def write_group(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)


def test_reads_the_limits_of_control_groups(tmp_path: Path) -> None:
    """Reads recorded files: version 2 with a limit around an unlimited group."""
    own, mount = tmp_path / "own", tmp_path / "mount"
    own.write_text("0::/system.slice/agent.service\n")
    limited = {"memory.max": "4000\n", "memory.current": "1000\n", "memory.stat": V2_STAT}
    write_group(mount / "system.slice", limited)
    write_group(
        mount / "system.slice" / "agent.service", {"memory.max": "max\n", "memory.current": "9\n"}
    )
    (group,) = memory_groups(own, mount)
    assert group == MemoryGroup(limit_bytes=4000, used_bytes=900)
    assert group.available_bytes == 3100
    assert MemoryGroup(5, 9).available_bytes == 0
    assert memory_groups(tmp_path / "none", mount) == []


def test_a_container_sees_its_own_group_as_the_root(tmp_path: Path) -> None:
    """Reads recorded files: version 1, whose path is that of the host."""
    own, mount = tmp_path / "own", tmp_path / "mount"
    own.write_text("12:cpu,cpuacct:/docker/0f3a\n5:memory:/docker/0f3a\n1:name=systemd:/x\n")
    files = {"memory.limit_in_bytes": "2147483648\n", "memory.usage_in_bytes": "1000\n"}
    write_group(mount / "memory", {**files, "memory.stat": V1_STAT})
    assert memory_groups(own, mount) == [MemoryGroup(2 * GIB, 700)]


def test_a_control_group_limits_the_machine_and_what_is_available(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    groups = [MemoryGroup(100_000, 40_000), MemoryGroup(90_000, 20_000)]
    monkeypatch.setattr("node.hardware.memory_groups", lambda: groups)
    assert read_machine(None).memory_bytes == 90_000
    assert read_memory(None).available_bytes == 60_000


def test_the_disk_of_a_folder_to_be_made_is_known(tmp_path: Path) -> None:
    assert free_disk_bytes(tmp_path / "a" / "b") > 0
    assert disk_bytes(tmp_path / "a") >= free_disk_bytes(tmp_path / "a")
    assert free_disk_bytes(tmp_path / ("x" * 300)) == 0


def test_a_silent_sysctl_falls_back_to_the_system() -> None:
    machine = read_machine(PlayedKernel({}), no_command)
    assert machine.memory_bytes > 0
    assert machine.chip


def test_reads_this_machine() -> None:
    machine = read_machine(this_kernel())
    assert machine.chip
    assert 0 < machine.default_limit_bytes < machine.memory_bytes


def test_reads_the_chip_from_cpuinfo(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: Example CPU 9\n")
    assert linux_chip(cpuinfo) == "Example CPU 9"
    cpuinfo.write_text("processor\t: 0\n")
    assert linux_chip(cpuinfo)
    assert linux_chip(tmp_path / "none")


def test_a_command_that_fails_or_is_absent_answers_none() -> None:
    assert run_command([sys.executable, "-c", "print('x')"]) == "x"
    assert run_command([sys.executable, "-c", "raise SystemExit(1)"]) is None
    assert run_command(["no-such-command-anywhere"]) is None


def test_a_child_imports_nothing_from_the_folder_where_the_command_is_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(PACKAGE_ROOT)
    assert python_command() == [sys.executable]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(PACKAGE_ROOT))
    for name in ("queue", "node"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')")
    code = "import node.engine.worker, queue; print('ours')"
    assert run_command([*python_command(), "-c", code], timeout_s=30) == "ours"
