"""A lock by which only one process uses a file or folder, and the id of that process."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from filelock import FileLock, Timeout


class LockTaken(Exception):
    """Another process has the lock."""

    def __init__(self, pid: int | None) -> None:
        super().__init__(pid)
        self.pid = pid
        """Id of that process; None if unknown."""


class ProcessLock:
    """A lock that lasts from its construction until `release`, or until the process ends."""

    def __init__(self, path: Path) -> None:
        """Creates two files: `path` with `.lock`, which is locked, and with `.pid`. Raises
        `LockTaken`, and `OSError` if they cannot be made."""
        self._pid_file = _beside(path, ".pid")
        self._lock = FileLock(_beside(path, ".lock"), timeout=0, mode=0o600, thread_local=False)
        try:
            self._lock.acquire()
        except Timeout as error:
            raise LockTaken(_owner_pid(self._pid_file)) from error
        try:
            write_private(self._pid_file, str(os.getpid()), os.O_TRUNC)
        except OSError:
            self._lock.release()
            raise

    def release(self) -> None:
        with contextlib.suppress(OSError):
            self._pid_file.unlink()
        self._lock.release()


def write_private(path: Path, text: str, flags: int) -> None:
    """Writes to a file that only its owner can read; `flags` are added to those of `os.open`."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | flags, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _owner_pid(pid_file: Path) -> int | None:
    """The process id in the file, if it names a live process; a hint for people, no proof."""
    try:
        pid = int(pid_file.read_text())
        if pid <= 0:
            return None
        os.kill(pid, 0)
    except PermissionError:
        return pid
    except (OSError, ValueError, OverflowError):
        return None
    return pid


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)
