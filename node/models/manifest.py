"""The files of a model with their sizes and hashes. A file is hashed once, and again only after it
has changed."""

import fnmatch
import os
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import msgspec

from node.models.model_files import NAME_FILE
from node.models.saved_hashes import FolderRecord, sha256_of, write_record
from node.models.store import ModelEntry
from node.protocol.lifecycle import ManifestFile

PATTERNS = ("*.safetensors", "*.json", "*.jinja", "tokenizer.model", "*.txt")
"""Weights, configuration and tokenizer; never code."""
MANIFESTS_FOLDER = ".manifests"


class _FileRecord(msgspec.Struct, frozen=True):
    size_bytes: int
    mtime_ns: int
    sha256: str


class _ManifestRecord(FolderRecord, frozen=True):
    files: dict[str, _FileRecord]


class Manifests:
    """The hashes of the models of one store. They are saved in the store, since a folder that is
    served from elsewhere is only read."""

    def __init__(self, store_folder: Path) -> None:
        self._folder = store_folder / MANIFESTS_FOLDER

    def of(self, entry: ModelEntry, is_stopped: Callable[[], bool]) -> tuple[ManifestFile, ...]:
        """The model's files. The first call for a model reads all of it. Raises `OSError`, or
        `HashingStopped`."""
        known = self._read(entry)
        files: dict[str, _FileRecord] = {}
        for path, file in sorted(model_files(entry.folder).items()):
            stat = file.stat()
            kept = known.get(path)
            if kept is None or (kept.size_bytes, kept.mtime_ns) != (stat.st_size, stat.st_mtime_ns):
                kept = _FileRecord(stat.st_size, stat.st_mtime_ns, sha256_of(file, is_stopped))
            files[path] = kept
        if files != known:
            self._write(entry, files)
        return tuple(
            ManifestFile(path, kept.size_bytes, kept.sha256) for path, kept in files.items()
        )

    def recorded(self, entry: ModelEntry) -> dict[str, str]:
        """The saved SHA-256 of each file, by path; empty if there are none."""
        return {path: each.sha256 for path, each in self._read(entry).items()}

    def save(self, entry: ModelEntry, files: tuple[ManifestFile, ...]) -> None:
        """Saves hashes against which a copy has just been checked, so that it need not be hashed
        again."""
        kept = {}
        for each in files:
            stat = (entry.folder / each.path).stat()
            kept[each.path] = _FileRecord(stat.st_size, stat.st_mtime_ns, each.sha256)
        self._write(entry, kept)

    def _read(self, entry: ModelEntry) -> dict[str, _FileRecord]:
        try:
            kept = msgspec.json.decode(self._file(entry.name).read_bytes(), type=_ManifestRecord)
        except (OSError, msgspec.MsgspecError):
            return {}
        return kept.files if kept.folder == str(entry.folder) else {}

    def _write(self, entry: ModelEntry, files: dict[str, _FileRecord]) -> None:
        write_record(self._file(entry.name), _ManifestRecord(str(entry.folder), files))

    def _file(self, name: str) -> Path:
        return self._folder / f"{name.replace('/', '--')}.json"


def is_model_file(path: str) -> bool:
    """True if a file belongs to a model, by its path below the model's folder. The path must be
    printable, since people see it."""
    parts = PurePosixPath(path).parts
    if path == NAME_FILE or not path.isprintable() or any(part[0] == "." for part in parts):
        return False
    return any(fnmatch.fnmatchcase(path, pattern) for pattern in PATTERNS)


def model_files(folder: Path) -> dict[str, Path]:
    """A model's files by path below its folder, with `/`."""
    found = {}
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            file = Path(parent, name)
            path = file.relative_to(folder).as_posix()
            if is_model_file(path) and file.is_file():
                found[path] = file
    return found
