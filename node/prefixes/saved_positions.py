"""The prefix hash chain positions of the files of a disk tier, saved beside the files for the
agent's next start.

One file holds them and is replaced as a whole. It has a checksum, and a key made of everything that
decides how a prompt looks. A file that is torn or has another key counts as missing.
"""

import datetime
import importlib.metadata
import logging
import os
from array import array
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import msgspec

from node.defaults import Defaults
from node.ipc.kv_files import POSITIONS_NAME

_VERSION = 1
"""Increased with every change of chains, of prompts or of the file's format."""
_DIGEST_BYTES = 16
_FILE_MODE = 0o600
_RENDERERS = ("transformers", "tokenizers", "jinja2")
_TEXT_FILES = ("*.json", "*.jinja", "*.txt", "*.model", "additional_chat_templates/*.jinja")
_CLOCK = b"strftime_now"
"""Occurs in a template that shows the date."""

logger = logging.getLogger(__name__)


class SavedPositions(NamedTuple):
    """One file of the disk tier."""

    file: int
    """The same as `CacheEvent.file`."""
    hashes: "array[int]"
    tokens: "array[int]"
    """For each hash, the number of prompt tokens up to there."""


class _Content(msgspec.Struct, array_like=True):
    key: bytes
    files: list[tuple[int, bytes, bytes]]


_decode = msgspec.msgpack.Decoder(_Content).decode


def prompt_key(folder: Path, defaults: Defaults, version: str, day: datetime.date) -> bytes:
    """A key of everything that decides which prompt the model in `folder` gets for a chain.
    `version` is the agent's. Files are read once per process, as renderers do. Raises `OSError`."""
    texts, shows_day = _texts(folder)
    variables = msgspec.json.encode(defaults.template_kwargs, order="sorted")
    versions = [version, *(importlib.metadata.version(name) for name in _RENDERERS)]
    parts = [_VERSION, texts, variables, *versions, day.isoformat() if shows_day else ""]
    return blake2b(msgspec.msgpack.encode(parts), digest_size=_DIGEST_BYTES).digest()


def save_positions(folder: Path, key: bytes, saved: Sequence[SavedPositions]) -> None:
    """Replaces the file in the folder of a disk tier. Logs a warning if there is no room or no
    permission."""
    path = folder / POSITIONS_NAME
    temporary = path.with_suffix(".tmp")
    files = [(each.file, each.hashes.tobytes(), each.tokens.tobytes()) for each in saved]
    content = msgspec.msgpack.encode(_Content(key, files))
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _FILE_MODE)
        with open(descriptor, "wb") as file:
            file.write(_checksum(content) + content)
            file.flush()
            os.fsync(descriptor)
        temporary.replace(path)
    except OSError as error:
        logger.warning("The positions in %s are not saved for the next start: %s", folder, error)


def load_positions(folder: Path, key: bytes) -> list[SavedPositions]:
    """The positions that were saved under the same key."""
    try:
        data = (folder / POSITIONS_NAME).read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        logger.warning("The saved positions in %s cannot be read: %s", folder, error)
        return []
    checksum, content = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    if checksum != _checksum(content):
        logger.warning("The saved positions in %s are damaged, or of another version.", folder)
        return []
    found = _decode(content)
    if found.key != key:
        return []
    return [
        SavedPositions(file, array("Q", hashes), array("I", tokens))
        for file, hashes, tokens in found.files
    ]


def _checksum(content: bytes) -> bytes:
    return blake2b(content, digest_size=_DIGEST_BYTES, person=b"%d" % _VERSION).digest()


@lru_cache(maxsize=512)
def _texts(folder: Path) -> tuple[bytes, bool]:
    """A digest of the files of tokenizer and template, and True if prompts show the date."""
    digest = blake2b(digest_size=_DIGEST_BYTES)
    shows_day = False
    for path in sorted({path for pattern in _TEXT_FILES for path in folder.glob(pattern)}):
        data = path.read_bytes()
        name = str(path.relative_to(folder)).encode()
        # The length in front keeps any part from being read as the end of another.
        for part in (name, data):
            digest.update(len(part).to_bytes(8, "little") + part)
        shows_day = shows_day or _CLOCK in data
    return digest.digest(), shows_day
