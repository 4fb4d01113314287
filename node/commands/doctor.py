"""`node-agent doctor`: checks this machine for what the agent needs, with advice for each failure.

The macOS checks have been tested with recorded outputs only, not on a Mac.
"""

import functools
import platform
import re
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
from rich.table import Column, Table
from rich.text import Text

from node.agent.warm_prompts import read_plan
from node.app import build_store, memory_limit_bytes
from node.commands.checks import Check, Level
from node.commands.configuration import missing_extra
from node.commands.doctor_network import check_network, program_paths
from node.commands.health.clock import check_clock, check_power
from node.commands.health.hashes import check_hashes
from node.commands.health.storage import check_disk_speed, check_home
from node.commands.health.versions import check_versions
from node.commands.models import advice_on
from node.commands.run.own_agent import running_agent
from node.darwin import Kernel
from node.engine.model.blas import load_fast_blas
from node.engines.memory_budget import Budget
from node.engines.sizing import Room, plan_engine, stored_choices
from node.errors import DoesNotFit, StartError
from node.hardware import (
    Machine,
    MemoryReading,
    Runner,
    free_disk_bytes,
    python_command,
    read_machine,
    read_memory,
    run_command,
    this_kernel,
    why_unfit,
)
from node.protocol.extra import INSTALL_EXTRA, WHERE
from node.server.pairings import Pairings
from node.settings import Settings
from serving.errors import CannotStart
from serving.http.listening import CannotListen, PortInUse, listening
from serving.stay_awake import StayAwake
from serving.terminal.bars import progress
from serving.terminal.output import put, put_json
from serving.terminal.screen import Screen
from serving.tls.own_certificate import own_certificate
from serving.units import GIB, gib

CHILD_TIMEOUT_S = 60.0
LOW_DISK_BYTES = 20 * 10**9
SMALL_LIMIT_BYTES = 4 * GIB


_SLEEP = re.compile(r"^\s*sleep\s+(\d+)(?:\s+\(sleep prevented by ([^)]*)\))?", re.MULTILINE)
"""Matches in the output of `pmset -g` the minutes until sleep, 0 for never, and the programs that
prevent it at present."""
_STYLES = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "red", Level.UNKNOWN: "dim"}


def run_doctor(settings: Settings, *, hashes: bool = False, as_json: bool) -> bool:
    """Prints all checks of a machine that is to serve with these settings; True if none failed.
    With `hashes` the files of all models are read, too."""
    run = functools.partial(run_command, timeout_s=CHILD_TIMEOUT_S)
    with progress("examining this machine"):
        checks = list(examine(settings, run, this_kernel()))
    if hashes:
        checks += check_hashes(build_store(settings))
    if as_json:
        put_json(msgspec.json.encode(checks).decode())
    else:
        # A path that is too long for its line is wrapped, not cut.
        text_column = Column(overflow="fold")
        table = Table("", "", text_column, box=None, show_header=False, padding=(0, 2, 0, 0))
        for check in checks:
            text = "\n".join([f"{check.sentence} {check.advice}".strip(), *check.reasons])
            table.add_row(Text(check.level, style=_STYLES[check.level]), check.name, text)
        Screen().print(table)
        failed = [check.name for check in checks if check.level is Level.FAIL]
        put(f"To be mended: {', '.join(failed)}." if failed else "Nothing has to be mended.")
    return all(check.level is not Level.FAIL for check in checks)


def examine(settings: Settings, run: Runner, kernel: Kernel | None) -> Iterator[Check]:
    """All checks, in the order in which they are shown. `kernel` is that of macOS, or None."""
    machine = read_machine(kernel, run)
    yield check_python(kernel)
    yield check_extra(missing_extra())
    yield check_mlx(run, kernel)
    yield check_versions(run, kernel)
    yield check_settings(settings, machine)
    yield check_memory(settings, machine, read_memory(kernel))
    yield check_disk(settings, free_disk_bytes)
    yield check_disk_speed(settings, free_disk_bytes(settings.models_folder))
    yield check_port(settings)
    yield check_home(settings)
    yield check_token(settings)
    yield check_clock(run, kernel)
    yield check_models(settings)
    yield from plan_models(settings, machine, free_disk_bytes(settings.kv_folder))
    if kernel is not None:
        yield check_wired_limit(machine)
        yield check_wired(settings)
        yield check_sleep(settings.stay_awake, run)
        yield check_power(run)
        yield from check_network(settings, run, program_paths())
    else:
        yield check_compiler(shutil.which)
        yield check_blas(load_fast_blas)


def check_python(kernel: Kernel | None) -> Check:
    if reason := why_unfit(kernel):
        return Check("python", Level.FAIL, reason)
    return Check("python", Level.OK, f"Python {platform.python_version()} runs the agent.")


def check_extra(missing: Sequence[str]) -> Check:
    if missing:
        sentence = f"The node extra is not complete: {', '.join(missing)} missing."
        return Check("extra", Level.FAIL, sentence, f"Run `{INSTALL_EXTRA}` {WHERE}.")
    return Check("extra", Level.OK, "The node extra is installed.")


