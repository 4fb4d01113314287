"""Measures the router's mirror of all nodes' prefixes: building it, as after a restart, and one
lookup."""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from tests.bench import processes
from tests.bench.figures import Figure, median, percentile
from tests.bench.machine import Cores
from tests.bench.processes import BenchFailure

NODES = 16
ENTRIES = 64 * 700
"""Entries of one node: 64 sessions of 150,000 tokens."""
ROUNDS, QUICK_ROUNDS = 5, 1
_MEMORY_BAR_MB, _WORK_BAR_S, _STALL_BAR_MS, _LOOKUP_BAR_MS = 150.0, 1.0, 50.0, 0.25
_TIMEOUT_S = 120.0


def measure(cores: Cores, *, quick: bool) -> Iterator[Figure]:
    found = [_round(cores) for _ in range(QUICK_ROUNDS if quick else ROUNDS)]
    how = f"{NODES} nodes on loopback, {NODES * ENTRIES:,} entries, a process of its own"
    memory = tuple(each["grown_bytes"] / 1e6 for each in found)
    note = f"{how}; growth of its RSS"
    yield Figure("index: memory", median(memory), "MB", _MEMORY_BAR_MB, note=note, samples=memory)
    work = tuple(each["work_s"] for each in found)
    note = f"{how}; CPU time, TCP and JSON included; after {found[0]['wall_s']:.2f} s all is known"
    yield Figure("index: rebuilt", median(work), "s", _WORK_BAR_S, note=note, samples=work)
    stalls = tuple(each["stall_s"] * 1e3 for each in found)
    note = f"of the event loop, all nodes tell at once; median of rounds, worst {max(stalls):.0f}"
    yield Figure(
        "index: longest stall", median(stalls), "ms", _STALL_BAR_MS, note=note, samples=stalls
    )
    lookups_ms = [each_s * 1e3 for each in found for each_s in each["lookup_s"]]
    note = f"all {NODES} nodes for one chain of 600 positions; p99 {percentile(lookups_ms, 99):.3f}"
    yield Figure("index: coverage p50", median(lookups_ms), "ms", _LOOKUP_BAR_MS, note=note)


def _round(cores: Cores) -> dict[str, Any]:
    sizes = [str(NODES), str(ENTRIES)]
    nodes = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.index_nodes", *sizes],
        cwd=processes.PROJECT,
        env=processes.environment({}),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert nodes.stdout is not None
    try:
        port = nodes.stdout.readline().strip()
        with cores.starting_a_server():
            done = subprocess.run(
                [sys.executable, "-m", "tests.bench.index_loop", port, *sizes],
                cwd=processes.PROJECT,
                env=processes.environment({}),
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_S,
                check=False,
            )
    finally:
        nodes.terminate()
        nodes.wait()
        nodes.stdout.close()
    if done.returncode:
        raise BenchFailure(f"The index could not be rebuilt: {done.stderr[-400:]}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer
