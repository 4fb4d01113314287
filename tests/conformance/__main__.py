"""`python -m tests.conformance CORPUS`: our parsers, templates and dialects against a corpus of
real outputs, renderings and schemas. What the corpus lacks is skipped with a line."""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console

from tests.conformance.budgets import check_budgets
from tests.conformance.constrained import check_constrained
from tests.conformance.corpus import OUTPUTS, read_cases, read_token_tables
from tests.conformance.extension import check_extension
from tests.conformance.extras import check_extras
from tests.conformance.fields import check_fields
from tests.conformance.forced import check_forced
from tests.conformance.outputs import Tally, check_cases
from tests.conformance.result import Result
from tests.conformance.schemas import check_schemas
from tests.conformance.templates import check_templates

BAR = 0.98
"""Least share of the asserted outputs that must be read as the corpus has it."""

PARTS: tuple[tuple[str, Callable[[Path], Result]], ...] = (
    ("templates", check_templates),
    ("extension", check_extension),
    ("schemas", check_schemas),
    ("fields", check_fields),
)
"""Each passes whole."""

CONTROL: tuple[Callable[[Path], list[tuple[str, Result]]], ...] = (check_constrained, check_forced)
"""Each passes whole; what a tiny random model generates under constraints."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument(
        "--observed", action="store_true", help="also what other parsers made of more outputs"
    )
    given = parser.parse_args()
    console = Console(highlight=False, markup=False, soft_wrap=True)
    if not given.corpus.is_dir():
        console.print(f"conformance: skipped, there is no corpus at {given.corpus}")
        return 0
    began_s = time.monotonic()
    failed = check_outputs(given.corpus, console, observed=given.observed)
    for name, check in PARTS:
        result = check(given.corpus)
        console.print("\n".join(report(name, result)))
        failed |= bool(result.failing)
    for check_all in CONTROL:
        for name, result in check_all(given.corpus):
            console.print("\n".join(report(name, result)))
            failed |= bool(result.failing)
    budgets = check_budgets()
    console.print("\n".join(report("thinking budgets", budgets)))
    failed |= bool(budgets.failing)
    console.print(f"{time.monotonic() - began_s:.0f} s")
    return int(failed)


def check_outputs(corpus: Path, console: Console, *, observed: bool) -> bool:
    """Prints the results of the outputs; whether that is below the bar."""
    cases = read_cases(corpus / OUTPUTS)
    if not cases:
        console.print(f"asserted: skipped, there are no outputs in {corpus / OUTPUTS}")
        return False
    began_s = time.monotonic()
    tables = read_token_tables(corpus)
    tally = check_cases(cases, tables)
    console.print("\n".join(report("asserted", tally.result)))
    console.print("\n".join(table(tally)))
    console.print(
        f"  {tally.by_tokens} of them also token by token, in {len(tables)} vocabularies; "
        f"{time.monotonic() - began_s:.0f} s"
    )
    for name, result in check_extras(corpus, tables):
        console.print("\n".join(report(name, result)))
    if observed:
        seen = check_cases(read_cases(corpus / OUTPUTS / "observed"), tables).result
        console.print(f"observed {seen.passed}/{seen.total} agree")
        console.print("\n".join(f"  {line}" for line in seen.failing))
    return tally.raised or tally.result.passed < BAR * tally.result.total


def report(name: str, result: Result) -> Iterator[str]:
    """The lines of one part."""
    if result.skipped is not None:
        yield f"{name}: skipped, {result.skipped}"
        return
    yield f"{name} {result.passed}/{result.total}"
    yield from (f"  {line}" for line in (*result.failing, *result.notes))


def table(tally: Tally) -> Iterator[str]:
    """Passed and all cases of each wire format."""
    wide = max(map(len, tally.total))
    for wire in sorted(tally.total):
        yield f"  {wire:{wide}} {tally.passed[wire]:4}/{tally.total[wire]}"


if __name__ == "__main__":
    sys.exit(main())
