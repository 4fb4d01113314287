"""This machine as services need it: its user, and the commands of its service manager."""

from __future__ import annotations

import os
import platform
import pwd
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from serving.errors import CannotStart
from serving.services.description import User

_COMMAND_S = 180.0
"""Seconds that a command may take: `systemctl restart` waits for the program's end."""
NOT_FOUND = 127
TIMED_OUT = 124


@dataclass(frozen=True, slots=True)
class Ran:
    """A command's exit code, and all that it printed."""

    code: int
    output: str

    @property
    def last_line(self) -> str:
        """Its last words, for an error."""
        lines = self.output.strip().splitlines()
        return lines[-1].strip().rstrip(".") if lines else f"exit code {self.code}"


Run = Callable[[Sequence[str]], Ran]


@dataclass(frozen=True, slots=True)
class ServiceMachine:
    """This machine, or a stand-in for it."""

    run: Run
    pause: Callable[[float], None]
    user: User
    """The owner of the service: with sudo, the user who called it."""
    is_root: bool
    is_mac: bool

    def need(self, command: Sequence[str], purpose: str) -> None:
        """Runs a command that has to succeed. Raises `CannotStart`."""
        ran = self.run(command)
        if ran.code != 0:
            raise CannotStart(f"{purpose} failed: `{' '.join(command)}` says: {ran.last_line}.")


def run_command(command: Sequence[str]) -> Ran:
    """Runs a command without input; one that is absent has the code of a shell."""
    try:
        done = subprocess.run(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_COMMAND_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Ran(TIMED_OUT, f"no end after {_COMMAND_S:.0f} s")
    except OSError as error:
        return Ran(NOT_FOUND, error.strerror or str(error))
    return Ran(done.returncode, done.stdout)


def this_machine(variables: Mapping[str, str]) -> ServiceMachine:
    """The machine, with the user from `$SUDO_USER` for root. Raises `CannotStart`."""
    is_root = os.geteuid() == 0
    return ServiceMachine(
        run_command,
        time.sleep,
        _user(variables.get("SUDO_USER") if is_root else None, variables),
        is_root,
        platform.system() == "Darwin",
    )


def _user(name: str | None, variables: Mapping[str, str]) -> User:
    try:
        entry = pwd.getpwnam(name) if name else pwd.getpwuid(os.geteuid())
    except KeyError:
        raise CannotStart("This machine does not know the user who runs this.") from None
    # A user's own HOME is where its files are looked for; root has that of the user it acts for.
    home = entry.pw_dir if name else variables.get("HOME") or entry.pw_dir
    return User(entry.pw_name, entry.pw_uid, Path(home))
