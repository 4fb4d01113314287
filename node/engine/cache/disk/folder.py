"""The folder of the disk tier: its lock, its contents, and how it is wiped."""

import fcntl
import logging
import os
import shutil
import time
from pathlib import Path

from node.engine.cache.disk.file_index import INDEX_FILES, CorruptIndex, FileRow, Index
from node.engine.cache.disk.files import FILE_MODE, FOLDER_MODE, Files, file_path
from node.engine.cache.parts import EntryKind
from node.ipc.kv_files import POSITIONS_NAME

LOCK_NAME = "lock"
QUARANTINE_NAME = "quarantine"
QUARANTINE_FILES = 4
_INT32_BYTES = 4

logger = logging.getLogger(__name__)


class TierUnavailable(Exception):
    """The disk cache cannot be used; the engine runs without it."""


class TierBusy(TierUnavailable):
    """Another engine uses the disk cache of this model."""


class FolderLock:
    """Lock of the one process that uses the folder; the kernel releases it at the process's end."""

    def __init__(self, folder: Path) -> None:
        """Raises `TierBusy` and `OSError`."""
        path = folder / LOCK_NAME
        while True:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, FILE_MODE)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The folder may have been wiped between the two calls; then no other process would
                # see this lock.
                if path.exists() and os.path.samestat(os.fstat(self._descriptor), path.stat()):
                    return
            except BlockingIOError as error:
                os.close(self._descriptor)
                raise TierBusy(f"Another process uses {folder}.") from error
            except OSError:
                os.close(self._descriptor)
                raise
            os.close(self._descriptor)

    def release(self) -> None:
        os.close(self._descriptor)


def make_folder(folder: Path) -> None:
    """Creates the folder and its parent, both private to their owner. Raises `OSError`."""
    folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    for each in (folder.parent, folder):
        each.chmod(FOLDER_MODE)


def open_index(folder: Path) -> Index:
    """Opens the index; a damaged one is quarantined and replaced by an empty one. Raises `OSError`,
    `sqlite3.Error`."""
    try:
        return Index.open(folder)
    except CorruptIndex as error:
        logger.warning("The index of %s is damaged and is replaced: %s", folder, error)
    for name in INDEX_FILES:
        if (folder / name).exists():
            quarantine(Files(), folder / name)
    try:
        return Index.open(folder)
    except CorruptIndex as error:
        raise OSError(f"No index can be made in {folder}: {error}") from error


def quarantine(files: Files, path: Path) -> None:
    """Moves the file away, and deletes the oldest quarantined ones. Raises `OSError`."""
    folder = path.parent / QUARANTINE_NAME
    folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
    # The system's own time is coarse by some milliseconds.
    now_ns = time.time_ns()
    os.utime(path, ns=(now_ns, now_ns))
    files.rename(path, folder / path.name)
    kept = sorted(folder.iterdir(), key=lambda each: each.stat().st_mtime_ns)
    for old in kept[:-QUARANTINE_FILES]:
        files.unlink(old)


def reconcile(folder: Path, index: Index, files: Files) -> list[FileRow]:
    """Repairs differences between files and index; returns the rows that remain, parents first.
    Raises `OSError` and `sqlite3.Error`."""
    sizes = {path.name: path.stat().st_size for path in folder.iterdir() if path.is_file()}
    kept: dict[int, FileRow] = {}
    gone = []
    for row in index.rows():
        path = file_path(folder, row.file)
        size = sizes.get(path.name)
        if size is not None and size != row.nbytes:
            logger.warning("%s has %d bytes, not %d, and is quarantined.", path, size, row.nbytes)
            quarantine(files, path)
        elif size is not None and _fits(row, kept):
            kept[row.file] = row
            continue
        gone.append(row.file)
    index.delete(gone)
    wanted = {file_path(folder, file).name for file in kept}
    for name in sizes.keys() - wanted:
        if name.endswith((".tmp", ".safetensors")):
            files.unlink(folder / name)
    return list(kept.values())


def wipe(folder: Path, files: Files) -> None:
    """Deletes all files but index and lock. Raises `OSError`."""
    for path in folder.iterdir():
        if path.suffix in (".tmp", ".safetensors") or path.name == POSITIONS_NAME:
            files.unlink(path)
    shutil.rmtree(folder / QUARANTINE_NAME, ignore_errors=True)


def _fits(row: FileRow, kept: dict[int, FileRow]) -> bool:
    """Returns True if the row is valid and its parent exists."""
    if row.kind not in (EntryKind.SPAN, EntryKind.SNAPSHOT) or len(row.tokens) % _INT32_BYTES:
        return False
    parent = kept.get(row.parent_file)
    return row.parent_file == 0 or (parent is not None and parent.kind == EntryKind.SPAN)
