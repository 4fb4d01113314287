"""Services of launchd: agents of the user and daemons of the machine. Not yet run on a Mac."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from serving.errors import CannotStart
from serving.services import launchd
from serving.services.description import NOT_LOADED, InstalledService, Service, ServiceState
from serving.services.machine import ServiceMachine
from serving.services.place import Say

STEP_S = 0.5
BOOTSTRAP_S = 15.0
"""Seconds for which a label stays taken after its service has ended; some five were measured by
others."""
_END_S = 90.0
_LABEL_TAKEN = 5
"""The exit code of `launchctl bootstrap` meanwhile, and for a property list that it refuses."""


@dataclass(frozen=True, slots=True)
class LaunchdPlace:
    """The common part of both: a label in a domain of launchd."""

    label: str
    machine: ServiceMachine

    @property
    def domain(self) -> str:
        raise NotImplementedError

    @property
    def target(self) -> str:
        return f"{self.domain}/{self.label}"

    def read(self, text: str) -> InstalledService | None:
        return launchd.read_plist(text)

    def lines(self, text: str) -> list[str]:
        return launchd.lines_of(text)

    def state(self) -> ServiceState:
        ran = self.machine.run(["launchctl", "print", self.target])
        return launchd.read_state(ran.output) if ran.code == 0 else NOT_LOADED

    def unload(self, say: Say) -> None:
        if not self.state().is_loaded:
            return
        say(f"Stopping {self.label} …")
        # It returns before the service has ended, and fails if that takes long.
        last = self.machine.run(["launchctl", "bootout", self.target])
        for _ in range(int(_END_S / STEP_S)):
            if not self.state().is_loaded:
                return
            self.machine.pause(STEP_S)
        raise CannotStart(
            f"{self.label} has not ended after {_END_S:.0f} s (launchctl: {last.last_line})."
        )

    def _load(self, file: Path, say: Say) -> None:
        self.unload(say)
        # It may have been switched off, which outlasts its file.
        self.machine.run(["launchctl", "enable", self.target])
        say(f"Starting {self.label} …")
        command = ["launchctl", "bootstrap", self.domain, str(file)]
        for _ in range(int(BOOTSTRAP_S / STEP_S)):
            ran = self.machine.run(command)
            if ran.code != _LABEL_TAKEN:
                break
            self.machine.pause(STEP_S)
        if ran.code != 0:
            raise CannotStart(f"`{shlex.join(command)}` says: {ran.last_line}.")

    def forget(self) -> None:
        return


@dataclass(frozen=True, slots=True)
class LaunchAgent(LaunchdPlace):
    """Runs while its user is logged in at the Mac's screen."""

    @property
    def noun(self) -> str:
        return "LaunchAgent"

    @property
    def domain(self) -> str:
        return f"gui/{self.machine.user.number}"

    @property
    def file(self) -> Path:
        return self.machine.user.home / "Library" / "LaunchAgents" / f"{self.label}.plist"

    def starts(self) -> str:
        return f"when {self.machine.user.name} logs in"

    def render(self, service: Service) -> str:
        return launchd.plist_of(service, self.label, user_name=None)

    def need_rights(self, sudo_command: Sequence[str]) -> None:
        return

    def need_session(self) -> None:
        if self.machine.run(["launchctl", "print", self.domain]).code != 0:
            raise CannotStart(
                f"{self.machine.user.name} is not logged in at this Mac's screen, where an agent "
                "of launchd runs. Log in there first, or start it with the machine: "
                "`service install --at-boot`."
            )

    def load(self, say: Say) -> None:
        self._load(self.file, say)


@dataclass(frozen=True, slots=True)
class LaunchDaemon(LaunchdPlace):
    """Runs from the start of the Mac on, as its user."""

    folder: Path = Path("/Library/LaunchDaemons")

    @property
    def noun(self) -> str:
        return "LaunchDaemon"

    @property
    def domain(self) -> str:
        return "system"

    @property
    def file(self) -> Path:
        return self.folder / f"{self.label}.plist"

    def starts(self) -> str:
        return "with the machine"

    def render(self, service: Service) -> str:
        return launchd.plist_of(service, self.label, user_name=self.machine.user.name)

    def need_session(self) -> None:
        return

    def need_rights(self, sudo_command: Sequence[str]) -> None:
        if not self.machine.is_root:
            raise CannotStart(
                "Only root may change what starts with the machine: "
                f"sudo {shlex.join(sudo_command)}"
            )
        if self.machine.user.number == 0:
            raise CannotStart(
                "The service would run as root. Call this with sudo from the shell of the user "
                "whose service it is."
            )

    def load(self, say: Say) -> None:
        self._load(self.file, say)
