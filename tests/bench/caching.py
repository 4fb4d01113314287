"""Measures how fast the prefix cache stores, restores and finds, without the engine around it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from tests.bench import processes
from tests.bench.figures import Figure, median, percentile
from tests.bench.machine import Cores, blas_threads
from tests.bench.processes import BenchFailure
from tests.bench.shared import CACHE, smollm2_folder

TOKENS, QUICK_TOKENS = 4096, 2048
ROUNDS, QUICK_ROUNDS = 7, 3
_RAM_BAR_GB, _DISK_BAR, _LOOKUP_BAR_MS = 1.0, 0.7, 0.2
_TIMEOUT_S = 120.0


def measure(cores: Cores, *, quick: bool) -> Iterator[Figure]:
    speeds = run_loop(cores, *((QUICK_TOKENS, QUICK_ROUNDS) if quick else (TOKENS, ROUNDS)))
    nbytes = speeds["nbytes"]
    size = f"{nbytes / 1e6:.0f} MB of SmolLM2's KV, medians of {len(speeds['store_s'])}"
    for what in ("store", "restore"):
        rates = tuple(nbytes / each_s / 1e9 for each_s in speeds[f"{what}_s"])
        pooled = nbytes / median(speeds[f"pooled_{what}_s"]) / 1e9
        note = (
            f"{size}; into memory that is taken from the system anew; {pooled:.2f} GB/s into what "
            "MLX holds for reuse"
        )
        yield Figure(f"cache: {what}, RAM", median(rates), "GB/s", _RAM_BAR_GB, True, note, rates)
    yield disk_row(speeds, size)
    lookups_ms = [each_s * 1e3 for each_s in speeds["lookup_s"]]
    note = f"64 sessions of 100,000 tokens in 50 turns each; p99 {percentile(lookups_ms, 99):.3f}"
    yield Figure("cache: lookup p50", median(lookups_ms), "ms", _LOOKUP_BAR_MS, note=note)


def disk_row(speeds: dict[str, Any], size: str) -> Figure:
    """A restore from disk against a plain read of the same files."""
    ratios = tuple(
        plain_s / disk_s
        for plain_s, disk_s in zip(speeds["plain_s"], speeds["disk_s"], strict=True)
    )
    plain, disk = (speeds["nbytes"] / median(speeds[name]) / 1e9 for name in ("plain_s", "disk_s"))
    note = (
        f"{disk:.2f} of {plain:.2f} GB/s, {size}; {speeds['device_share']:.0%} of the plain read "
        "came from the device, the rest from the system's memory"
    )
    what = "cache: restore from disk, of a plain sequential read"
    return Figure(what, median(ratios), "", _DISK_BAR, True, note, ratios)


def run_loop(cores: Cores, tokens: int, rounds: int) -> dict[str, Any]:
    """Returns the measurements of `tests.bench.cache_loop`."""
    smollm2 = smollm2_folder()
    if smollm2 is None:
        raise BenchFailure("$MLX_FLEET_SMOLLM2 names no model folder.")
    CACHE.mkdir(parents=True, exist_ok=True)
    argv = [sys.executable, "-m", "tests.bench.cache_loop", str(smollm2), str(CACHE.resolve())]
    environ = {"OPENBLAS_NUM_THREADS": str(blas_threads(cores))}
    with cores.starting_a_server():
        done = subprocess.run(
            [*argv, str(tokens), str(rounds)],
            cwd=processes.PROJECT,
            env={**os.environ, **environ},
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    if done.returncode:
        raise BenchFailure(f"The cache loop has ended: {done.stderr[-600:]}")
    speeds: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return speeds
