"""One name for everything that decides the KV a model computes, and how it is kept on disk.

Stored KV may be used only by an engine of the same fingerprint. It covers config.json, the
tokenizer, the name, size and header of each file of weights, blocks of 64 KiB of their data, the
bits of the KV, mlx-lm's version and ours of the format. It covers no path and no time: a copy of
the folder has the same one.

The blocks lie at equal distances over the data of all files, 4,096 of them (256 MiB), and each
file's last one counts too; weights of no more than 256 MiB count whole. In a model of 100 GB no
change of 24 MB or more in one run of bytes can go unseen; smaller ones, such as a single edited
matrix, can.
"""

import hashlib
import importlib.metadata
from collections.abc import Iterator
from pathlib import Path

from node.checkpoint import read_header
from node.engine.base import LoadError

CACHE_FORMAT = 1
"""Version of the files of the disk tier, and of what is in them."""

_SAMPLE_BYTES = 64 * 1024
_SAMPLES = 4096
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


def fingerprint(folder: Path, *, kv_cache_bits: int | None, kv_live_bits: int | None) -> str:
    """32 hexadecimal digits for the model in `folder` and its KV. Raises `LoadError`."""
    versions = f"{CACHE_FORMAT} {importlib.metadata.version('mlx-lm')}"
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    try:
        for part in (
            f"{versions} {kv_cache_bits} {kv_live_bits}".encode(),
            *_texts(folder),
            *_weights(folder),
        ):
            # With its length in front no part can pass for a piece of its neighbour.
            digest.update(len(part).to_bytes(_LENGTH_BYTES, "little") + part)
    except (OSError, ValueError) as error:
        raise LoadError(f"{folder} has no fingerprint: {error}.") from error
    return digest.hexdigest()


def _texts(folder: Path) -> Iterator[bytes]:
    for name in _TEXT_FILES:
        path = folder / name
        yield name.encode()
        yield path.read_bytes() if path.exists() else b""


def _weights(folder: Path) -> Iterator[bytes]:
    paths = sorted(folder.glob("model*.safetensors"))
    if not paths:
        raise ValueError("it has no model*.safetensors")
    total_bytes = sum(path.stat().st_size for path in paths)
    stride_bytes = max(_SAMPLE_BYTES, -(-total_bytes // _SAMPLES))
    for path in paths:
        header = read_header(path)
        yield f"{path.name} {path.stat().st_size}".encode()
        yield header
        yield from _samples(path, _LENGTH_BYTES + len(header), stride_bytes)


def _samples(path: Path, begin: int, stride_bytes: int) -> Iterator[bytes]:
    """A block at `begin`, one every `stride_bytes` after it, and the last of the file."""
    with path.open("rb") as file:
        size_bytes = path.stat().st_size
        last = max(begin, size_bytes - _SAMPLE_BYTES)
        for offset in (*range(begin, size_bytes, stride_bytes), last):
            file.seek(offset)
            yield file.read(_SAMPLE_BYTES)
