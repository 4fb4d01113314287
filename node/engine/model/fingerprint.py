"""The fingerprint: one name for everything that determines the KV a model computes and its file
format.

Stored KV may be used only by an engine with the same fingerprint. It covers config.json, the
tokenizer, the names and every byte of the files of weights, the bits of the KV, mlx-lm's version
and the version of our format. It covers no path and no time: a copy of the folder has the same one.
"""

import hashlib
import importlib.metadata
from collections.abc import Iterator, Mapping
from pathlib import Path

from node.engine.base import LoadError
from node.engine.model.weight_hashes import weight_files
from node.models.safetensors_header import read_header

CACHE_FORMAT = 1
"""Version of the disk tier's files and their contents."""

_DIGEST_BYTES = 16
_LENGTH_BYTES = 8
_TEXT_FILES = (
    "config.json",
    "hf_quant_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
)
"""Files that determine the meaning of weights and token ids; no model needs all of them."""


class ModelTexts:
    """The inputs of a fingerprint beside the weights, in their state when this object is made."""

    def __init__(
        self, folder: Path, *, kv_cache_bits: int | None, kv_live_bits: int | None
    ) -> None:
        """Raises `LoadError`, also if the folder has no readable weights."""
        versions = f"{CACHE_FORMAT} {importlib.metadata.version('mlx-lm')}"
        self._digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        try:
            for part in (
                f"{versions} {kv_cache_bits} {kv_live_bits}".encode(),
                *_texts(folder),
            ):
                _update(self._digest, part)
            _check_weights(folder)
        except (OSError, ValueError) as error:
            raise LoadError(f"{folder} has no fingerprint: {error}.") from error

    def fingerprint(self, digests: Mapping[str, str]) -> str:
        """Returns 32 hexadecimal digits for the model with weights of these digests, by file
        name."""
        digest = self._digest.copy()
        for name in sorted(digests):
            _update(digest, f"{name} {digests[name]}".encode())
        return digest.hexdigest()


def _update(digest: "hashlib.blake2b", part: bytes) -> None:
    # The length in front keeps parts apart: no two lists of parts give the same bytes.
    digest.update(len(part).to_bytes(_LENGTH_BYTES, "little") + part)


def _texts(folder: Path) -> Iterator[bytes]:
    for name in _TEXT_FILES:
        path = folder / name
        yield name.encode()
        yield path.read_bytes() if path.exists() else b""


def _check_weights(folder: Path) -> None:
    paths = weight_files(folder)
    if not paths:
        raise ValueError("it has no model*.safetensors")
    for path in paths:
        read_header(path)
