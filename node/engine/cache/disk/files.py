"""Writes and reads one file of the disk tier, and computes its checksum on the way.

The checksum is zlib's CRC-32 of the whole file. It detects damage, not tampering; it runs at 2.2
GB/s on one core of an EPYC where blake2b runs at 0.6, and releases the GIL.
"""

import os
import zlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from node.engine.cache.disk.format import CorruptFile, Layout

CHUNK_BYTES = 8 << 20
"""Bytes between two checks whether the work is still needed; a chunk is small enough to be in the
processor's cache when its checksum is computed."""
FILE_MODE = 0o600
FOLDER_MODE = 0o700


class Abandoned(Exception):
    """The file is no longer needed."""


class Files:
    """The disk operations of the tier, in one class so that tests can observe them and make them
    fail. All raise `OSError`."""

    def create(self, path: Path) -> int:
        """Returns the descriptor of a new file."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)

    def write(self, descriptor: int, data: memoryview) -> None:
        """Writes all of `data`."""
        while data:
            data = data[os.write(descriptor, data) :]

    def sync(self, descriptor: int) -> None:
        # On macOS this leaves the data in the drive's own cache. A power failure may lose it; the
        # checksum detects that.
        os.fsync(descriptor)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        os.rename(source, target)

    def sync_folder(self, folder: Path) -> None:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def unlink(self, path: Path) -> None:
        """Deletes the file, if there is one."""
        path.unlink(missing_ok=True)

    def open(self, path: Path) -> int:
        return os.open(path, os.O_RDONLY)

    def read(self, descriptor: int, into: memoryview) -> int:
        """Returns the number of bytes read; 0 at the end of the file."""
        return os.readv(descriptor, [into])


def file_path(folder: Path, file: int) -> Path:
    return folder / f"{file}.safetensors"


def store(files: Files, path: Path, layout: Layout, is_needed: Callable[[], bool]) -> int:
    """Writes the file so that it is either complete under its name or not there; returns its
    checksum. Raises `OSError`, and `Abandoned` once `is_needed` returns False; then no file is
    left."""
    temporary = path.with_suffix(".tmp")
    try:
        descriptor = files.create(temporary)
        try:
            checksum = _write(files, descriptor, layout, is_needed)
            files.sync(descriptor)
        finally:
            files.close(descriptor)
        files.rename(temporary, path)
        files.sync_folder(path.parent)
    except BaseException:
        files.unlink(temporary)
        files.unlink(path)
        raise
    return checksum


def load(
    files: Files, path: Path, into: memoryview, checksum: int, is_needed: Callable[[], bool]
) -> None:
    """Reads the whole file, which is as long as `into`. Raises `CorruptFile`, `OSError` and
    `Abandoned`."""
    # Not a memory map: an unreadable sector would kill the process.
    descriptor = files.open(path)
    try:
        found = _read(files, descriptor, into, is_needed)
        if files.read(descriptor, memoryview(bytearray(1))):
            raise CorruptFile(f"It is longer than {into.nbytes} bytes.")
    finally:
        files.close(descriptor)
    if found != checksum:
        raise CorruptFile("Its checksum is another one.")


def _write(files: Files, descriptor: int, layout: Layout, is_needed: Callable[[], bool]) -> int:
    checksum = 0
    for view in layout.views:
        for at in range(0, view.nbytes, CHUNK_BYTES):
            if not is_needed():
                raise Abandoned
            chunk = view[at : at + CHUNK_BYTES]
            checksum = zlib.crc32(chunk, checksum)
            files.write(descriptor, chunk)
    return checksum


def _read(files: Files, descriptor: int, content: memoryview, is_needed: Callable[[], bool]) -> int:
    at = 0
    with ThreadPoolExecutor(1, thread_name_prefix="checksum") as beside:
        checksum: Future[int] = beside.submit(int)
        while at < content.nbytes:
            if not is_needed():
                raise Abandoned
            count = files.read(descriptor, content[at : at + CHUNK_BYTES])
            if count == 0:
                raise CorruptFile(f"It ends after {at} of {content.nbytes} bytes.")
            # In parallel with the next read: sequentially they reach half of the disk's speed, in
            # parallel three quarters.
            checksum = beside.submit(_add, checksum, content[at : at + count])
            at += count
        return checksum.result()


def _add(before: Future[int], chunk: memoryview) -> int:
    return zlib.crc32(chunk, before.result())
