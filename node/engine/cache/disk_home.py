"""The folder that holds the disk tiers of all models."""

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from node.engine.cache.disk import open_tier
from node.engine.cache.disk_folder import LOCK_NAME, FolderLock, TierBusy
from node.engine.cache.disk_limits import Limits


class Cleared(NamedTuple):
    """What `clear_folder` did."""

    freed_bytes: int
    busy: tuple[str, ...]
    """Folders that it left alone, since an engine uses them."""


def clear_folder(kv_home: Path) -> Cleared:
    """Deletes the disk caches of all models that no engine uses. Raises `OSError`."""
    freed_bytes = 0
    busy = []
    for folder in _folders(kv_home):
        try:
            with _held(folder):
                freed_bytes += sum(
                    path.stat().st_size for path in folder.rglob("*") if path.is_file()
                )
                shutil.rmtree(folder)
        except TierBusy:
            busy.append(folder.name)
    return Cleared(freed_bytes, tuple(busy))


def trim_home(kv_home: Path, max_bytes: int) -> None:
    """Shrinks the disk caches that no engine uses, those used longest ago first, until all
    together hold at most so many bytes, or only used ones are left. Raises `OSError` and
    `TierUnavailable`."""
    sizes = {folder: _bytes(folder) for folder in _folders(kv_home)}
    excess_bytes = sum(sizes.values()) - max_bytes
    for folder in sorted(sizes, key=_used_ns):
        if excess_bytes <= 0:
            return
        try:
            limits = Limits(max(0, sizes[folder] - excess_bytes))
            with closing(open_tier(kv_home, limits, folder.name)) as tier:
                excess_bytes -= sizes[folder] - tier.nbytes
        except TierBusy:
            continue


def _folders(kv_home: Path) -> list[Path]:
    """Those of tiers."""
    if not kv_home.exists():
        return []
    return sorted(path.parent for path in kv_home.glob(f"*/{LOCK_NAME}"))


def _stats(paths: Iterable[Path]) -> list[os.stat_result]:
    """Of those that are still there: an engine may be deleting files."""
    found = []
    for path in paths:
        with suppress(FileNotFoundError):
            found.append(path.stat())
    return found


def _bytes(folder: Path) -> int:
    """What its tier counts."""
    return sum(stat.st_size for stat in _stats(folder.glob("*.safetensors")))


def _used_ns(folder: Path) -> int:
    return max((stat.st_mtime_ns for stat in _stats(folder.iterdir())), default=0)


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    lock = FolderLock(folder)
    try:
        yield
    finally:
        lock.release()
