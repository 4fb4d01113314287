"""Hashes of large files, and the JSON files that keep them, one for each model folder."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import msgspec

HASH_BYTES = 4 * 1024 * 1024
"""Bytes read and hashed at a time."""


class HashingStopped(Exception):
    """The hashes are no longer needed, or the files change."""


class FolderRecord(msgspec.Struct, frozen=True):
    """The common field of all such files; subclasses add others."""

    folder: str


def sha256_of(file: Path, is_stopped: Callable[[], bool]) -> str:
    """The hash in hexadecimal. Raises `OSError`, or `HashingStopped`."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(HASH_BYTES))
    with file.open("rb", buffering=0) as stream:
        while count := stream.readinto(buffer):
            if is_stopped():
                raise HashingStopped
            digest.update(buffer[:count])
    return digest.hexdigest()


def write_record(file: Path, record: FolderRecord) -> None:
    """Replaces the file, and deletes files beside it whose folder no longer exists. Raises
    `OSError`."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _delete_orphans(file.parent)
    fresh = file.with_suffix(".new")
    fresh.write_bytes(msgspec.json.encode(record))
    fresh.replace(file)


def _delete_orphans(place: Path) -> None:
    for file in place.glob("*.json"):
        try:
            record = msgspec.json.decode(file.read_bytes(), type=FolderRecord)
        except (OSError, msgspec.MsgspecError):
            continue
        if not Path(record.folder).is_dir():
            file.unlink(missing_ok=True)
