"""The files that make a folder a model, as far as their names and their JSON say."""

import json
import os
from pathlib import Path
from typing import Any

import msgspec

from node.errors import NodeError

NAME_FILE = "mlx-fleet.json"
PARTIAL_MARKER = ".partial"
"""Marker file in a folder that is being written, and suffix of a folder that will be renamed."""
INDEX_FILE = "model.safetensors.index.json"
SUFFIX = ".safetensors"
MAX_JSON_BYTES = 64 * 1024**2
MAX_SHARDS = 10_000
_FILES = (NAME_FILE, "config.json", INDEX_FILE)


class NotAModel(NodeError):
    """The folder is not a model."""

    status = 400
    code = "not_a_model"
    kind = "invalid_request_error"


class NameFile(msgspec.Struct, frozen=True):
    """The store's file in a model's folder: the name as shown, and the model's origin."""

    name: str
    source: str = ""


def looks_like_model(path: Path) -> bool:
    """True if an unreadable folder looks like a model: it has a file of one, may not be opened, or
    is a link to nothing."""
    try:
        if path.is_symlink() and not path.exists():
            return True
        return path.is_dir() and any(
            name in _FILES or name.endswith(SUFFIX) for name in os.listdir(path)
        )
    except (OSError, RuntimeError):
        return True


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in the file. Raises `NotAModel`."""
    try:
        if (size_bytes := path.stat().st_size) > MAX_JSON_BYTES:
            raise NotAModel(f"{path} has {size_bytes:,} bytes, more than any model's.")
        value = _decode(path.read_bytes())
    except OSError:
        raise NotAModel(f"{path.parent} has no readable {path.name}.") from None
    except ValueError:
        raise NotAModel(f"{path} is not valid JSON.") from None
    if not isinstance(value, dict):
        raise NotAModel(f"{path} is not a JSON object.")
    return value


def _decode(data: bytes) -> Any:
    """The decoded JSON. Python's own reader is the fallback for NaN and Infinity, which configs of
    Mamba have; it is slower, and indexes are long. Raises `ValueError`."""
    try:
        return msgspec.json.decode(data)
    except msgspec.MsgspecError:
        return json.loads(data)


def weight_files(folder: Path) -> list[Path]:
    """All files with the model's weights. Raises `NotAModel` if one is missing."""
    index = folder / INDEX_FILE
    if index.exists():
        weight_map = read_json(index).get("weight_map")
        names = {str(name) for name in weight_map.values()} if isinstance(weight_map, dict) else ()
        # A file name in an index is always a name in this folder.
        files = [folder / Path(name).name for name in sorted(names)]
        if len(files) > MAX_SHARDS:
            raise NotAModel(f"{index} names {len(files):,} files.")
    else:
        files = sorted(folder.glob(f"*{SUFFIX}"))
    missing = next((file.name for file in files if not file.is_file()), None)
    if missing is not None:
        raise NotAModel(f"{folder} lacks {missing}.")
    if not files:
        raise NotAModel(f"{folder} has no safetensors weights.")
    return files


def write_name(folder: Path, name: str, source: str) -> None:
    """Saves the model's name and origin in its folder."""
    body = msgspec.json.encode(NameFile(name=name, source=source))
    (folder / NAME_FILE).write_bytes(body + b"\n")


def partial_folder(folder: Path) -> Path:
    """Folder in which a model is written before it is renamed to `folder` at once."""
    return folder.with_name(folder.name + PARTIAL_MARKER)


def read_source(folder: Path) -> str:
    """Origin of the model in `folder` as `write_name` saved it; empty if unknown."""
    try:
        return msgspec.json.decode((folder / NAME_FILE).read_bytes(), type=NameFile).source
    except (OSError, msgspec.MsgspecError, RuntimeError):
        return ""
