"""Installs, removes and examines the service of a program."""

from __future__ import annotations

import difflib
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from serving.errors import CannotStart
from serving.services.description import InstalledService, Service, ServiceState, label_of
from serving.services.launchd_places import LaunchAgent, LaunchDaemon
from serving.services.machine import ServiceMachine
from serving.services.place import Place, Say
from serving.services.systemd_place import UserUnit
from serving.whole_file import written_whole

START_S = 40.0
"""Seconds in which a program has said that it serves, or has failed."""
STEP_S = 0.5
_SERVES = b" listening on "
_MOST_LOG_BYTES = 1024**2
_LAST_BYTES = 4096
_FILE_MODE = 0o644
"""launchd refuses a file that others may write, and reads one that others may read."""


@dataclass(frozen=True, slots=True)
class FoundService:
    """A service's file and its state."""

    place: Place
    text: str
    facts: InstalledService | None
    state: ServiceState


def places_of(
    program: str, home: Path, machine: ServiceMachine, *, at_boot: bool = False
) -> Sequence[Place]:
    """The places where the service of that home may be; the first one is where it is to be. Raises
    `CannotStart` if this system has none."""
    label = label_of(program, home, machine.user)
    if machine.is_mac:
        agent, daemon = LaunchAgent(label, machine), LaunchDaemon(label, machine)
        return (daemon, agent) if at_boot else (agent, daemon)
    if shutil.which("systemctl") is None:
        raise CannotStart(
            "Services are for launchd on macOS and systemd on Linux, and neither is here: let "
            f"this machine's own service manager run `{program} serve`."
        )
    return (UserUnit(label, machine, at_boot),)


def found(places: Sequence[Place]) -> Iterator[FoundService]:
    """The installed services in these places."""
    for place in places:
        try:
            text = place.file.read_text(errors="replace")
        except FileNotFoundError:
            continue
        except OSError as error:
            raise CannotStart(f"{place.file} cannot be read ({error.strerror}).") from error
        yield FoundService(place, text, place.read(text), place.state())


def refuse_other(service: Service, here: FoundService) -> None:
    """Raises `CannotStart` if the file is that of another home or user."""
    facts = here.facts
    if facts is None or facts.home != service.home:
        home = "something else" if facts is None else f"the home {facts.home}"
    elif facts.user not in (None, service.user.name):
        home = f"the user {facts.user}"
    else:
        return
    raise CannotStart(
        f"{here.place.file} is a service of {home}, not of {service.home} of {service.user.name}; "
        "remove it first if nothing needs it."
    )


def install(
    service: Service, places: Sequence[Place], machine: ServiceMachine, say: Say
) -> list[str]:
    """Writes the service's file in the first place and starts it; returns the lines that are not as
    before, empty at the first time. One in another place is moved. Raises `CannotStart`."""
    target, *others = places
    text = target.render(service)
    before = {each.place: each for each in found(places)}
    for each in before.values():
        refuse_other(service, each)
    moved = [each for each in others if each in before]
    path, _, *options = service.arguments
    target.need_rights([path, "service", "install", "--at-boot", *options])
    for place in moved:
        place.need_rights(uninstall_command(path, service.home))
    target.need_session()
    _make_folders(service, machine)
    for place in moved:
        _remove(place, say)
    old = before[target].text if target in before else None
    if old != text:
        _write(target.file, text)
    target.load(say)
    return [] if old is None else list(_changes(target.lines(old), target.lines(text)))


def uninstall_command(path: str, home: Path) -> list[str]:
    return [path, "service", "uninstall", "--home", str(home)]


def uninstall(places: Sequence[Place], sudo_command: Sequence[str], say: Say) -> list[Path]:
    """Ends and removes the services in these places, and returns their files. Raises
    `CannotStart`."""
    here = list(found(places))
    for each in here:
        each.place.need_rights(sudo_command)
    for each in here:
        _remove(each.place, say)
    return [each.place.file for each in here]


def watch(place: Place, machine: ServiceMachine, log_file: Path, seen_bytes: int) -> ServiceState:
    """The state of a service that has just been started, once it serves or has failed, or after
    `START_S`. Its log had `seen_bytes` before."""
    for _ in range(int(START_S / STEP_S)):
        machine.pause(STEP_S)
        state = place.state()
        if state.has_failed or (state.pid and _SERVES in _log_end(log_file, seen_bytes)):
            break
    return state


def size_of(log_file: Path) -> int:
    """The size of a log in bytes; 0 if there is none."""
    try:
        return log_file.stat().st_size
    except OSError:
        return 0


def _log_end(log_file: Path, seen_bytes: int) -> bytes:
    try:
        with log_file.open("rb") as log:
            log.seek(seen_bytes)
            return log.read(_MOST_LOG_BYTES)
    except OSError:
        return b""


def last_lines(log_file: Path, most: int = 5) -> list[str]:
    """The end of a log; empty if there is none."""
    try:
        with log_file.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _LAST_BYTES))
            return log.read().decode(errors="replace").splitlines()[-most:]
    except OSError:
        return []


def _remove(place: Place, say: Say) -> None:
    place.unload(say)
    try:
        place.file.unlink(missing_ok=True)
    except OSError as error:
        raise CannotStart(f"{place.file} cannot be removed ({error.strerror}).") from error
    place.forget()


def _make_folders(service: Service, machine: ServiceMachine) -> None:
    """Makes the home and the folder of its log, as the user's: the system opens the log there
    before the program runs."""
    for folder in (service.home, service.log_file.parent):
        for each in reversed([folder, *folder.parents]):
            if each.exists():
                continue
            try:
                each.mkdir(mode=0o700)
                if machine.is_root:
                    os.chown(each, service.user.number, -1)
            except OSError as error:
                raise CannotStart(f"{each} cannot be made ({error.strerror}).") from error


def _write(file: Path, text: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(file, replace=True) as partial:
            partial.write_text(text)
            partial.chmod(_FILE_MODE)
    except OSError as error:
        raise CannotStart(f"{file} cannot be written ({error.strerror or error}).") from error


def _changes(old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    return (line for line in difflib.ndiff(old, new) if line.startswith(("+ ", "- ")))
