"""A `systemctl` and a `loginctl` that run a user's units, for machines without a user's systemd.

The commands are this file; each unit's process has a parent of its own, which is this file, too.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

_WAIT_S = 30.0


def put_into(folder: Path) -> Path:
    """Makes the commands in a folder for PATH, and returns it."""
    folder.mkdir()
    for name in ("systemctl", "loginctl"):
        command = folder / name
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" {name} "$@"\n')
        command.chmod(0o755)
    return folder


def _units() -> Path:
    return Path(os.environ["HOME"]) / ".config" / "systemd" / "user"


def _state_file(unit: str) -> Path:
    return _units() / f"{unit}.state"


def _state(unit: str) -> dict[str, int]:
    file = _state_file(unit)
    return dict(json.loads(file.read_text())) if file.exists() else {}


def _write(unit: str, **state: int) -> None:
    partial = _state_file(unit).with_suffix(".partial")
    partial.write_text(json.dumps(state))
    partial.replace(_state_file(unit))


def _entries(unit: str) -> dict[str, str]:
    text = (_units() / unit).read_text().replace("\\\n", " ")
    lines = (line.split("=", 1) for line in text.splitlines() if "=" in line)
    return {key: value.replace("%%", "%") for key, value in lines}


def _supervise(unit: str) -> None:
    entries = _entries(unit)
    path = shlex.split(entries["Environment"])[0].removeprefix("PATH=")
    log = entries["StandardError"].removeprefix("append:")
    with (
        Path(log).open("ab") as lines,
        subprocess.Popen(
            shlex.split(entries["ExecStart"]),
            stdin=subprocess.DEVNULL,
            stdout=lines,
            stderr=lines,
            cwd=entries["WorkingDirectory"],
            env={**os.environ, "PATH": path},
        ) as process,
    ):
        _write(unit, pid=process.pid)
        _write(unit, pid=0, code=process.wait(), ended=1)


def _stop(unit: str) -> None:
    pid = _state(unit).get("pid")
    if pid:
        os.kill(pid, signal.SIGTERM)
        _until(unit, running=False)


def _until(unit: str, *, running: bool) -> None:
    deadline_s = time.monotonic() + _WAIT_S
    while bool(_state(unit).get("pid")) is not running and not (running and _state(unit)):
        if time.monotonic() > deadline_s:
            sys.exit(f"{unit} takes too long")
        time.sleep(0.02)


def _restart(unit: str) -> None:
    _stop(unit)
    _state_file(unit).unlink(missing_ok=True)
    subprocess.Popen(
        [sys.executable, __file__, "supervise", unit],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    _until(unit, running=True)


def _show(unit: str) -> None:
    state = _state(unit)
    loaded = "loaded" if (_units() / unit).exists() else "not-found"
    sys.stdout.write(
        f"LoadState={loaded}\nMainPID={state.get('pid', 0)}\n"
        f"ExecMainStatus={state.get('code', 0)}\n"
        f"ExecMainExitTimestampMonotonic={state.get('ended', 0)}\n"
    )


def main(command: str, *arguments: str) -> None:
    verb = next(each for each in arguments if not each.startswith("-")) if arguments else ""
    unit = arguments[-1] if arguments else ""
    if command == "supervise":
        _supervise(arguments[0])
    elif command == "systemctl" and verb == "restart":
        _restart(unit)
    elif command == "systemctl" and verb == "show" and unit.endswith(".service"):
        _show(unit)
    elif command == "systemctl" and verb == "disable":
        _stop(unit)


if __name__ == "__main__":
    main(*sys.argv[1:])
