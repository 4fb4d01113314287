"""The registry's file: where it is, private to its owner, and locked by the process that has it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from filelock import FileLock, Timeout

from registry.errors import ReadOnlyRegistry, RegistryLocked, UnsupportedUrl


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


def claim(path: Path) -> FileLock:
    """Make the folder and the file private, and hold the lock.

    The mode is set before SQLite opens the file, since -wal and -shm take it over.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = FileLock(_beside(path, ".lock"), timeout=0, mode=0o600, thread_local=False)
        lock.acquire()
    except Timeout as error:
        raise RegistryLocked(path, _holder_pid(path)) from error
    except OSError as error:
        raise ReadOnlyRegistry(path, error.strerror or str(error)) from error
    try:
        _write_private(_beside(path, ".pid"), str(os.getpid()), os.O_TRUNC)
        _write_private(path, "", 0)
    except OSError as error:
        release(path, lock)
        raise ReadOnlyRegistry(path, error.strerror or str(error)) from error
    return lock


def release(path: Path, lock: FileLock) -> None:
    with contextlib.suppress(OSError):
        _beside(path, ".pid").unlink()
    lock.release()


def _holder_pid(path: Path) -> int | None:
    """The pid beside the lock, if it names a live process; a hint for people, no proof."""
    try:
        pid = int(_beside(path, ".pid").read_text())
        if pid <= 0:
            return None
        os.kill(pid, 0)
    except PermissionError:
        return pid
    except (OSError, ValueError, OverflowError):
        return None
    return pid


def _write_private(path: Path, text: str, flags: int) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | flags, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)
