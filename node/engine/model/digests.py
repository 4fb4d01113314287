"""The SHA-256 digest of each file of a model's weights, cached until the file changes.

The digests are stored in the KV folder, in one file per model folder. A file counts as unchanged
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

DIGESTS_FOLDER = "digests"
_NAME_BYTES = 16


class Stamp(NamedTuple):
    """File attributes that change whenever the file does."""

    size_bytes: int
    mtime_ns: int
    ctime_ns: int
    inode: int


class _FolderDigests(FolderRecord, frozen=True):
    files: dict[str, tuple[Stamp, str]]
    """By name, for each file that has been hashed."""


class Digests:
    """Digests of one model folder, in its state when this object is made: before the weights are
    read."""

    def __init__(self, kv_folder: Path, folder: Path) -> None:
        """Raises `OSError`."""
        self._digests_folder = kv_folder / DIGESTS_FOLDER
        self._folder = folder
        self._stamps = _stamps(folder)

    def known(self) -> dict[str, str] | None:
        """Returns the digests by file name if all are cached, else None."""
        kept = self._read()
        return {name: digest for name, (_, digest) in kept.items()} if self._is_all(kept) else None

    def make(self, is_stopped: Callable[[], bool]) -> dict[str, str]:
        """Hashes every file without a cached digest. Raises `OSError`, and `HashingStopped` if
        stopped or if a file has changed."""
        kept = self._read()
        for name in self._stamps.keys() - kept.keys():
            digest = sha256_of(self._folder / name, is_stopped)
            if _stamps(self._folder) != self._stamps:
                raise HashingStopped
            kept[name] = self._stamps[name], digest
            write_record(self._file(), _FolderDigests(str(self._folder), kept))
        return {name: digest for name, (_, digest) in kept.items()}

    def _is_all(self, kept: dict[str, tuple[Stamp, str]]) -> bool:
        return kept.keys() == self._stamps.keys()

    def _read(self) -> dict[str, tuple[Stamp, str]]:
        """Returns the cached digests of unchanged files."""
        try:
            kept = msgspec.json.decode(self._file().read_bytes(), type=_FolderDigests)
        except (OSError, msgspec.MsgspecError):
            return {}
        if kept.folder != str(self._folder):
            return {}
        return {
            name: each for name, each in kept.files.items() if self._stamps.get(name) == each[0]
        }

    def _file(self) -> Path:
        name = hashlib.blake2b(os.fsencode(self._folder), digest_size=_NAME_BYTES).hexdigest()
        return self._digests_folder / f"{name}.json"


def weight_files(folder: Path) -> list[Path]:
    """Returns the files of weights in the order of their names."""
    return sorted(folder.glob("model*.safetensors"))


def _stamps(folder: Path) -> dict[str, Stamp]:
    found = {}
    for path in weight_files(folder):
        stat = path.stat()
        found[path.name] = Stamp(stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)
    return found
