"""Folders that look like models, and what peers need to copy them."""

import hashlib
import json
from pathlib import Path

from node.protocol.lifecycle import ManifestFile, Share

CONFIG = b'{"max_position_embeddings": 64}'


def make_model(folder: Path, weights: bytes = bytes(1000)) -> Path:
    """A complete model without a name file; its tensors are `weights`."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_bytes(CONFIG)
    (folder / "model.safetensors").write_bytes(safetensors(weights))
    return folder


def safetensors(weights: bytes) -> bytes:
    tensors = {"w": {"dtype": "U8", "shape": [len(weights)], "data_offsets": [0, len(weights)]}}
    head = json.dumps(tensors).encode()
    return len(head).to_bytes(8, "little") + head + weights


def manifest(files: dict[str, bytes]) -> tuple[ManifestFile, ...]:
    return tuple(
        ManifestFile(path, len(data), hashlib.sha256(data).hexdigest())
        for path, data in files.items()
    )


def share(files: dict[str, bytes], source: str = "") -> Share:
    return Share("ticket", source, manifest(files))


def bring_code(folder: Path) -> Path:
    """Gives a folder a tokenizer of its own code; the file that it would write."""
    ran = folder / "ran"
    code = f"open({str(ran)!r}, 'w')\nfrom transformers import PreTrainedTokenizerFast as Own\n"
    (folder / "own.py").write_text(code)
    config = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return ran
