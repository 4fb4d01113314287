"""A service: a program of ours that the system starts, and starts again after a failure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from serving.errors import CannotStart

RESTART_S = 10
"""Seconds between the end of a program that failed and its next start."""
OPEN_FILES = 10_240
PRODUCT = "mlx-fleet"
_ID_CHARS = 8


@dataclass(frozen=True, slots=True)
class User:
    """The user whose service it is."""

    name: str
    number: int
    home: Path


@dataclass(frozen=True, slots=True)
class Service:
    """All that the file of a service is made from."""

    program: str
    """`node-agent` or `router`."""
    arguments: tuple[str, ...]
    """The program's path, and its arguments."""
    home: Path
    log_file: Path
    path: str
    """Its variable PATH."""
    user: User
    stop_s: int
    """Seconds that it has to end before it is killed."""


def by_option(arguments: Sequence[str]) -> list[list[str]]:
    """The arguments of a command, with a line for each option and its value."""
    lines: list[list[str]] = []
    for each in arguments:
        if not lines or each.startswith("--"):
            lines.append([])
        lines[-1].append(each)
    return lines


@dataclass(frozen=True, slots=True)
class InstalledService:
    """Facts in the file of an installed service."""

    home: Path | None
    log_file: Path | None
    user: str | None
    """None if the place of the file says whose it is."""


@dataclass(frozen=True, slots=True)
class ServiceState:
    """A service as the system reports it."""

    is_loaded: bool
    """The system knows the service, running or not."""
    pid: int | None = None
    last_exit: int | None = None
    """Exit code of its last end; None if it has not ended yet."""

    @property
    def has_failed(self) -> bool:
        return self.pid is None and self.last_exit not in (None, 0)


NOT_LOADED = ServiceState(is_loaded=False)


def label_of(program: str, home: Path, user: User) -> str:
    """The service's name: for a home other than the usual one it ends in an id of that home, so
    that services of several homes exist side by side."""
    usual = user.home / ".mlx-fleet" / usual_folder(program)
    if home == usual:
        return f"{PRODUCT}.{program}"
    digest = hashlib.sha256(str(home).encode(errors="surrogateescape")).hexdigest()
    return f"{PRODUCT}.{program}.{digest[:_ID_CHARS]}"


def usual_folder(program: str) -> str:
    """The name of the program's home in `~/.mlx-fleet`."""
    return program.partition("-")[0]


def refuse_unwritable(service: Service) -> None:
    """Raises `CannotStart` for a text that no file of a service can contain."""
    for text in (*service.arguments, str(service.home), str(service.log_file), service.path):
        if not text.isprintable():
            raise CannotStart(f"A service cannot have {text!r}: it has control characters.")
