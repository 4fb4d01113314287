"""The policy table: the scheduler that ships against others on simulated fleets, cell by cell."""

import statistics
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from router.simulator.policies import BASELINES
from router.simulator.report import PolicyFigures
from router.simulator.table import OURS, POLICIES, compare
from router.simulator.workload import PlannedTrace
from tests.bench.fleet_cells import (
    CLONES_AND_GAP_S,
    KINDS,
    TRACES,
    Cell,
    Kind,
    LoadName,
    cells,
    open_trace,
)

SEEDS = (1, 2, 3)
LONGEST_WAIT_BAR = 3.0
"""The most that our longest wait may be of the least one of the baselines, all of which serve each
node's calls in the order in which they came."""
LEAST_WAIT_S = 1.0
"""Whatever is less is no wait: where fleets are idle, ratios of such mean nothing."""
PROCESSES = 2
GROUPS: dict[str, tuple[str, LoadName, Kind]] = {
    f"{trace}.{load}.{kind}": (trace, load, kind)
    for trace in TRACES
    for load in CLONES_AND_GAP_S
    for kind in KINDS
}
ITEMS = tuple(GROUPS)
FIELDS = ("ttft_mean_s", "ttft_p99_s", "longest_wait_s", "cached_share")

Row = Mapping[str, Mapping[str, float]]
"""The medians of one cell's figures, by policy."""


def measure(traces: Path, item: str) -> list[dict[str, Any]]:
    """All cells of one trace under one load on one kind of fleet."""
    found = list(cells(*GROUPS[item]))
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        rows = pool.map(_measure_cell, [traces] * len(found), found, chunksize=1)
        return [
            {"cell": asdict(cell), "policies": row} for cell, row in zip(found, rows, strict=True)
        ]


def _measure_cell(traces: Path, cell: Cell) -> dict[str, dict[str, float]]:
    return medians(cell, _planned(traces, cell.trace), tuple(POLICIES))


def medians(cell: Cell, planned: PlannedTrace, names: Sequence[str]) -> dict[str, dict[str, float]]:
    runs: dict[str, list[PolicyFigures]] = {name: [] for name in names}
    for seed in SEEDS:
        workload = planned.workload(cell.load_of(seed))
        for figures in compare(names, workload, cell.specs(workload.distinct_tokens), seed):
            runs[figures.policy].append(figures)
    return {
        name: {
            field: statistics.median(getattr(figures, field) for figures in found)
            for field in FIELDS
        }
        for name, found in runs.items()
    }


@cache
def _planned(traces: Path, trace: str) -> PlannedTrace:
    return PlannedTrace(open_trace(traces, trace))


@dataclass(frozen=True, slots=True)
class Verdict:
    """A cell's ratios to the best baseline, each figure's own best."""

    cell: Cell
    mean: float
    p99: float
    longest: float
    best: str
    """The baseline with the least mean."""

    @property
    def misses(self) -> list[str]:
        mean_bar, p99_bar = self.cell.bars()
        bars = {
            "mean": (self.mean, mean_bar),
            "p99": (self.p99, p99_bar),
            "wait": (self.longest, LONGEST_WAIT_BAR),
        }
        return [name for name, (ratio, bar) in bars.items() if ratio > bar]


def judge(cell: Cell, row: Row) -> Verdict:
    def ratio(field: str, least: float = 0.0) -> float:
        best = min(row[name][field] for name in BASELINES)
        return max(least, row[OURS][field]) / max(least, best)

    best = min(BASELINES, key=lambda name: row[name]["ttft_mean_s"])
    longest = ratio("longest_wait_s", LEAST_WAIT_S)
    return Verdict(cell, ratio("ttft_mean_s"), ratio("ttft_p99_s"), longest, best)
