"""The tables of `python -m tests.bench.fleet --report`."""

from collections.abc import Mapping, Sequence

import msgspec
from rich.console import Console
from rich.table import Table

from tests.bench import fleet_table, peer_report
from tests.bench.figures import Figure, median
from tests.bench.fleet_cells import Cell
from tests.bench.fleet_live import ALONE
from tests.bench.fleet_routers import OURS
from tests.bench.parts import Result
from tests.bench.peer_bars import Bar, Line, Path, judge, values

_SESSIONS: dict[str, Path] = {
    "cached share of the prompts": ("sessions", "share"),
    "ideal share": ("sessions", "ideal_share"),
    "prompt tokens not cached": ("sessions", "uncached_tokens"),
    "TTFT, mean (ms)": ("sessions", "ttft_mean_ms"),
    "TTFT, p50 (ms)": ("sessions", "ttft_p50_ms"),
    "TTFT, p95 (ms)": ("sessions", "ttft_p95_ms"),
    "engines, processor time of wall time": ("sessions", "busy"),
    "requests by node": ("sessions", "split"),
    "time (s)": ("sessions", "wall_s"),
}
ROWS: dict[str, dict[str, Path]] = {
    "fake-sessions": {
        "prefix hit rate": ("sessions", "hit_rate"),
        "requests by node": ("sessions", "split"),
    },
    "sessions-tiny": _SESSIONS,
    "sessions-smollm2": _SESSIONS,
    "beside-routers": {
        **_SESSIONS,
        "one agent alone: busy": (ALONE, "occupied"),
        "one agent alone: TTFT, mean (ms)": (ALONE, "ttft_mean_ms"),
        "one agent alone: prompt tokens not cached": (ALONE, "uncached_tokens"),
    },
}
TABLE = "table"
BESIDE = (
    Bar("prompt tokens not cached", ("sessions", "uncached_tokens"), 1.05),
    Bar("TTFT, mean (ms)", ("sessions", "ttft_mean_ms"), 0.7),
)


def show(console: Console, results: Mapping[str, Mapping[str, Result]]) -> None:
    """For each part that has figures a table and the bars; a line for each failure."""
    for part, found in results.items():
        if part == TABLE:
            _show_cells(console, found)
        elif part in ROWS:
            _show_live(console, part, found)
        for text in peer_report.failures(dict(found)):
            console.print(f"{part}: {text}", markup=False, highlight=False)
    if not any(results.values()):
        console.print("Nothing has been measured yet.")


def _show_live(console: Console, part: str, found: Mapping[str, Result]) -> None:
    measured = by_router(part, found)
    if measured:
        console.print(peer_report.table(part, ROWS[part], measured))
        _show_bars(console, part, peer_report.lines_of(measured))


def by_router(part: str, found: Mapping[str, Result]) -> dict[str, list[Result]]:
    """The results that have figures; an item of the session parts is a round of ours."""
    if not part.startswith("sessions-"):
        return peer_report.by_server(dict(found))
    mine = [result for result in found.values() if "lines" in result]
    return {OURS: mine} if mine else {}


def _show_cells(console: Console, found: Mapping[str, Result]) -> None:
    lines = [line for result in found.values() for line in result.get("lines", ())]
    if not lines:
        return
    made = Table(title="table: ours, of the best baseline", title_justify="left")
    for name in ("cell", "mean", "p99", "longest wait", "best baseline", "misses"):
        made.add_column(name, justify="left" if name in ("cell", "misses") else "right")
    for line in lines:
        cell = msgspec.convert(line["cell"], Cell)
        verdict = fleet_table.judge(cell, line["policies"])
        ratios = (f"{ratio:.3f}" for ratio in (verdict.mean, verdict.p99, verdict.longest))
        made.add_row(cell.name, *ratios, verdict.best, ", ".join(verdict.misses))
    console.print(made)


def _show_bars(console: Console, part: str, lines: dict[str, list[Line]]) -> None:
    if part == "beside-routers" and (verdicts := judge(BESIDE, lines)):
        console.print(peer_report.bars_table(part, verdicts))
    figures = bars(part, lines)
    if not figures:
        return
    made = Table(title=f"{part}: bars", title_justify="left")
    for name in ("", "ours", "bar", ""):
        made.add_column(name, justify="left" if name == "" else "right")
    for figure in figures:
        made.add_row(figure.what, f"{figure.value:.4g}", figure.bar_text(), figure.verdict())
    console.print(made)


def bars(part: str, lines: Mapping[str, list[Line]]) -> list[Figure]:
    """Medians of the rounds against the bars that know no peer. What was not measured is left
    out."""
    ours = lines.get(OURS, [])
    if part == "fake-sessions":
        found = [
            ("prefix hit rate", values(ours, ("sessions", "hit_rate")), 0.75, True),
            ("lesser share", _lesser_shares(values(ours, ("sessions", "split"))), 0.45, True),
        ]
    elif part == "beside-routers":
        alone = values(lines.get(ALONE, []), (ALONE, "occupied"))
        found = [("one agent alone, busy", alone, 0.9, True)]
    else:
        found = [
            ("cached tokens, of the ideal", values(ours, ("sessions", "of_ideal")), 0.95, True),
            ("predictions kept", values(ours, ("sessions", "kept")), 0.99, True),
            (
                "shortfall p95, of its slack",
                values(ours, ("sessions", "shortfall_p95")),
                1.0,
                False,
            ),
        ]
    return [
        Figure(what, median(numbers), "", bar, at_least)
        for what, numbers, bar, at_least in found
        if numbers
    ]


def _lesser_shares(splits: Sequence[Sequence[int]]) -> list[float]:
    return [min(split) / sum(split) for split in splits]