def check_settings(settings: Settings, machine: Machine) -> Check:
    """Checks the settings as `serve` does before it starts."""
    try:
        if settings.tls_file.exists():
            own_certificate(settings.tls_file)
        Pairings(settings.pairings_file)
        memory_limit_bytes(settings, machine)
        build_store(settings)
        read_plan(settings.warm)
    except (StartError, CannotStart) as error:
        advice = "With these settings the agent does not start; correct them."
        return Check("settings", Level.FAIL, str(error), advice)
    return Check("settings", Level.OK, "The agent can start with these settings.")


def check_mlx(run: Runner, kernel: Kernel | None) -> Check:
    # In a child process: only an engine process may import MLX, and a broken MLX can end its
    # process.
    code = "import mlx.core as mx, mlx_lm; print(mx.__version__, mx.default_device())"
    output = run([*python_command(), "-c", code])
    if output is None:
        advice = f"Install it with `{INSTALL_EXTRA}` {WHERE}."
        return Check("mlx", Level.FAIL, "MLX or mlx-lm cannot be imported.", advice)
    if kernel is not None and "gpu" not in output:
        sentence = f"MLX {output} finds no GPU on this Mac, and models would run on its CPU."
        advice = "A virtual machine may have none; serve from the Mac itself."
        return Check("mlx", Level.FAIL, sentence, advice)
    return Check("mlx", Level.OK, f"MLX {output} and mlx-lm can be imported.")


def check_memory(settings: Settings, machine: Machine, reading: MemoryReading) -> Check:
    available_bytes = reading.available_bytes
    limit_bytes = settings.memory_limit_bytes or machine.default_limit_bytes
    available = "?" if available_bytes is None else f"{available_bytes / GIB:.0f}"
    sentence = (
        f"{machine.chip} with {machine.memory_bytes / GIB:.0f} GiB, {available} GiB of them "
        f"available; models may take {gib(limit_bytes)}, and {gib(machine.reserve_bytes)} are "
        "meant for the system."
    )
    if reading.swap_bytes:
        sentence += f" {gib(reading.swap_bytes)} are swapped out."
    figures = {
        "memory_bytes": machine.memory_bytes,
        "limit_bytes": limit_bytes,
        "reserve_bytes": machine.reserve_bytes,
    }
    level, advice = Level.OK, ""
    if limit_bytes > machine.memory_bytes:
        level, advice = Level.FAIL, "The limit is larger than the memory: lower --memory-limit."
    elif limit_bytes < SMALL_LIMIT_BYTES:
        level, advice = Level.WARN, "That is enough for small models only."
    elif available_bytes is not None and limit_bytes > available_bytes:
        advice = "Close other programs, or lower --memory-limit, or the machine will swap."
        level = Level.WARN
    return Check("memory", level, sentence, advice, figures)


def plan_models(settings: Settings, machine: Machine, disk_free_bytes: int) -> Iterator[Check]:
    """Memory that each model on disk would get if it were the only one loaded."""
    try:
        limit_bytes = memory_limit_bytes(settings, machine)
        entries = build_store(settings).list()
    except StartError:
        return  # other checks report it
    for entry in entries:
        budget = Budget(limit_bytes)
        plan = plan_engine(entry, Room(limit_bytes, disk_free_bytes, machine.has_gpu), settings)
        name = f"plan of {entry.name}"
        try:
            budget.admit(entry.name, plan.fixed, settings.kv_cache_bytes)
        except DoesNotFit as error:
            yield Check(name, Level.WARN, error.message)
            continue
        lease = budget.lease(entry.name)
        sentence = (
            f"Weights {gib(lease.weight_bytes)}, live KV {gib(lease.live_kv_bytes)}, stored KV "
            f"{gib(lease.stored_kv_bytes)} (on disk {gib(plan.disk_bytes)}), {plan.max_rows} rows."
        )
        choices = (*plan.choices, *stored_choices(lease.stored_kv_bytes, 1, settings))
        figures = {
            **msgspec.structs.asdict(lease),
            "disk_kv_bytes": plan.disk_bytes,
            "max_rows": plan.max_rows,
            "prefill_chunk_tokens": plan.prefill_chunk_tokens,
        }
        reasons = tuple(choice.line for choice in choices)
        yield Check(name, Level.OK, sentence, figures=figures, reasons=reasons)


def check_disk(settings: Settings, free: Callable[[Path], int]) -> Check:
    free_bytes = free(settings.models_folder)
    sentence = f"{free_bytes / 1e9:.0f} GB are free for models in {settings.models_folder}."
    if free_bytes < LOW_DISK_BYTES:
        return Check("disk", Level.WARN, sentence, "A model takes 1 to 100 GB; make room.")
    return Check("disk", Level.OK, sentence)


