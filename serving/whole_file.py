"""Files that are either complete or not there."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def written_whole(path: Path, *, replace: bool) -> Iterator[Path]:
    """Yields an empty private file in the same folder, which gets the name `path` after the block.

    Raises `FileExistsError` if there is such a file and `replace` is False, or another `OSError`.
    If the block raises, `path` stays as it was.
    """
    _refuse_standing(path, replace=replace)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(descriptor)
    partial = Path(name)
    try:
        yield partial
        sync(partial)
        _refuse_standing(path, replace=replace)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    sync(path.parent)


def sync(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _refuse_standing(path: Path, *, replace: bool) -> None:
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder")
    if not replace and (path.exists() or path.is_symlink()):
        raise FileExistsError(f"{path} exists")
