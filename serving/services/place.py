"""Places where a service can be installed, each of a service manager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from serving.services.description import InstalledService, Service, ServiceState

Say = Callable[[str], None]
"""Shows a line of progress."""


class Place(Protocol):
    """One of them, for the service with one label. Its methods raise `CannotStart`."""

    @property
    def noun(self) -> str:
        """Its kind of service, for people."""

    @property
    def label(self) -> str: ...

    @property
    def file(self) -> Path: ...

    def starts(self) -> str:
        """When the system starts the service."""

    def render(self, service: Service) -> str:
        """The text of its file."""

    def read(self, text: str) -> InstalledService | None:
        """None for a file of another kind."""

    def lines(self, text: str) -> list[str]:
        """The entries of its file for people."""

    def need_rights(self, sudo_command: Sequence[str]) -> None:
        """Checks that services can be changed here; the error may name that command."""

    def need_session(self) -> None:
        """Checks that a service can be started here."""

    def load(self, say: Say) -> None:
        """Starts the service of the file, again if it runs."""

    def unload(self, say: Say) -> None:
        """Ends the service, and waits for its end."""

    def forget(self) -> None:
        """Is called once the file has been deleted."""

    def state(self) -> ServiceState: ...