def check_port(settings: Settings) -> Check:
    where = f"{settings.host}:{settings.port}"
    try:
        with listening(settings.host, settings.port):
            return Check("port", Level.OK, f"{where} is free.")
    except PortInUse as error:
        if running_agent(settings) is not None:
            return Check("port", Level.OK, f"The agent of this home listens at {where}.")
        advice = "If that is no agent of another home, end it; or give another --port."
        return Check("port", Level.FAIL, str(error), advice)
    except CannotListen as error:
        return Check("port", Level.FAIL, str(error), "Give another --host or --port.")


def check_token(settings: Settings) -> Check:
    file = settings.token_file
    try:
        mode = stat.S_IMODE(file.stat().st_mode)
    except OSError:
        return Check("token", Level.OK, "There is no token yet; the first start makes one.")
    if mode & 0o077:
        advice = f"Run `chmod 600 {file}`."
        return Check("token", Level.FAIL, f"Other users can read {file} ({mode:o}).", advice)
    return Check("token", Level.OK, f"Only you can read {file}.")


def check_models(settings: Settings) -> Check:
    try:
        here = build_store(settings).contents()
    except StartError as error:
        advice = "Make it a folder that you can read, or do not serve it."
        return Check("models", Level.FAIL, error.message, advice)
    entries = here.models
    if here.broken:
        sentence = " ".join(f"{each.name} is broken: {each.reason}" for each in here.broken)
        return Check("models", Level.WARN, sentence, advice_on(here.broken))
    if not entries:
        advice = "Get one with `node-agent pull OWNER/NAME` or `node-agent import FILE.gguf`."
        return Check("models", Level.WARN, "There is no model on disk.", advice)
    total_bytes = sum(entry.weight_bytes for entry in entries)
    sentence = f"{len(entries)} on disk, with {total_bytes / 1e9:.1f} GB of weights."
    return Check("models", Level.OK, sentence)


def check_compiler(which: Callable[[str], str | None]) -> Check:
    if which("g++") is None:
        sentence = "There is no g++, so MLX runs its graphs uncompiled."
        return Check("compiler", Level.WARN, sentence, "Run `apt-get install g++`.")
    return Check("compiler", Level.OK, "g++ is there for mx.compile.")


def check_blas(find: Callable[[], str | None]) -> Check:
    found = find()
    if found is None:
        sentence = "There is no OpenBLAS, so prefill on the CPU is about five times slower."
        advice = "Run `apt-get install libopenblas0-pthread`."
        return Check("openblas", Level.WARN, sentence, advice)
    return Check("openblas", Level.OK, f"OpenBLAS is at {found}.")


def check_wired_limit(machine: Machine) -> Check:
    name = "wired limit"
    if machine.wired_limit_bytes is None:
        sentence = "macOS decides how much memory the GPU may wire, about three quarters."
        return Check(name, Level.OK, sentence)
    share = machine.wired_limit_bytes / machine.memory_bytes
    sentence = f"iogpu.wired_limit_mb lets the GPU wire {share:.0%} of the memory."
    if share > 0.9:
        return Check(name, Level.WARN, sentence, "Keep a tenth for macOS, or it may freeze.")
    if share < 0.5:
        advice = "Run `sudo sysctl iogpu.wired_limit_mb=0` for macOS's own limit, which is higher."
        return Check(name, Level.WARN, sentence, advice)
    return Check(name, Level.OK, sentence)


def check_wired(settings: Settings) -> Check:
    name = "wired memory"
    if settings.wired == "off":
        return Check(name, Level.OK, "Engines do not request wired memory from macOS.")
    what = "the weights" if settings.wired == "weights" else "all memory of engines"
    sentence = (
        f"With --wired {settings.wired}, engines request that macOS keeps {what} wired for the GPU."
    )
    advice = (
        "Macs have been reported to restart with a kernel panic under concurrent requests; "
        "keep --wired off unless you want to test it."
    )
    return Check(name, Level.WARN, sentence, advice)


def check_sleep(stay_awake: StayAwake, run: Runner) -> Check:
    """Checks whether this Mac goes to sleep by itself and then disappears from the fleet."""
    found = _SLEEP.search(run(["pmset", "-g"]) or "")
    if found is None:
        return Check("sleep", Level.WARN, "pmset does not report whether this Mac sleeps.")
    minutes = int(found[1])
    if not minutes:
        return Check("sleep", Level.OK, "This Mac does not sleep by itself.")
    sentence = f"This Mac is set to sleep after {minutes} min without use"
    if found[2]:
        sentence += f" (now kept awake by {found[2]})"
    if stay_awake is StayAwake.ALWAYS:
        awake = f"{sentence}; the agent keeps it awake as long as it runs."
        return Check("sleep", Level.OK, awake, "Closing the lid still puts it to sleep.")
    gone = "A sleeping Mac is missing from the fleet until it is woken:"
    advice = f"{gone} serve with --stay-awake always if routers must reach it at any time."
    if stay_awake is StayAwake.NEVER:
        return Check("sleep", Level.WARN, f"{sentence}, even during a response.", advice)
    busy = f"{sentence}; the agent keeps it awake while requests, loads or pulls are open."
    return Check("sleep", Level.WARN, busy, advice)
