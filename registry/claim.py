"""The registry's file: where it is, private to its owner, and locked by the process that has it."""

from __future__ import annotations

from pathlib import Path

from registry.errors import ReadOnlyRegistry, RegistryLocked, UnsupportedUrl
from serving.processes.process_lock import LockTaken, ProcessLock, write_private


def database_file(url: str | Path) -> Path:
    """The absolute database file that `url` names; links are followed, so it has one lock."""
    if isinstance(url, str) and "://" in url:
        scheme, _, rest = url.partition("://")
        # The message never repeats the URL, which may hold a password.
        if scheme.lower() not in ("sqlite", "sqlite+aiosqlite"):
            raise UnsupportedUrl(f"the scheme {scheme!r}")
        if rest[:1] not in ("", "/") or "?" in rest:
            raise UnsupportedUrl("a URL with a host or options")
        url = rest[1:]
    if str(url) in ("", ":memory:"):
        raise UnsupportedUrl("a database in memory")
    return Path(url).resolve()


def claim(path: Path) -> ProcessLock:
    """Make the folder and the file private, and hold the lock.

    The mode is set before SQLite opens the file, since -wal and -shm take it over.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = ProcessLock(path)
    except LockTaken as error:
        raise RegistryLocked(path, error.pid) from error
    except OSError as error:
        raise ReadOnlyRegistry(path, error.strerror or str(error)) from error
    try:
        write_private(path, "", 0)
    except OSError as error:
        lock.release()
        raise ReadOnlyRegistry(path, error.strerror or str(error)) from error
    return lock
