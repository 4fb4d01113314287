"""A pull's claim on its folder, and on the disk space that its files still need, so that two pulls
at once never count on the same bytes. It ends with its process, however that ends."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from node.errors import DownloadError, PullRefused
from node.models.model_files import PARTIAL_MARKER
from node.models.store import folder_bytes

LOCK_FILE = ".pulling"
SIZE_FILE = ".wanted-bytes"
LOCK_S = 2.0
"""Seconds that a killed process may need to end."""
SPARE_BYTES = 1024**3
"""Bytes that stay free on the disk."""


@contextmanager
def claimed(folder: Path, wanted_bytes: int) -> Iterator[None]:
    """Reserves the folder until the end of the block: no other process pulls into it, and there is
    room for its files: so many bytes, including those that are there. Raises `DownloadError`; then
    nothing is created."""
    with ExitStack() as stack:
        with _one_at_a_time(folder.parent):
            _check_room(folder, wanted_bytes)
            stack.enter_context(_alone(folder))
            (folder / SIZE_FILE).write_text(str(wanted_bytes))
        yield


def end_claim(folder: Path) -> None:
    """Deletes the files of a claim from the folder."""
    (folder / LOCK_FILE).unlink()
    (folder / SIZE_FILE).unlink()


@contextmanager
def _one_at_a_time(root: Path) -> Iterator[None]:
    """Lets one process at a time check for room below the folder."""
    root.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(root, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    folder.mkdir(exist_ok=True)
    (folder / PARTIAL_MARKER).touch()
    try:
        with FileLock(folder / LOCK_FILE, timeout=LOCK_S):
            yield
    except Timeout:
        raise DownloadError(
            f"Another process pulls into {folder}; wait for it, or stop it."
        ) from None


def _check_room(folder: Path, wanted_bytes: int) -> None:
    needed_bytes = wanted_bytes - folder_bytes(folder)
    claimed_bytes = _others_bytes(folder)
    free_bytes = shutil.disk_usage(folder.parent).free - claimed_bytes
    if needed_bytes + SPARE_BYTES > free_bytes:
        others = f" beside {claimed_bytes / 1e9:.1f} GB for other pulls" if claimed_bytes else ""
        raise PullRefused(
            f"The model needs {needed_bytes / 1e9:.1f} GB more on disk, but "
            f"{max(0, free_bytes) / 1e9:.1f} GB are free at {folder.parent}{others}; remove a "
            "model with `node-agent rm`, or with `router models rm`."
        )


def _others_bytes(folder: Path) -> int:
    """Bytes that pulls into other folders still need."""
    return sum(
        max(0, _size_bytes(each) - folder_bytes(each.parent))
        for each in folder.parent.glob(f"*/{SIZE_FILE}")
        if each.parent != folder and _is_pulled(each.parent)
    )


def _size_bytes(file: Path) -> int:
    try:
        return int(file.read_text())
    except FileNotFoundError:
        return 0  # it has just ended


def _is_pulled(folder: Path) -> bool:
    """True if a process has the folder's lock."""
    try:
        descriptor = os.open(folder / LOCK_FILE, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
