"""Property lists of launchd, and the output of `launchctl print`. Not yet run on a Mac."""

from __future__ import annotations

import plistlib
import re
from pathlib import Path
from typing import Any
from xml.parsers.expat import ExpatError

from serving.services.description import (
    OPEN_FILES,
    RESTART_S,
    InstalledService,
    Service,
    ServiceState,
    by_option,
)

PRIVATE_UMASK = 0o077
_FIELD = re.compile(r"^\t?(pid|last exit code) = (-?\d+)", re.MULTILINE)
"""A field of the service itself; those of its endpoints and the like are indented further."""


def plist_of(service: Service, label: str, *, user_name: str | None) -> str:
    """The property list; `user_name` is that of a daemon's user, None for an agent."""
    files = {"NumberOfFiles": OPEN_FILES}
    contents: dict[str, Any] = {
        "Label": label,
        "ProgramArguments": list(service.arguments),
        "WorkingDirectory": str(service.home),
        "EnvironmentVariables": {"HOME": str(service.user.home), "PATH": service.path},
        "RunAtLoad": True,
        # A failure is started again, an end that was requested is not.
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": RESTART_S,
        # Otherwise macOS slows down CPU and disk, as for work in the background.
        "ProcessType": "Interactive",
        "ExitTimeOut": service.stop_s,
        "SoftResourceLimits": files,
        "HardResourceLimits": files,
        "Umask": PRIVATE_UMASK,
        # The program's own log file, which it rotates: what it prints before it logs is there, too.
        "StandardOutPath": str(service.log_file),
        "StandardErrorPath": str(service.log_file),
    }
    if user_name is not None:
        contents["UserName"] = user_name
    return plistlib.dumps(contents, sort_keys=False).decode()


def lines_of(text: str) -> list[str]:
    """The entries of a property list for people; those of another file are its lines."""
    found = _entries(text)
    if found is None:
        return text.splitlines()
    arguments = found.pop("ProgramArguments", [])
    options = [" ".join(line) for line in by_option([str(each) for each in arguments])]
    return [*options, *(f"{key}: {value}" for key, value in found.items())]


def read_plist(text: str) -> InstalledService | None:
    """None for a file that is no property list."""
    found = _entries(text)
    if found is None:
        return None
    user = found.get("UserName")
    return InstalledService(
        _path(found.get("WorkingDirectory")),
        _path(found.get("StandardErrorPath")),
        user if isinstance(user, str) else None,
    )


def _entries(text: str) -> dict[str, Any] | None:
    try:
        found = plistlib.loads(text.encode())
    except (plistlib.InvalidFileException, ValueError, ExpatError):
        return None
    return found if isinstance(found, dict) else None


def _path(value: object) -> Path | None:
    return Path(value) if isinstance(value, str) else None


def read_state(output: str) -> ServiceState:
    """The state in the output of `launchctl print` for a service that is loaded."""
    fields = {name: int(number) for name, number in _FIELD.findall(output)}
    return ServiceState(
        is_loaded=True, pid=fields.get("pid"), last_exit=fields.get("last exit code")
    )
