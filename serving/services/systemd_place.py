"""Services of a user's own systemd."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from serving.errors import CannotStart
from serving.services import systemd
from serving.services.description import NOT_LOADED, InstalledService, Service, ServiceState
from serving.services.machine import ServiceMachine
from serving.services.place import Say

_SYSTEMCTL = ("systemctl", "--user")


@dataclass(frozen=True, slots=True)
class UserUnit:
    """A unit; with `at_boot`, its user's systemd is to run without a login."""

    label: str
    machine: ServiceMachine
    at_boot: bool = False

    @property
    def noun(self) -> str:
        return "systemd user unit"

    @property
    def unit(self) -> str:
        return f"{self.label}.service"

    @property
    def file(self) -> Path:
        return self.machine.user.home / ".config" / "systemd" / "user" / self.unit

    def starts(self) -> str:
        name = self.machine.user.name
        shown = self.machine.run(["loginctl", "show-user", name, "--property=Linger"])
        return (
            "with the machine" if shown.output.strip() == "Linger=yes" else f"when {name} logs in"
        )

    def render(self, service: Service) -> str:
        return systemd.unit_of(service)

    def read(self, text: str) -> InstalledService | None:
        return systemd.read_unit(text)

    def lines(self, text: str) -> list[str]:
        return systemd.lines_of(text)

    def need_rights(self, sudo_command: Sequence[str]) -> None:
        ran = self.machine.run([*_SYSTEMCTL, "show", "--property=Version"])
        if ran.code != 0:
            raise CannotStart(
                f"The systemd of {self.machine.user.name} cannot be used here ({ran.last_line}). "
                "Log in as that user, by ssh for example, and not by su or sudo; `service install "
                "--print` shows the unit for another service manager."
            )

    def need_session(self) -> None:
        return

    def load(self, say: Say) -> None:
        self.machine.need([*_SYSTEMCTL, "daemon-reload"], "Reading the unit")
        self.machine.need([*_SYSTEMCTL, "enable", self.unit], "Enabling the unit")
        say(f"Starting {self.label} …")
        # `restart` starts one that does not run; a failed one may be started at once.
        self.machine.run([*_SYSTEMCTL, "reset-failed", self.unit])
        self.machine.need([*_SYSTEMCTL, "restart", self.unit], "Starting the service")
        if self.at_boot:
            self._linger()

    def _linger(self) -> None:
        name = self.machine.user.name
        ran = self.machine.run(["loginctl", "enable-linger", name])
        if ran.code != 0:
            raise CannotStart(
                f"The service runs, but would end when {name} logs out, since lingering cannot be "
                f"enabled ({ran.last_line}). Run `sudo loginctl enable-linger {name}`."
            )

    def unload(self, say: Say) -> None:
        if not self.state().is_loaded:
            return
        say(f"Stopping {self.label} …")
        self.machine.need([*_SYSTEMCTL, "disable", "--now", self.unit], "Stopping the service")

    def forget(self) -> None:
        self.machine.need([*_SYSTEMCTL, "daemon-reload"], "Forgetting the unit")

    def state(self) -> ServiceState:
        shown = ",".join(systemd.SHOWN)
        ran = self.machine.run([*_SYSTEMCTL, "show", f"--property={shown}", self.unit])
        return systemd.read_state(ran.output) if ran.code == 0 else NOT_LOADED
