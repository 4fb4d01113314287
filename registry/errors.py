"""Errors of the registry; each message is a sentence a person can act on."""

from __future__ import annotations

from pathlib import Path

_LISTINGS = {
    "alias": "router alias list",
    "key": "router keys list",
    "node": "router nodes",
    "schedule": "router schedule list",
    "team": "router teams list",
}


class RegistryError(Exception):
    """The registry could not do what was requested; the router's log has the cause."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or " ".join((type(self).__doc__ or "").split()))


class UnsupportedUrl(RegistryError):
    """mlx-fleet keeps its registry in SQLite; give a file path or sqlite:///path."""

    def __init__(self, given: str) -> None:
        super().__init__(
            f"mlx-fleet keeps its registry in SQLite; {given} is not supported: "
            "give a file path or sqlite:///path."
        )


class NewerRegistry(RegistryError):
    """The registry was written by a newer mlx-fleet; upgrade mlx-fleet, or restore a backup."""

    def __init__(self, revision: str) -> None:
        super().__init__(
            f"The registry is at revision {revision!r}, which this mlx-fleet does not know: "
            "a newer version wrote it. Upgrade mlx-fleet, or restore a backup."
        )
        self.revision = revision


class NewerBackup(RegistryError):
    """The backup was made by a newer mlx-fleet; upgrade this one first."""

    def __init__(self, path: Path, revision: str) -> None:
        super().__init__(
            f"The backup {path} is of a newer mlx-fleet (revision {revision!r}); upgrade this one "
            "first. Nothing was changed."
        )


class NoBackup(RegistryError):
    """The file is not a backup of a registry."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"The file {path} is not a backup of a registry ({reason}).")


class RegistryUnwritable(RegistryError):
    """Nothing can be written now; the registry itself has logged the reason."""


class ReadOnlyRegistry(RegistryUnwritable):
    """The registry's file or folder cannot be written; check its owner, mode and disk."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"The registry {path} or its folder cannot be written ({reason}); "
            "check their owner, mode and disk."
        )


class RegistryLocked(RegistryUnwritable):
    """Another process has the registry open; stop it first. The pid is None when unknown."""

    def __init__(self, path: Path, holder_pid: int | None = None) -> None:
        holder = "another process" if holder_pid is None else f"process {holder_pid}"
        super().__init__(f"The registry {path} is in use by {holder}; stop it first.")


class RegistryClosed(RegistryError):
    """The registry is closed or closing, so it accepts no more work; open it again."""


class RegistryFailed(RegistryUnwritable):
    """The registry's database failed; check the file and the disk, or restore a backup."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"The registry {path} failed ({reason}); "
            "check the file and the disk, or restore a backup."
        )


class RegistryFull(RegistryFailed):
    """The disk of the registry is full; make room on it."""

    def __init__(self, path: Path) -> None:
        RegistryError.__init__(self, f"The disk of the registry {path} is full; make room on it.")


class RefusedRow(RegistryError):
    """A row has a value that the database cannot store; the others can be written."""


class Conflict(RegistryError):
    """The name is already taken; choose another. `what` is the kind of the object."""

    def __init__(self, what: str, name: str) -> None:
        super().__init__(f"The {what} {name!r} is already taken; choose another.")
        self.what = what
        self.name = name


class NotFound(RegistryError):
    """Nothing of that name is registered. `what` is the kind of the object."""

    def __init__(self, what: str, name: str) -> None:
        super().__init__(f"There is no {what} {name!r}; `{_LISTINGS[what]}` shows what exists.")
        self.what = what
        self.name = name
