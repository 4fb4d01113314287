"""The SHA-256 hash of each file of a model's weights, cached until the file changes.

The hashes are stored in the KV folder, in one file per model folder. A file counts as unchanged
while its size, its inode and the times of its last write and last change are the same; the system
sets the latter at every write, so a write time that was set back is detected.
"""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from node.models.saved_hashes import FolderRecord, HashingStopped, sha256_of, write_record

HASHES_FOLDER = "digests"
_NAME_BYTES = 16


class FileStat(NamedTuple):
    """File attributes that change whenever the file does."""

    size_bytes: int
    mtime_ns: int
    ctime_ns: int
    inode: int


class _FolderHashes(FolderRecord, frozen=True):
    files: dict[str, tuple[FileStat, str]]
    """By name, for each file that has been hashed."""


class WeightHashes:
    """Hashes of one model folder's weight files, in the state of the moment at which this object is
    made: before the weights are read."""

    def __init__(self, kv_folder: Path, folder: Path) -> None:
        """Raises `OSError`."""
        self._hashes_folder = kv_folder / HASHES_FOLDER
        self._folder = folder
        self._file_stats = _file_stats(folder)

    def known(self) -> dict[str, str] | None:
        """Returns the hashes by file name if all are cached, else None."""
        kept = self._read()
        return {name: each for name, (_, each) in kept.items()} if self._is_all(kept) else None

    def make(self, is_stopped: Callable[[], bool]) -> dict[str, str]:
        """Hashes every file without a cached hash. Raises `OSError`, and `HashingStopped` if
        stopped or if a file has changed."""
        kept = self._read()
        for name in self._file_stats.keys() - kept.keys():
            file_hash = sha256_of(self._folder / name, is_stopped)
            if _file_stats(self._folder) != self._file_stats:
                raise HashingStopped
            kept[name] = self._file_stats[name], file_hash
            write_record(self._file(), _FolderHashes(str(self._folder), kept))
        return {name: each for name, (_, each) in kept.items()}

    def _is_all(self, kept: dict[str, tuple[FileStat, str]]) -> bool:
        return kept.keys() == self._file_stats.keys()

    def _read(self) -> dict[str, tuple[FileStat, str]]:
        """Returns the cached hashes of unchanged files."""
        try:
            kept = msgspec.json.decode(self._file().read_bytes(), type=_FolderHashes)
        except (OSError, msgspec.MsgspecError):
            return {}
        if kept.folder != str(self._folder):
            return {}
        return {
            name: each for name, each in kept.files.items() if self._file_stats.get(name) == each[0]
        }

    def _file(self) -> Path:
        name = hashlib.blake2b(os.fsencode(self._folder), digest_size=_NAME_BYTES).hexdigest()
        return self._hashes_folder / f"{name}.json"


def weight_files(folder: Path) -> list[Path]:
    """Returns the files of weights in the order of their names."""
    return sorted(folder.glob("model*.safetensors"))


def _file_stats(folder: Path) -> dict[str, FileStat]:
    found = {}
    for path in weight_files(folder):
        stat = path.stat()
        found[path.name] = FileStat(stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)
    return found
