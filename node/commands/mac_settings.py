"""Checks of macOS's settings: sleep, backups, firewall, local network permission. Tested with
recorded outputs only, not on a Mac."""

import errno
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

from node.commands.backups import is_excluded, unsaved_folders
from node.commands.doctor_network import dial_http, gateway
from node.darwin import Kernel
from node.engine.probe.line import Line, not_measured
from node.hardware import Runner
from node.settings import Settings
from serving.units import GIB

SYSTEM, SETTINGS = "system", "settings of macOS"
_FIREWALL = "/usr/libexec/ApplicationFirewall/socketfilterfw"
_LEAST_PYTHON = (3, 11)


def system(run: Runner, kernel: Kernel | None) -> Iterator[Line]:
    found = f"{platform.python_version()}, {platform.machine()}"
    ok = sys.version_info[:2] >= _LEAST_PYTHON
    yield Line(SYSTEM, "Python", "3.11 or newer", found, ok)
    if kernel is None:
        yield not_measured(SYSTEM, "Apple silicon, not translated", "arm64", "this is no Mac")
        yield not_measured(SYSTEM, "macOS", "reported", "this is no Mac")
        return
    translated = bool(kernel.number("sysctl.proc_translated"))
    found = f"{kernel.architecture}{', translated by Rosetta' if translated else ''}"
    ok = kernel.architecture == "arm64" and not translated
    yield Line(SYSTEM, "Apple silicon, not translated", "arm64", found, ok)
    version = run(["sw_vers", "-productVersion"]) or "?"
    build = run(["sw_vers", "-buildVersion"]) or "?"
    chip = kernel.text("machdep.cpu.brand_string") or "?"
    memory_gib = (kernel.number("hw.memsize") or 0) >> 30
    driver = _driver_version(run)
    found = f"{version} ({build}), {chip}, {memory_gib} GiB, IOGPUFamily {driver}"
    yield Line(SYSTEM, "macOS", "reported", found, ok=True)
    backlog = kernel.number("kern.ipc.somaxconn")
    yield Line(
        SYSTEM, "connections that wait to be accepted", "reported", f"{backlog or '?'}", ok=True
    )
    yield from _kernel(run, kernel)


def _kernel(run: Runner, kernel: Kernel) -> Iterator[Line]:
    """Compares the kernel's values as the agent reads them with those of the system's command."""
    names = ("hw.memsize", "kern.memorystatus_vm_pressure_level", "hw.pagesize")
    pairs = [(run(["sysctl", "-n", name]), kernel.number(name)) for name in names]
    same = sum(result == f"{number}" for result, number in pairs)
    expected = "as the command sysctl says"
    yield Line(SYSTEM, "sysctl", expected, f"{same} of {len(pairs)} are", same == len(pairs))
    memory, most_bytes = kernel.virtual_memory(), kernel.number("hw.memsize") or 0
    name, expected = "memory by kind", "reported, and no more than the machine has"
    if memory is None:
        yield Line(SYSTEM, name, expected, "not reported", ok=False)
        return
    parts = (memory.free_bytes, memory.inactive_bytes, memory.compressor_bytes)
    swap_gib = (kernel.swap_bytes() or 0) / GIB
    words = "{:.1f} GiB free, {:.1f} inactive, {:.1f} of the compressor".format(
        *(each / GIB for each in parts)
    )
    ok = 0 < sum(parts) < most_bytes
    yield Line(SYSTEM, name, expected, f"{words}, {swap_gib:.1f} swapped out", ok)


def _driver_version(run: Runner) -> str:
    listed = run(["kextstat", "-b", "com.apple.iokit.IOGPUFamily"]) or ""
    found = re.search(r"IOGPUFamily \(([^)]+)\)", listed)
    return found[1] if found else "?"


def settings_of_macos(settings: Settings, run: Runner, *, mac: bool) -> Iterator[Line]:
    lines = {
        "sleep when idle": "reported",
        "sleep is prevented while it works": "an assertion of this process, taken and released",
        "models and KV are excluded from backups": "excluded",
        "firewall": "reported",
        "local network": "the gateway can be dialled",
    }
    if not mac:
        yield from (not_measured(SETTINGS, *line, "this is no Mac") for line in lines.items())
        return
    yield _sleep(run)
    yield _assertion(run)
    yield _backups(settings, run)
    state = run([_FIREWALL, "--getglobalstate"]) or "not reported"
    yield Line(SETTINGS, "firewall", lines["firewall"], state.splitlines()[0], ok=True)
    yield _gateway(run)


def _sleep(run: Runner) -> Line:
    found = re.search(r"^\s*sleep\s+(\d+)(.*)$", run(["pmset", "-g"]) or "", re.MULTILINE)
    if found is None:
        words = "not reported"
    elif found[1] == "0" or "prevented" in found[2]:
        words = "never, or prevented now"
    else:
        words = f"after {found[1]} minutes"
    return Line(SETTINGS, "sleep when idle", "reported", words, ok=True)


def _assertion(run: Runner) -> Line:
    name = "sleep is prevented while it works"
    expected = "an assertion of this process, taken and released"
    try:
        holder = subprocess.Popen(["caffeinate", "-i", "-w", str(os.getpid())])
    except OSError:
        return Line(SETTINGS, name, expected, "there is no caffeinate", ok=False)
    pid = f"pid {holder.pid}("
    try:
        taken = _until(lambda: pid in (run(["pmset", "-g", "assertions"]) or ""))
    finally:
        holder.terminate()
        holder.wait()
    released = pid not in (run(["pmset", "-g", "assertions"]) or "")
    found = f"{'taken' if taken else 'not taken'}, {'released' if released else 'kept'}"
    return Line(SETTINGS, name, expected, found, taken and released)


def _until(holds: Callable[[], bool], most_s: float = 3.0) -> bool:
    end_s = time.monotonic() + most_s
    while time.monotonic() < end_s:
        if holds():
            return True
        time.sleep(0.1)
    return False


def _backups(settings: Settings, run: Runner) -> Line:
    there = [folder for folder in unsaved_folders(settings) if folder.exists()]
    excluded = sum(is_excluded(folder, run) for folder in there)
    name = "models and KV are excluded from backups"
    found = f"{excluded} of {len(there)} folders excluded"
    return Line(SETTINGS, name, "excluded", found, excluded == len(there))


def _gateway(run: Runner) -> Line:
    """Checks the way to the gateway. A refused connection has reached it; without the local network
    permission there is no route to it."""
    name, expected = "local network", "the gateway can be dialled"
    address = gateway(run)
    if address is None:
        return Line(SETTINGS, name, expected, "there is no gateway", None)
    number = dial_http(address)
    result = errno.errorcode.get(number, "connected, or no response")
    return Line(SETTINGS, name, expected, result, number != errno.EHOSTUNREACH)
