"""The cells of the policy table: which fleet, under which load, with which model and disk."""

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal

import msgspec

from router.simulator.fleet import NodeSpec, equal_fleet, spread
from router.simulator.trace import Trace, read_trace
from router.simulator.workload import LoadSpec

TRACES = {"mini-swe": "lmcache_agent_miniswe_qwen3_b64.jsonl.gz", "swe": "swe_agent_sessions.jsonl"}
"""Files of the traces' folder."""
SIZES = (2, 4, 8, 16)
Kind = Literal["equal", "unequal"]
LoadName = Literal["light", "loaded", "over"]
KINDS: tuple[Kind, ...] = ("equal", "unequal")
CLONES_AND_GAP_S: dict[LoadName, tuple[int, float]] = {
    "light": (1, 20.0),
    "loaded": (2, 6.0),
    "over": (3, 2.0),
}
"""The gap is that of four nodes."""
RESTORE_TOKENS_PER_S = 10_000.0
DISK_PER_MEMORY = 10
"""Tokens on disk for each that the uncut cache holds."""
UNEQUAL = (
    NodeSpec(
        name="ultra",
        chip="Apple M2 Ultra",
        prefill_tokens_per_s=2000,
        decode_tokens_per_s=60,
        cache_tokens=200_000,
    ),
    NodeSpec(
        name="max",
        chip="Apple M1 Max",
        prefill_tokens_per_s=1000,
        decode_tokens_per_s=45,
        cache_tokens=120_000,
    ),
    NodeSpec(
        name="mini",
        chip="Apple M2",
        prefill_tokens_per_s=250,
        decode_tokens_per_s=15,
        cache_tokens=40_000,
    ),
    NodeSpec(
        name="mini",
        chip="Apple M2",
        prefill_tokens_per_s=250,
        decode_tokens_per_s=15,
        cache_tokens=40_000,
    ),
)
CHARACTERS_PER_TOKEN = 4
BLOCK_TOKENS = 64
TURN_MS = 5000
"""Between two requests of a trace that does not record when they arrived."""


@dataclass(frozen=True, slots=True)
class Cell:
    trace: str
    load: LoadName
    kind: Kind
    nodes: int
    snapshot_only: bool
    disk: bool

    @property
    def name(self) -> str:
        model = "snapshots" if self.snapshot_only else "trimmable"
        disk = "ssd" if self.disk else "ram"
        return f"{self.trace}.{self.load}.{self.kind}-{self.nodes}.{model}.{disk}"

    def load_of(self, seed: int) -> LoadSpec:
        clones, gap_s = CLONES_AND_GAP_S[self.load]
        return LoadSpec(clones, gap_s * 4 / self.nodes, seed)

    def specs(self, distinct_tokens: int) -> tuple[NodeSpec, ...]:
        """Over all, the caches hold half of the prompts at most."""
        whole = equal_fleet(self.nodes) if self.kind == "equal" else unequal_fleet(self.nodes)
        cache_tokens = sum(spec.cache_tokens for spec in whole)
        share = min(1.0, distinct_tokens / 2 / cache_tokens) if self.load == "over" else 1.0
        return tuple(
            msgspec.structs.replace(
                spec,
                cache_tokens=int(spec.cache_tokens * share),
                snapshot_only=self.snapshot_only,
                disk_tokens=DISK_PER_MEMORY * spec.cache_tokens if self.disk else 0,
                restore_tokens_per_s=RESTORE_TOKENS_PER_S,
            )
            for spec in whole
        )

    def bars(self) -> tuple[float, float]:
        """The most that our mean and p99 may be of the best baseline's."""
        if self.load != "over":
            return (1.02, 1.02) if self.kind == "equal" else (0.35, 0.35)
        return (1.0, 0.5) if self.disk and self.kind == "unequal" else (1.02, 1.02)


def cells(trace: str, load: LoadName, kind: Kind) -> Iterator[Cell]:
    for nodes, snapshot_only, disk in product(SIZES, (False, True), (False, True)):
        yield Cell(trace, load, kind, nodes, snapshot_only, disk)


def unequal_fleet(nodes: int) -> tuple[NodeSpec, ...]:
    if nodes == 2:
        return spread([UNEQUAL[0], UNEQUAL[-1]])
    return spread([UNEQUAL[number % len(UNEQUAL)] for number in range(nodes)])


def open_trace(folder: Path, name: str) -> Trace:
    path = folder / TRACES[name]
    if path.suffix == ".gz":
        with gzip.open(path, "rb") as lines:
            return read_trace(lines)
    with path.open() as sessions:
        return read_trace(block_lines(map(json.loads, sessions)), BLOCK_TOKENS)


def block_lines(sessions: Iterator[dict[str, Any]]) -> Iterator[bytes]:
    """The lines of a trace for sessions of messages, at four characters to a token."""
    blocks: dict[tuple[int, str], int] = {}
    size = BLOCK_TOKENS * CHARACTERS_PER_TOKEN
    for number, session in enumerate(sessions):
        texts = [_text(message) for message in session["messages"]]
        for turn, point in enumerate(session["request_points"]):
            prompt = "".join(texts[:point])
            prompt = prompt[: len(prompt) // CHARACTERS_PER_TOKEN * CHARACTERS_PER_TOKEN]
            ids: list[int] = []
            for begin in range(0, len(prompt), size):
                key = (ids[-1] if ids else 0, prompt[begin : begin + size])
                ids.append(blocks.setdefault(key, len(blocks) + 1))
            line = {
                "timestamp": turn * TURN_MS,
                "input_length": len(prompt) // CHARACTERS_PER_TOKEN,
                "output_length": len(texts[point]) // CHARACTERS_PER_TOKEN,
                "hash_ids": ids,
                "session": number,
            }
            yield msgspec.json.encode(line)


def _text(message: dict[str, Any]) -> str:
    return json.dumps(message, ensure_ascii=False) + "\n"
