"""The SHA-256 of each file of a model's weights: read once, and known until the file changes.

They are kept in the folder of the KV, a file for each model folder. A file counts as unchanged
while its size, its inode and the times of its last write and last change are the same; the system
sets the latter at every write, so that a time set back hides nothing.
"""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from node.models.saved_hashes import FolderRecord, HashingStopped, sha256_of, write_record

KEPT_FOLDER = "digests"
_NAME_BYTES = 16


class Stamp(NamedTuple):
    """What tells one state of a file from another without reading it."""

    size_bytes: int
    mtime_ns: int
    ctime_ns: int
    inode: int


class _Kept(FolderRecord, frozen=True):
    files: dict[str, tuple[Stamp, str]]
    """By name, of each that has been hashed."""


class Digests:
    """Those of one model folder, as it is when this is made: before its weights are read."""

    def __init__(self, kv_folder: Path, folder: Path) -> None:
        """Raises `OSError`."""
        self._kept_folder = kv_folder / KEPT_FOLDER
        self._folder = folder
        self._stamps = _stamps(folder)

    def known(self) -> dict[str, str] | None:
        """By file name, where all are known."""
        kept = self._read()
        return {name: digest for name, (_, digest) in kept.items()} if self._is_all(kept) else None

    def make(self, is_stopped: Callable[[], bool]) -> dict[str, str]:
        """Reads every file that is not known. Raises `OSError`, and `HashingStopped` also where
        a file is not what it was."""
        kept = self._read()
        for name in self._stamps.keys() - kept.keys():
            digest = sha256_of(self._folder / name, is_stopped)
            if _stamps(self._folder) != self._stamps:
                raise HashingStopped
            kept[name] = self._stamps[name], digest
            write_record(self._file(), _Kept(str(self._folder), kept))
        return {name: digest for name, (_, digest) in kept.items()}

    def _is_all(self, kept: dict[str, tuple[Stamp, str]]) -> bool:
        return kept.keys() == self._stamps.keys()

    def _read(self) -> dict[str, tuple[Stamp, str]]:
        """Of files that are still as they were."""
        try:
            kept = msgspec.json.decode(self._file().read_bytes(), type=_Kept)
        except (OSError, msgspec.MsgspecError):
            return {}
        if kept.folder != str(self._folder):
            return {}
        return {
            name: each for name, each in kept.files.items() if self._stamps.get(name) == each[0]
        }

    def _file(self) -> Path:
        name = hashlib.blake2b(os.fsencode(self._folder), digest_size=_NAME_BYTES).hexdigest()
        return self._kept_folder / f"{name}.json"


def weight_files(folder: Path) -> list[Path]:
    """In the order of their names."""
    return sorted(folder.glob("model*.safetensors"))


def _stamps(folder: Path) -> dict[str, Stamp]:
    found = {}
    for path in weight_files(folder):
        stat = path.stat()
        found[path.name] = Stamp(stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)
    return found
