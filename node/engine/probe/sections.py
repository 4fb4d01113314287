"""The sections of the report that need MLX, by name."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import mlx.core as mx
import psutil

from node.engine.model.load import LoadedModel, load_folder
from node.engine.probe import facts, hybrids, memory, outputs, soak, speeds
from node.engine.probe.line import ON_CPU, ON_GPU, Line


def lines(section: str, rest: Sequence[str]) -> Iterator[Line]:
    """`rest` has the section's arguments: a model folder, and a number."""
    has_gpu = mx.metal.is_available()
    sizes = ON_GPU if has_gpu else ON_CPU
    if section == facts.SECTION:
        yield from facts.probe(int(rest[0]))
    elif section == hybrids.SECTION:
        yield from hybrids.probe(sizes, has_gpu=has_gpu)
    elif section == memory.SECTION:
        yield from memory.probe(Path(rest[0]), sizes, _footprint_bytes)
    elif section == outputs.SECTION:
        yield from outputs.probe(_load(rest[0]), Path(rest[0]), sizes)
    elif section == speeds.SECTION:
        yield from speeds.probe(_load(rest[0]), sizes, has_gpu=has_gpu)
    elif section == soak.SECTION:
        yield from soak.probe(_load(rest[0]), float(rest[1]))
    else:
        raise ValueError(f"There is no section {section!r}.")


def _load(folder: str) -> LoadedModel:
    return load_folder(Path(folder), lambda _done: None)


def _footprint_bytes() -> int:
    held: int = psutil.Process().memory_info().rss
    return held
