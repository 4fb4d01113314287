"""Our agent in the phases of the shared bench_server.py, which starts only its own peers."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench import processes
from tests.bench.decoding import Agent, agent
from tests.bench.machine import Cores, load_average
from tests.bench.shared import SharedTools

_LONG_TOKENS = 2000
_ENVIRON = {"OPENBLAS_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


@dataclass(frozen=True, slots=True)
class Effort:
    """How much of a server is measured."""

    singles: int
    streams: tuple[int, ...]
    max_tokens: int
    sessions: int

    def argv(self) -> list[str]:
        """The same as options of bench_server.py."""
        return [
            *("--single", str(self.singles)),
            *("--conc", ",".join(map(str, self.streams))),
            *("--max-tokens", str(self.max_tokens)),
            *("--sessions", str(self.sessions)),
        ]


TINY = Effort(singles=3, streams=(4, 16), max_tokens=128, sessions=3)
REAL = Effort(singles=2, streams=(4,), max_tokens=48, sessions=0)


def measure(tools: SharedTools, cores: Cores, folder: Path, effort: Effort) -> list[dict[str, Any]]:
    """One line a phase, with the fields of bench_server.py."""
    began_s = time.monotonic()
    lines: list[dict[str, Any]] = []
    with agent(tools, cores, folder, _ENVIRON) as ours:
        run(ours, ["-n", "1", "--max-tokens", "8"])
        lines.append({"phase": "start", "ready_s": round(time.monotonic() - began_s, 1)})
        for phase, argv in phases(effort):
            lines.append({"phase": phase, **run(ours, argv)})
    return lines


def phases(effort: Effort) -> Iterator[tuple[str, list[str]]]:
    """The load of each phase, as options of loadgen."""
    tokens = ["--max-tokens", str(effort.max_tokens), "--unique"]
    yield "single", ["-c", "1", "-n", str(effort.singles), "--seed", "1", *tokens]
    for streams in effort.streams:
        count = ["-c", str(streams), "-n", str(2 * streams), "--seed", str(10 + streams)]
        yield f"conc{streams}", [*count, *tokens]
    long = ["-n", "1", "--max-tokens", "8", "--prompt-tokens", str(_LONG_TOKENS), "--seed", "77"]
    for phase in ("long_cold", "long_repeat", "long_repeat2"):
        yield phase, [*long, "--allow-empty"]
    if effort.sessions:
        shape = ["--sessions", str(effort.sessions), "--turns", "3", "--turn-tokens", "40"]
        prefix = ["--shared-prefix-tokens", str(_LONG_TOKENS)]
        yield "sessions", [*shape, *prefix, "--max-tokens", "16", "--seed", "5"]


def run(ours: Agent, argv: list[str]) -> dict[str, Any]:
    before_s = processes.cpu_s(ours.process)
    summary = ours.load(argv)
    spent_s = processes.cpu_s(ours.process) - before_s
    summary["server_cpu_s"] = round(spent_s, 2)
    summary["tok_per_cpu_s"] = round(summary["output_tokens"] / max(spent_s, 1e-6), 2)
    summary["rss_mb"] = round(processes.rss_bytes(ours.process) / 2**20)
    summary["load1"] = load_average()
    return summary
