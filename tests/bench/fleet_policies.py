"""`python -m tests.bench.fleet_policies`: writes the table of docs/reference/policy-results.md.

The figures are what `python -m tests.bench.fleet --part table` measured.
"""

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from router.simulator.policies import BASELINES
from router.simulator.table import BOUND, OURS
from tests.bench.fleet import MEASURED
from tests.bench.fleet_cells import Cell
from tests.bench.fleet_table import LONGEST_WAIT_BAR, Row, Verdict, judge
from tests.bench.parts import Result

DOCS = Path("docs/reference/policy-results.md")
BEGIN = "<!-- policy table: written by `python -m tests.bench.fleet_policies` -->"
END = "<!-- end of the policy table -->"
COLUMNS = (
    "fleet",
    "model",
    "SSD",
    "ours",
    "best other",
    "ratio",
    "bar",
    "wait ratio",
    "oracle",
    "",
)


@dataclass(frozen=True, slots=True)
class Measured:
    cell: Cell
    row: Row

    @property
    def verdict(self) -> Verdict:
        return judge(self.cell, self.row)

    def texts(self) -> tuple[str, ...]:
        """Returns the texts of the table's columns."""
        cell, row, verdict = self.cell, self.row, self.verdict
        mean_bar, p99_bar = cell.bars()
        misses = verdict.misses
        return (
            f"{cell.nodes} {cell.kind}",
            "snapshots" if cell.snapshot_only else "trimmable",
            "yes" if cell.disk else "no",
            _pair(row[OURS]["ttft_mean_s"], row[OURS]["ttft_p99_s"]),
            f"{_pair(*(_best(row, field) for field in _TTFT))} {verdict.best}",
            f"{verdict.mean:.2f} / {verdict.p99:.2f}",
            f"{mean_bar:g} / {p99_bar:g}",
            f"{verdict.longest:.2f}",
            _pair(row[BOUND]["ttft_mean_s"], row[BOUND]["ttft_p99_s"]),
            f"misses {', '.join(misses)}" if misses else "met",
        )


_TTFT = ("ttft_mean_s", "ttft_p99_s")


def _best(row: Row, field: str) -> float:
    return min(row[name][field] for name in BASELINES)


def _pair(mean_s: float, p99_s: float) -> str:
    return f"{mean_s:.2f} / {p99_s:.1f}"


def read(found: Mapping[str, Result]) -> list[Measured]:
    return [
        Measured(Cell(**line["cell"]), line["policies"])
        for result in found.values()
        for line in result.get("lines", ())
    ]


def summary(measured: Sequence[Measured]) -> str:
    missed = Counter(name for each in measured for name in each.verdict.misses)
    met = sum(not each.verdict.misses for each in measured)
    what = ", ".join(f"{name} in {count}" for name, count in missed.items())
    return f"{met} of {len(measured)} cells meet all bars" + (f"; missed: {what}." if what else ".")


def groups(measured: Sequence[Measured]) -> Iterator[tuple[str, list[Measured]]]:
    """The cells of each trace and load."""
    for (trace, load), each in groupby(measured, lambda one: (one.cell.trace, one.cell.load)):
        yield f"{trace}, {load}", list(each)


def markdown(measured: Sequence[Measured]) -> str:
    lines = [
        "TTFT in seconds, mean / p99, medians of three seeds. The best other is the best of the "
        f"four for each figure by itself; the name is that of the best mean. {summary(measured)} "
        f"The bar of the wait ratio is {LONGEST_WAIT_BAR:g}.",
    ]
    for title, cells in groups(measured):
        lines += ["", f"**{title}**", "", _markdown_row(COLUMNS), "|---" * len(COLUMNS) + "|"]
        lines += [_markdown_row(cell.texts()) for cell in cells]
    return "\n".join(lines)


def _markdown_row(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts)} |"


def write(path: Path, measured: Sequence[Measured]) -> None:
    """Replaces what stands between the two marks."""
    text = path.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{path} lacks the marks {BEGIN} and {END}.")
    path.write_text(f"{before}{BEGIN}\n\n{markdown(measured)}\n\n{END}{after}")


def main() -> int:
    measured = read(MEASURED.read()["table"])
    if not measured:
        print("Nothing has been measured yet: python -m tests.bench.fleet --part table")
        return 1
    write(DOCS, measured)
    print(summary(measured))
    return 0


if __name__ == "__main__":
    sys.exit(main())
