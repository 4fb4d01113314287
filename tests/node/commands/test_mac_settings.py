"""Tests the reading of macOS's answers, as they were recorded or as its manuals have them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from node.commands.mac_settings import settings_of_macos, system
from node.darwin import VirtualMemory
from node.settings import Settings
from tests.node.kernels import PlayedKernel

ANSWERS = {
    "sysctl -n hw.memsize": str(32 << 30),
    "sysctl -n hw.pagesize": "16384",
    "sysctl -n kern.memorystatus_vm_pressure_level": "1",
    "sw_vers -productVersion": "26.4.1",
    "sw_vers -buildVersion": "25E246",
    "pmset -g": " sleep                1 (sleep prevented by caffeinate)\n disksleep 10",
    "/usr/libexec/ApplicationFirewall/socketfilterfw --getglobalstate": (
        "Firewall is enabled. (State = 1)"
    ),
    "kextstat -b com.apple.iokit.IOGPUFamily": "  68 0x1 com.apple.iokit.IOGPUFamily (104.4.1) <1>",
}


KERNEL = PlayedKernel(
    {
        "sysctl.proc_translated": 0,
        "machdep.cpu.brand_string": "Apple M4",
        "hw.memsize": 32 << 30,
        "hw.pagesize": 16384,
        "kern.ipc.somaxconn": 128,
        "kern.memorystatus_vm_pressure_level": 1,
    },
    memory=VirtualMemory(3 << 30, 2 << 30, 1 << 30, 1 << 29),
    swap=1 << 30,
)


def answering(**changed: str) -> Callable[[Sequence[str]], str | None]:
    answers = {**ANSWERS, **{name.replace("_", " "): text for name, text in changed.items()}}
    return lambda command: answers.get(" ".join(command))


def test_the_machine_is_reported_with_its_system_and_driver() -> None:
    found = {each.name: each for each in system(answering(), KERNEL)}
    assert found["macOS"].found == "26.4.1 (25E246), Apple M4, 32 GiB, IOGPUFamily 104.4.1"
    assert found["connections that wait to be accepted"].found == "128"


def test_a_python_that_is_translated_fails() -> None:
    kernel = PlayedKernel({"sysctl.proc_translated": 1}, architecture="x86_64")
    lines = system(answering(), kernel)
    (found,) = (each for each in lines if each.name.startswith("Apple silicon"))
    assert found.ok is False
    assert found.found == "x86_64, translated by Rosetta"


def test_what_the_kernel_reports_is_compared_with_the_system_s_own_command() -> None:
    found = {each.name: each for each in system(answering(), KERNEL)}
    assert (found["sysctl"].found, found["sysctl"].ok) == ("3 of 3 are", True)
    memory = found["memory by kind"]
    assert memory.ok
    words = "3.0 GiB free, 2.0 inactive, 0.5 of the compressor, 1.0 swapped out"
    assert memory.found == words
    misread = replace(KERNEL, sysctls={**KERNEL.sysctls, "hw.memsize": 1}, memory=None)
    found = {each.name: each for each in system(answering(), misread)}
    assert found["sysctl"].ok is False and found["memory by kind"].ok is False


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (ANSWERS["pmset -g"], "never, or prevented now"),
        (" sleep                0\n", "never, or prevented now"),
        (" sleep                10\n", "after 10 minutes"),
        ("", "not reported"),
    ],
)
def test_how_soon_a_mac_sleeps_is_reported(answer: str, words: str, tmp_path: Path) -> None:
    run = answering()
    lines = settings_of_macos(
        Settings(home=tmp_path),
        lambda command: answer if list(command) == ["pmset", "-g"] else run(command),
        mac=True,
    )
    assert next(each for each in lines if each.name == "sleep when idle").found == words


def test_folders_that_are_backed_up_fail(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    settings.models_folder.mkdir(parents=True)
    settings.kv_folder.mkdir(parents=True)
    run = answering()

    def tmutil(command: Sequence[str]) -> str | None:
        if command[0] != "tmutil":
            return run(command)
        return "[Excluded]   x" if command[-1].endswith("kv") else "[Included]   x"

    lines = settings_of_macos(settings, tmutil, mac=True)
    (found,) = (each for each in lines if "backups" in each.name)
    assert (found.found, found.ok) == ("1 of 2 folders excluded", False)


def test_the_sleep_assertion_is_taken_and_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "caffeinate"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    run = answering()

    def pmset(command: Sequence[str]) -> str | None:
        if list(command) != ["pmset", "-g", "assertions"]:
            return run(command)
        alive = [
            entry.name
            for entry in Path("/proc").iterdir()
            if entry.name.isdecimal() and "sleep\0" in _words(entry / "cmdline")
        ]
        return "\n".join(f"   pid {pid}(caffeinate): PreventUserIdleSystemSleep" for pid in alive)

    lines = settings_of_macos(Settings(home=tmp_path / "home"), pmset, mac=True)
    (found,) = (each for each in lines if each.name.startswith("sleep is prevented"))
    assert (found.found, found.ok) == ("taken, released", True)


def _words(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
