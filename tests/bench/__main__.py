"""`python -m tests.bench`: what ours costs, with bars.

`docs/reference/benchmarks.md` explains the rows.
"""

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Iterator

from rich.console import Console

from tests.bench import (
    admin,
    caching,
    callers,
    chain,
    control,
    copying,
    decision,
    decoding,
    index,
    long_prompts,
    residency,
    reuse,
    routing,
    swaps,
)
from tests.bench.figures import Figure, show, write
from tests.bench.machine import Cores, conditions, load_average, share_out_cores
from tests.bench.processes import BenchFailure
from tests.bench.shared import CACHE, SharedTools, find_tools

LAST_ROUND_S = 420.0
"""After this time no row gets a second round, so that all is done in ten minutes."""
PARTS = (
    "router",
    "cache",
    "engine",
    "control",
    "index",
    "chain",
    "decision",
    "prompt",
    "callers",
    "admin",
    "copy",
    "models",
    "swap",
)
WIDTH = 140
"""Columns of the table in a file or a pipe."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--only", choices=PARTS, help="a part of the rows")
    parser.add_argument("--quick", action="store_true", help="rough figures in three minutes")
    given = parser.parse_args()
    tools = find_tools()
    if tools is None:
        return 0
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    load_before, began_s = load_average(), time.monotonic()
    cores = share_out_cores()
    cores.take_load_cores()
    figures: list[Figure] = []
    failed = False
    for part in PARTS:
        if given.only in (None, part):
            found = rows(part, tools, cores, quick=given.quick, deadline_s=began_s + LAST_ROUND_S)
            failed |= not collect(figures, console, found)
    machine = conditions(cores, load_before)
    show(console, figures, machine)
    path = CACHE / "results.json"
    write(path, figures, machine)
    console.print(f"{time.monotonic() - began_s:.0f} s; written to {path}", highlight=False)
    return int(failed)


def rows(
    part: str, tools: SharedTools, cores: Cores, *, quick: bool, deadline_s: float
) -> Iterator[Figure]:
    parts: dict[str, Callable[[], Iterator[Figure]]] = {
        "router": lambda: routing.measure(tools, cores, quick=quick),
        "cache": lambda: itertools.chain(
            caching.measure(cores, quick=quick), reuse.measure(tools, cores, quick=quick)
        ),
        "engine": lambda: decoding.measure(tools, cores, quick=quick, deadline_s=deadline_s),
        "control": lambda: control.measure(cores, quick=quick),
        "index": lambda: index.measure(cores, quick=quick),
        "chain": lambda: chain.measure(quick=quick),
        "decision": lambda: decision.measure(quick=quick),
        "prompt": lambda: long_prompts.measure(tools, cores, quick=quick),
        "callers": lambda: callers.measure(cores),
        "admin": lambda: admin.measure(tools, cores, quick=quick),
        "copy": lambda: copying.measure(cores, quick=quick),
        "models": lambda: residency.measure(cores, quick=quick),
        "swap": lambda: swaps.measure(quick=quick),
    }
    return parts[part]()


def collect(figures: list[Figure], console: Console, found: Iterator[Figure]) -> bool:
    """Takes the rows as they are measured; False, and why, where one could not be measured."""
    try:
        for figure in found:
            figures.append(figure)
            value = f"{figure.value:.4g} {figure.unit}"
            console.print(f"{figure.what}: {value}", style="dim", highlight=False)
    except BenchFailure as failure:
        console.print(f"[red]Not measured:[/] {failure}", highlight=False)
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
