"""The folder that contains the disk tiers of all models."""

import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from node.engine.cache.disk.folder import LOCK_NAME, FolderLock, TierBusy
from node.engine.cache.disk.limits import Limits
from node.engine.cache.disk.tier import open_tier

_UNNAMED = "new-"
"""Prefix of folders whose fingerprint was not known when they were made."""
_NAME_FILE = "fingerprint"
"""File in such a folder that records the fingerprint once it is known."""


class Cleared(NamedTuple):
    """Result of `clear_folder`."""

    freed_bytes: int
    busy: tuple[str, ...]
    """Folders that were skipped because an engine uses them."""


def clear_folder(kv_home: Path) -> Cleared:
    """Deletes the disk caches of all models that no engine uses. Raises `OSError`."""
    freed_bytes = 0
    busy = []
    for folder in _folders(kv_home):
        try:
            with _locked(folder):
                freed_bytes += sum(
                    path.stat().st_size for path in folder.rglob("*") if path.is_file()
                )
                shutil.rmtree(folder)
        except TierBusy:
            busy.append(folder.name)
    return Cleared(freed_bytes, tuple(busy))


def unnamed() -> str:
    """Returns a new name for the folder of a tier whose fingerprint is not known."""
    return f"{_UNNAMED}{secrets.token_hex(8)}"


def name_folder(folder: Path, fingerprint: str) -> None:
    """Records the fingerprint in such a folder, for `claim`: the folder is in use and cannot be
    renamed yet. Raises `OSError`."""
    fresh = folder / f"{_NAME_FILE}.new"
    fresh.write_text(fingerprint)
    fresh.replace(folder / _NAME_FILE)


def claim(kv_home: Path, fingerprint: str) -> None:
    """Renames the folder that records this fingerprint to the fingerprint, unless a folder of that
    name exists, or an engine uses it. Deletes other folders of the same fingerprint. Raises
    `OSError`."""
    kept = [each for each in _folders(kv_home) if _kept_name(each) == fingerprint]
    for folder in sorted(kept, key=_used_ns, reverse=True):
        with suppress(TierBusy), _locked(folder):
            if (kv_home / fingerprint).exists():
                shutil.rmtree(folder)
            else:
                folder.rename(kv_home / fingerprint)


def trim_home(kv_home: Path, max_bytes: int) -> None:
    """Shrinks the disk caches that no engine uses, those used longest ago first, until all together
    have at most `max_bytes`, or only caches in use are left. Deletes a cache that no engine could
    find again. Raises `OSError` and `TierUnavailable`."""
    for folder in _folders(kv_home):
        if folder.name.startswith(_UNNAMED) and _kept_name(folder) is None:
            with suppress(TierBusy), _locked(folder):
                shutil.rmtree(folder)
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
    """Returns the folders of tiers."""
    if not kv_home.exists():
        return []
    return sorted(path.parent for path in kv_home.glob(f"*/{LOCK_NAME}"))


def _kept_name(folder: Path) -> str | None:
    """Returns the fingerprint recorded in a folder that is not named by it; None if there is
    none."""
    if not folder.name.startswith(_UNNAMED):
        return None
    try:
        return (folder / _NAME_FILE).read_text()
    except FileNotFoundError:
        return None


def _stats(paths: Iterable[Path]) -> list[os.stat_result]:
    """Skips files that are gone: an engine may be deleting some."""
    found = []
    for path in paths:
        with suppress(FileNotFoundError):
            found.append(path.stat())
    return found


def _bytes(folder: Path) -> int:
    """Returns the size of the folder as its tier counts it."""
    return sum(stat.st_size for stat in _stats(folder.glob("*.safetensors")))


def _used_ns(folder: Path) -> int:
    return max((stat.st_mtime_ns for stat in _stats(folder.iterdir())), default=0)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    lock = FolderLock(folder)
    try:
        yield
    finally:
        lock.release()
