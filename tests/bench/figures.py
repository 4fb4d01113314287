"""The results of a benchmark: figures with their bars, one table, one JSON file."""

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.bench.machine import Conditions


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number."""

    what: str
    value: float
    unit: str
    bar: float | None = None
    at_least: bool = False
    """True if the bar is the least that passes; else it is the most."""
    note: str = ""
    samples: tuple[float, ...] = field(default=())

    @property
    def passed(self) -> bool | None:
        """None where there is no bar."""
        if self.bar is None:
            return None
        return self.value >= self.bar if self.at_least else self.value <= self.bar

    def verdict(self) -> str:
        return {None: "", True: "[green]pass[/]", False: "[red]miss[/]"}[self.passed]

    def bar_text(self) -> str:
        if self.bar is None:
            return ""
        return f"{'≥' if self.at_least else '≤'} {self.bar:g}"


def percentile(values: Iterable[float], percent: float) -> float:
    """The value below which `percent` of the values lie, interpolated; NaN of none."""
    ordered = sorted(values)
    if not ordered:
        return math.nan
    position = (len(ordered) - 1) * percent / 100
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else math.nan


def show(console: Console, figures: Sequence[Figure], conditions: Conditions) -> None:
    """The table and the line that names the conditions of the run."""
    table = Table(title="mlx-fleet benchmarks", title_justify="left")
    table.add_column("what")
    table.add_column("figure", justify="right")
    table.add_column("bar", justify="right")
    table.add_column("")
    table.add_column("how", overflow="fold")
    for figure in figures:
        table.add_row(
            figure.what,
            f"{figure.value:.4g} {figure.unit}".rstrip(),
            figure.bar_text(),
            figure.verdict(),
            figure.note,
        )
    console.print(table)
    console.print(conditions.line(), highlight=False)


def write(path: Path, figures: Sequence[Figure], conditions: Conditions) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{**asdict(figure), "passed": figure.passed} for figure in figures]
    text = json.dumps({"conditions": asdict(conditions), "figures": rows}, indent=1)
    path.write_text(text + "\n")
