"""`node-agent doctor --full`: checks that need a run on this machine, in about five minutes, with a
report that can be sent to others.

The report has no prompts, no names of hosts, users or models, and no addresses. Checks for a Mac
are listed as not run on other machines. It has not been run on a Mac yet.
"""

import functools
import json
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
from rich.text import Text

from node.commands import mac_settings, trials
from node.commands.own_process import own_process
from node.engine.probe.line import Line, not_measured
from node.errors import StartError
from node.hardware import python_command, read_machine, run_command, this_kernel
from node.settings import Settings
from serving.terminal.output import put_json
from serving.terminal.screen import Screen

REPORT = "mac-report"
MODEL = "smollm2"
_MARKER = "soak.started"
_STYLES = {True: Text("ok", "green"), False: Text("fail", "red"), None: Text("-", "dim")}


@dataclass(frozen=True, slots=True)
class FullCheckOptions:
    """The options of the command."""

    settings: Settings
    out: Path
    """Folder of the report."""
    soak_minutes: float | None = None

    @property
    def model(self) -> Path:
        """The small real model for test responses."""
        return self.settings.models_folder / MODEL


def run_full(options: FullCheckOptions, *, as_json: bool) -> bool:
    """Prints each line as soon as it is known and writes the report; True if no line failed."""
    console = Screen(stderr=as_json)
    began_s = time.monotonic()
    lines: list[Line] = []
    for line in findings(options):
        lines.append(line)
        words = Text(f"\t{line.section}: {line.name}: {line.found}")
        console.print(_STYLES[line.ok] + words, soft_wrap=True)
    files = write_report(options.out, lines, time.monotonic() - began_s)
    if as_json:
        put_json(msgspec.json.encode(lines).decode())
    console.print(_summary(lines), "Report:", *(str(file) for file in files), soft_wrap=True)
    return all(line.ok is not False for line in lines)


def findings(options: FullCheckOptions) -> Iterator[Line]:
    """All lines, in order."""
    kernel = this_kernel()
    run = functools.partial(run_command, timeout_s=10.0)
    machine = read_machine(kernel, run)
    yield from last_soak(options)
    yield from mac_settings.system(run, kernel)
    yield from probed("device", str(machine.working_set_bytes))
    yield from trials.limits()
    yield from _with_model(options)
    yield from probed("hybrids")
    yield from trials.processes()
    yield from trials.streams()
    yield from mac_settings.settings_of_macos(options.settings, run, mac=kernel is not None)
    if options.soak_minutes is not None:
        yield from soak(options)


def _with_model(options: FullCheckOptions) -> Iterator[Line]:
    sections = ("memory", "outputs", "speeds")
    if not (options.model / "config.json").exists():
        why = f"there is no model {MODEL}; `make mac-check` fetches it"
        yield from (not_measured(section, "all of it", "reported", why) for section in sections)
        return
    for section in sections:
        yield from probed(section, str(options.model))


def probed(section: str, *rest: str) -> Iterator[Line]:
    """The lines of a probe in its own process, and a line with the failure if it fails."""
    command = [*python_command(), "-m", "node.engine.probe", section, *rest]
    with own_process(command, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        for text in process.stdout:
            yield msgspec.json.decode(text, type=Line)
        words = process.stderr.read().strip().splitlines()
    if process.returncode:
        last_word = words[-1].split(":")[0] if words else "no word"
        found = f"ended with {process.returncode} ({last_word})"
        yield Line(section, "the section's process", "ends with 0", found, ok=False)


# --- soak ---


def soak(options: FullCheckOptions) -> Iterator[Line]:
    """Runs the soak. A marker file exists meanwhile, so that the next run notices that a Mac has
    panicked."""
    marker = options.out / _MARKER
    marker.write_text("A soak began and has not ended.\n")
    subprocess.run(["sync"], check=True)
    try:
        yield from probed("soak", str(options.model), str(options.soak_minutes))
    except KeyboardInterrupt:
        # An interrupt is no panic.
        marker.unlink()
        raise
    marker.unlink()


def last_soak(options: FullCheckOptions) -> Iterator[Line]:
    marker = options.out / _MARKER
    if marker.exists():
        found = "it did not end: this machine may have panicked, or the run was stopped"
        yield Line("soak", "the last soak", "ended", found, ok=False)
        marker.unlink()


# --- report ---


def write_report(out: Path, lines: list[Line], took_s: float) -> list[Path]:
    """Writes the report; the files. Raises `StartError` if the folder cannot be written to."""
    data = json.dumps({"took_s": round(took_s, 1), "lines": msgspec.to_builtins(lines)}, indent=1)
    files = [out / f"{REPORT}.json", out / f"{REPORT}.txt"]
    try:
        files[0].write_text(data + "\n")
        files[1].write_text("\n".join([*map(_text, lines), _summary(lines), ""]))
    except OSError as error:
        raise StartError(f"The report cannot be written to {out}: {error.strerror}.") from error
    return files


def _text(line: Line) -> str:
    state = {True: "ok", False: "FAIL", None: "-"}[line.ok]
    return (
        f"{state}\t{line.section}: {line.name}\n\texpected {line.expected}\n"
        f"\tfound    {line.found} ({line.took_s:.1f} s)"
    )


def _summary(lines: list[Line]) -> str:
    counts = {state: sum(line.ok is state for line in lines) for state in (True, False, None)}
    return f"{counts[True]} ok, {counts[False]} failed, {counts[None]} not run on this machine."
