"""What the agent asks of the machine."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from node.hardware import (
    PACKAGE_ROOT,
    Machine,
    linux_chip,
    python_command,
    read_machine,
    run_command,
)


def recorded(answers: dict[str, str]) -> "Recorded":
    return Recorded(answers)


class Recorded:
    """Answers commands by their last word."""

    def __init__(self, answers: dict[str, str]) -> None:
        self._answers = answers

    def __call__(self, command: Sequence[str]) -> str | None:
        return self._answers.get(command[-1])


def test_reads_a_mac_from_sysctl() -> None:
    run = recorded(
        {
            "hw.memsize": "68719476736",
            "machdep.cpu.brand_string": "Apple M4 Max",
            "iogpu.wired_limit_mb": "0",
        }
    )
    machine = read_machine(run, mac=True)
    assert machine == Machine("Apple M4 Max", 64 * 1024**3)
    assert machine.default_budget_bytes == 48 * 1024**3


def test_the_wired_limit_bounds_the_default_budget() -> None:
    machine = Machine("Apple M4", 64 * 1024**3, wired_limit_bytes=40 * 1024**3)
    assert machine.default_budget_bytes == 40 * 1024**3


def test_a_silent_sysctl_falls_back_to_the_system() -> None:
    machine = read_machine(recorded({}), mac=True)
    assert machine.memory_bytes > 0
    assert machine.chip


def test_reads_this_machine() -> None:
    machine = read_machine()
    assert machine.chip
    assert 0 < machine.default_budget_bytes < machine.memory_bytes


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
    code = "import node.worker, queue; print('ours')"
    assert run_command([*python_command(), "-c", code], timeout_s=30) == "ours"
