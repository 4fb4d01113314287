"""One name for everything that decides the KV a model computes, and how it is kept on disk.

Stored KV may be used only by an engine of the same fingerprint. It covers config.json, the
tokenizer, every byte of the files of weights and their names, the bits of the KV, mlx-lm's version
and ours of the format. It covers no path and no time: a copy of the folder has the same one.
"""

import hashlib
import importlib.metadata
from collections.abc import Iterator, Mapping
from pathlib import Path

from node.engine.base import LoadError
from node.engine.model.digests import weight_files
from node.models.safetensors_header import read_header

CACHE_FORMAT = 1
"""Version of the files of the disk tier, and of what is in them."""

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
"""What the weights mean and which ids a text has; not all models have all."""


class ModelTexts:
    """What a fingerprint covers beside the weights, as it is when this is made."""

    def __init__(
        self, folder: Path, *, kv_cache_bits: int | None, kv_live_bits: int | None
    ) -> None:
        """Raises `LoadError`, also where the folder has no weights that can be read."""
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
        """32 hexadecimal digits for the model with weights of these digests, by file name."""
        digest = self._digest.copy()
        for name in sorted(digests):
            _update(digest, f"{name} {digests[name]}".encode())
        return digest.hexdigest()


def _update(digest: "hashlib.blake2b", part: bytes) -> None:
    # With its length in front no part can pass for a piece of its neighbour.
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
