"""The safetensors files of a model folder, as far as their names and headers say.

We serve text, so the vision, audio and draft parts of a checkpoint are never loaded. Everything
here works on files alone: no model code, and only headers are read.
"""

import json
from functools import lru_cache
from pathlib import Path

FOREIGN_PARTS = frozenset(
    {
        # Images and video.
        "vision_tower",
        "vision_model",
        "vision_encoder",
        "vision_embedder",
        "vision_embed_tokens",
        "vision_projection",
        "vision_adapter",
        "vision_backbone",
        "vision_proj",
        "visual",
        "embed_vision",
        "image_newline",
        "img_projection",
        "patch_merge_mlp",
        # From either into the language model.
        "multi_modal_projector",
        "mm_projector",
        "modality_projection",
        "connector",
        "aligner",
        "resampler",
        "mlp1",
        # Sound.
        "audio_tower",
        "audio_model",
        "audio_encoder",
        "audio_projector",
        "embed_audio",
        "speech_encoder",
        "speech_projector",
        # Several tokens at once.
        "mtp",
        "mtp_block",
        "mtp_layers",
        "draft_model",
        "eagle",
        "medusa",
    }
)
"""Names of the parts of a checkpoint that text does not need."""

WRAPPERS = frozenset({"model", "language_model", "text_model"})
"""Names under which checkpoints put the language model, in varying order."""

_LENGTH_BYTES = 8
_NAME_CHARS = 100
_HEADER_LIMIT_BYTES = 32 * 1024**2
"""Some 250,000 tensors; the largest models have a tenth of that, in many files."""


class DamagedFile(ValueError):
    """A safetensors file whose tensors are not where its header says."""


def foreign_part(name: str) -> str | None:
    """The foreign part that a tensor or module of that path belongs to, if any.

    Only whole segments before the first number count: within a layer, the same names mean something
    else.
    """
    for segment in name.split("."):
        if segment.isdigit():
            return None
        if segment in FOREIGN_PARTS:
            return segment
    return None


def core_name(name: str) -> tuple[str, ...]:
    """The segments of a path after the wrappers in front, which are the same for
    `model.language_model.layers.0.mlp` and `model.layers.0.mlp`."""
    segments = name.split(".")
    while len(segments) > 1 and segments[0] in WRAPPERS:
        del segments[0]
    return tuple(segments)


def read_header(path: Path) -> bytes:
    """The JSON header of a safetensors file. Raises `OSError`, or `ValueError` if it is none."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if not 2 <= length <= _HEADER_LIMIT_BYTES:
            raise ValueError(f"{path.name} is no safetensors file")
        header = file.read(length)
    if len(header) < length:
        raise ValueError(f"{path.name} is cut short")
    return header


def tensor_bytes(path: Path) -> dict[str, int]:
    """Size in bytes of each tensor of a safetensors file. Raises `OSError`, `DamagedFile` if
    tensors lie outside the file or overlap, or another `ValueError` if the header cannot be
    read."""
    raw = read_header(path)
    spans = _spans(path, raw)
    data_bytes = path.stat().st_size - _LENGTH_BYTES - len(raw)
    at = 0
    for name, (begin, end) in sorted(spans.items(), key=lambda item: item[1]):
        if not at <= begin <= end <= data_bytes:
            raise DamagedFile(
                (
                    f"{path.name} is damaged or cut short: its tensor {name[:_NAME_CHARS]!r} "
                    f"is declared at bytes {begin} to {end} of {data_bytes}"
                )
                + (f", and another one up to {at}" if 0 <= begin < at else "")
            )
        at = end
    return {name: end - begin for name, (begin, end) in spans.items()}


def _spans(path: Path, header: bytes) -> dict[str, tuple[int, int]]:
    """First and last offset of each tensor, as the header has them."""
    spans = {}
    try:
        for name, tensor in json.loads(header).items():
            if name != "__metadata__":
                begin, end = tensor["data_offsets"]
                if type(begin) is not int or type(end) is not int:
                    raise TypeError
                spans[name] = (begin, end)
    except (AttributeError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"{path.name} is no safetensors file") from error
    return spans


def text_bytes(path: Path) -> int:
    """Bytes of the tensors in `path` that a load for text keeps; the whole file's if its header
    cannot be read. Raises `OSError` and `DamagedFile`."""
    facts = path.stat()
    return _text_bytes(path, facts.st_size, facts.st_mtime_ns)


@lru_cache(maxsize=4096)
def _text_bytes(path: Path, size_bytes: int, changed_ns: int) -> int:
    """The same as `text_bytes`, cached until the file changes."""
    try:
        sizes = tensor_bytes(path)
    except DamagedFile:
        raise
    except ValueError:
        return size_bytes
    return sum(size for name, size in sizes.items() if foreign_part(name) is None)
