"""The prefix cache's own speeds, in a process of its own: no HTTP, no scheduler.

`python -m tests.bench.cache_loop FOLDER DISK_FOLDER TOKENS ROUNDS` prints one JSON object: bytes
and seconds of each round of storing, restoring, reading back from disk and reading the same files
plainly; and the seconds of lookups.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from node.engine.model.blas import load_fast_blas

load_fast_blas()

import mlx.core as mx  # noqa: E402  the BLAS comes first

from node.engine.cache.config import CacheConfig  # noqa: E402
from node.engine.cache.disk.limits import Limits  # noqa: E402
from node.engine.cache.disk.shared import TierDependencies  # noqa: E402
from node.engine.cache.disk.tier import SsdTier, open_tier  # noqa: E402
from node.engine.cache.parts import EntryKind, FileRead, Tensors  # noqa: E402
from node.engine.cache.prefix_cache import PrefixCache  # noqa: E402
from node.engine.kv.cache_layout import CacheLayout  # noqa: E402
from node.engine.kv.cache_tree import Caches, flatten  # noqa: E402
from node.engine.kv.codec import PlainCodec  # noqa: E402
from node.engine.kv.spans import KvSpan, array_memory  # noqa: E402
from node.engine.model.load import load_folder  # noqa: E402

FILES = 4
SESSIONS, SESSION_TOKENS, TURNS = 64, 100_000, 50
SHARED_TOKENS = 4000
"""The system prompt of all sessions."""
_TIER_BYTES = 8 << 30
_BLOCK_BYTES = 8 << 20
_FLUSH_S = 120.0
_POLL_S = 0.0005


@dataclass
class Speeds:
    """The measured times."""

    nbytes: int = 0
    store_s: list[float] = field(default_factory=list)
    restore_s: list[float] = field(default_factory=list)
    pooled_store_s: list[float] = field(default_factory=list)
    """The same into memory that MLX holds for reuse."""
    pooled_restore_s: list[float] = field(default_factory=list)
    disk_s: list[float] = field(default_factory=list)
    """From the files to spans in memory, checked."""
    pooled_disk_s: list[float] = field(default_factory=list)
    plain_s: list[float] = field(default_factory=list)
    """The same files, read one after the other into a buffer."""
    device_share: float = 0.0
    """Share of the plain reads that came from the device and not from the system's memory."""
    lookup_s: list[float] = field(default_factory=list)


def main() -> None:
    folder, disk_folder = Path(sys.argv[1]), Path(sys.argv[2])
    tokens, rounds = int(sys.argv[3]), int(sys.argv[4])
    speeds = Speeds(lookup_s=lookups(rounds))
    network: Any = load_folder(folder, lambda fraction: None).network
    layout = CacheLayout.probe(network, live_bits=None, codec=PlainCodec())
    caches = filled_caches(layout, tokens)
    span = ram_rounds(layout, caches, tokens, rounds, speeds)
    disk_rounds(layout, span, disk_folder, rounds, speeds)
    print(json.dumps(asdict(speeds)))


def filled_caches(layout: CacheLayout, tokens: int) -> Caches:
    """Caches of one sequence of so many tokens, of noise: no forward is needed for their speed."""
    caches = layout.new_caches()
    for cache in flatten(caches):
        shape = (1, *_heads_and_width(layout, tokens))
        cache.update_and_fetch(mx.random.normal(shape), mx.random.normal(shape))
    mx.eval([cache.state for cache in flatten(caches)])
    return caches


def _heads_and_width(layout: CacheLayout, tokens: int) -> tuple[int, int, int]:
    arguments = layout.network.args
    width = arguments.head_dim or arguments.hidden_size // arguments.num_attention_heads
    return arguments.num_key_value_heads, tokens, width


def ram_rounds(
    layout: CacheLayout, caches: Caches, tokens: int, rounds: int, speeds: Speeds
) -> KvSpan:
    """Each round first takes its memory from the system anew, as a cache that grows does, then
    from what MLX holds for reuse."""
    span = layout.capture(caches, 0, tokens)
    speeds.nbytes = span.nbytes
    for _ in range(rounds):
        for seconds in (speeds.store_s, speeds.pooled_store_s):
            del span
            if seconds is speeds.store_s:
                mx.clear_cache()
            with timed(seconds):
                span = layout.capture(caches, 0, tokens)
        mx.clear_cache()
        for seconds in (speeds.restore_s, speeds.pooled_restore_s):
            with timed(seconds):
                restored = layout.restore([(span, 0, tokens)], None, tokens)
            del restored
    return span


@contextmanager
def timed(seconds: list[float]) -> Iterator[None]:
    began_s = time.perf_counter()
    yield
    seconds.append(time.perf_counter() - began_s)


# --- disk ---


