"""docs/reference/faults.md names what is tested here, and nothing else."""

import ast
import re
from pathlib import Path

import pytest

from tests.doc_tables import DOCS

PAGE = (DOCS / "reference/faults.md").read_text()
ROWS = [line for line in PAGE.splitlines() if re.match(r"\| \d+ \|", line)]


def defined(folder: Path) -> set[str]:
    """The tests of a folder and of those within it."""
    names = set()
    for file in folder.rglob("test_*.py"):
        for each in ast.parse(file.read_text()).body:
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                names.add(each.name)
    return {name for name in names if name.startswith("test_")}


def test_every_fault_has_one_row() -> None:
    assert [int(row.split("|")[1]) for row in ROWS] == list(range(1, 41))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip())
def test_a_row_names_its_source_and_the_tests_of_its_number(row: str) -> None:
    _, number, wrong, right, test, _ = row.split("|")
    assert re.search(r"[\w.-]+#\d+", wrong) and right.strip()
    one = rf"`test_fault_{int(number):02}_\w+`"
    assert re.fullmatch(rf" {one}(, {one})* ", test)


def test_every_test_of_a_fault_stands_in_the_page() -> None:
    here = Path(__file__).parent
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert named <= defined(here.parent)
    assert {name for name in defined(here) if name.startswith("test_fault_")} <= named
