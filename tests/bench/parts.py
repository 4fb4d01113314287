"""A benchmark that takes longer than one run: parts of items, a file for each item's result."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from tests.bench.machine import load_average
from tests.bench.processes import BenchFailure
from tests.bench.shared import SharedTools, find_tools, smollm2_folder

RUN_S = 570.0
"""Most seconds of one run: less than ten minutes."""

Result = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Parts:
    """Where the results are, and what there is to measure."""

    folder: Path
    items: Mapping[str, tuple[str, ...]]
    """By part, in the order in which they are measured."""

    def next(self) -> str | None:
        """The first part that is not done."""
        return next((part for part in self.items if self.missing(part)), None)

    def missing(self, part: str) -> list[str]:
        return [item for item in self.items[part] if not self.file(part, item).exists()]

    def file(self, part: str, item: str) -> Path:
        return self.folder / f"{part}.{item}.json"

    def forget(self, part: str, *, all_of_it: bool, failures: bool) -> None:
        for item, result in self.read()[part].items():
            if all_of_it or (failures and has_failed(result)):
                self.file(part, item).unlink()

    def read(self) -> dict[str, dict[str, Result]]:
        """Results by part and item, in the order of the parts."""
        return {
            part: {
                item: json.loads(self.file(part, item).read_text())
                for item in items
                if self.file(part, item).exists()
            }
            for part, items in self.items.items()
        }

    def run(
        self,
        part: str,
        measure: Callable[[str], list[Result]],
        item_s: Callable[[str], float],
        deadline_s: float,
    ) -> None:
        """Measures what is missing of the part, item by item; one that takes `item_s` is not begun
        where less of the run is left."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for item in self.missing(part):
            if deadline_s - time.monotonic() < item_s(item):
                break
            began_s, load_before = time.monotonic(), load_average()
            try:
                result: Result = {"lines": measure(item)}
            except BenchFailure as failure:
                result = {"failed": str(failure)}
            took_s = round(time.monotonic() - began_s, 1)
            date = time.strftime("%Y-%m-%d %H:%M")
            result |= {"date": date, "took_s": took_s, "load": load_before}
            self.file(part, item).write_text(json.dumps(result, indent=1) + "\n")
            done = result.get("failed") or "done"
            print(f"{part}: {item}: {done} ({took_s} s)", flush=True)
        self._tell_what_is_left(part)

    def _tell_what_is_left(self, part: str) -> None:
        left, following = self.missing(part), self.next()
        if left:
            print(f"{part}: {', '.join(left)} still to do; run it again to go on.")
        elif following:
            print(f"{part} is done; next is {following}.")
        else:
            print("All parts are done; --report prints the tables.")


@dataclass(frozen=True, slots=True)
class Command:
    """`python -m` such a benchmark."""

    module: str
    description: str | None
    measured: Parts
    show: Callable[[Console, dict[str, dict[str, Result]]], None]
    """Prints the tables of the results."""
    run: Callable[[SharedTools, Path, str], None]
    """Measures a part, with the folder of the real model."""

    def main(self) -> int:
        given = self._arguments()
        console = Console() if sys.stdout.isatty() else Console(width=170)
        if given.report:
            self.show(console, self.measured.read())
            return 0
        tools, smollm2 = find_tools(), smollm2_folder()
        if tools is None:
            return 0
        if smollm2 is None:
            print("Nothing measured: $MLX_FLEET_SMOLLM2 names no model folder.")
            return 0
        part = given.part or self.measured.next()
        if part is None:
            self.show(console, self.measured.read())
            return 0
        self.measured.forget(part, all_of_it=given.again, failures=given.retry)
        self.run(tools, smollm2, part)
        return 0

    def _arguments(self) -> argparse.Namespace:
        parser = argparse.ArgumentParser(
            prog=f"python -m {self.module}", description=self.description
        )
        parts = tuple(self.measured.items)
        parser.add_argument("--part", choices=parts, help="this part, not the next one")
        parser.add_argument("--again", action="store_true", help="forget the part's results first")
        parser.add_argument("--retry", action="store_true", help="forget the part's failures first")
        parser.add_argument("--report", action="store_true", help="print the tables and do nothing")
        return parser.parse_args()


def has_failed(result: Result) -> bool:
    """Returns True if all of it or one phase could not be measured."""
    return "failed" in result or any("failed" in line for line in result["lines"])