def disk_rounds(
    layout: CacheLayout, span: KvSpan, folder: Path, rounds: int, speeds: Speeds
) -> None:
    with tempfile.TemporaryDirectory(dir=folder, prefix="kv-") as home:
        limits = Limits(max_bytes=_TIER_BYTES)
        tier = open_tier(
            Path(home), limits, "bench", dependencies=TierDependencies(memory=array_memory)
        )
        numbers = write_files(tier, span)
        files = sorted(Path(home).rglob("*.safetensors"))
        device_bytes, read_bytes = 0, 0
        for _ in range(rounds):
            forget(files)
            before_bytes = device_read_bytes()
            with timed(speeds.plain_s):
                read_bytes += read_plainly(files)
            device_bytes += device_read_bytes() - before_bytes
            for seconds in (speeds.disk_s, speeds.pooled_disk_s):
                forget(files)
                if seconds is speeds.disk_s:
                    mx.clear_cache()
                with timed(seconds):
                    read_back(layout, tier, numbers)
        speeds.device_share = min(1.0, device_bytes / read_bytes)
        tier.close()


def write_files(tier: SsdTier, span: KvSpan) -> list[int]:
    """The span in `FILES` files, each continuing the one before; their numbers."""
    numbers: list[int] = []
    parent = (0, 0)
    each = span.tokens // FILES
    for index in range(FILES):
        head, span = span.split(each) if index < FILES - 1 else (span, span)
        tokens = np.full(head.tokens, index, dtype=np.int32)
        number = tier.write(EntryKind.SPAN, parent, tokens, head.tensors())
        if number is None:
            raise SystemExit("The disk tier does not take the file.")
        tier.flush(_FLUSH_S)
        parent = (number, head.tokens)
        numbers.append(number)
    tier.poll()
    return numbers


def read_back(layout: CacheLayout, tier: SsdTier, numbers: list[int]) -> None:
    for number in numbers:
        tier.read(number)
    spans: list[KvSpan] = []
    while len(spans) < len(numbers):
        reports = tier.poll()
        for report in reports:
            if not isinstance(report, FileRead):
                raise SystemExit(f"The disk tier reports {report}.")
            spans.append(layout.rebuild_span(report.tensors))
        if not reports:
            time.sleep(_POLL_S)


def read_plainly(files: list[Path]) -> int:
    buffer = memoryview(bytearray(_BLOCK_BYTES))
    total = 0
    for path in files:
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                total += count
    return total


def forget(files: list[Path]) -> None:
    """Has the system drop the files from its memory, where it has a call for that."""
    if not hasattr(os, "posix_fadvise"):
        return
    for path in files:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def device_read_bytes() -> int:
    """Returns the bytes that this process has read from devices; 0 where the system does not report
    it."""
    counters = Path("/proc/self/io")
    if not counters.exists():
        return 0
    pairs = dict(line.split(": ") for line in counters.read_text().splitlines())
    return int(pairs["read_bytes"])


# --- lookup ---


@dataclass(frozen=True, slots=True)
class EmptySpan:
    """A `Span` of tokens without memory: lookups look at none."""

    tokens: int

    @property
    def nbytes(self) -> int:
        return self.tokens

    def split(self, at_tokens: int) -> tuple["EmptySpan", "EmptySpan"]:
        return EmptySpan(at_tokens), EmptySpan(self.tokens - at_tokens)

    def tensors(self) -> Tensors:
        return {}


def no_rebuild(tensors: Tensors) -> NoReturn:
    raise AssertionError("there is no disk tier")


def lookups(rounds: int) -> list[float]:
    """Seconds of each lookup of a session's next prompt, among all sessions. Each has come to its
    length in many turns, as an agent's does."""
    chance = np.random.default_rng(5)
    prompts = chance.integers(0, 49_152, (SESSIONS, SESSION_TOKENS + 500), dtype=np.int32)
    prompts[:, :SHARED_TOKENS] = prompts[0, :SHARED_TOKENS]
    config = CacheConfig(
        budget_bytes=2 * SESSIONS * SESSION_TOKENS,
        snapshot_bytes=0,
        needs_snapshot=False,
        span_bytes_per_token=1,
        rebuild_span=no_rebuild,
        rebuild_snapshot=no_rebuild,
        prefill_s=lambda begin, end: (end - begin) * 1e-3,
    )
    cache = PrefixCache(config, None, time.monotonic)
    for turn in range(1, TURNS + 1):
        for prompt in prompts:
            stored = prompt[: SESSION_TOKENS * turn // TURNS]
            cache.store(stored, lambda begin, end: EmptySpan(end - begin), None, "")
    seconds: list[float] = []
    for _ in range(rounds):
        for prompt in prompts:
            with timed(seconds):
                hit = cache.match(prompt, len(prompt) - 1)
            if hit.tokens != SESSION_TOKENS:
                raise SystemExit(f"A lookup found {hit.tokens} tokens, not {SESSION_TOKENS}.")
    return seconds


if __name__ == "__main__":
    main()
