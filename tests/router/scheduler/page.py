"""Compares the worked examples of docs/reference/ with what the scheduler computes."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from router.records.decisions import TERMS
from router.types import NodeTerms

_PAGES = Path(__file__).parents[3] / "docs" / "reference"


def check_terms(page: str, heading: str, terms: Mapping[str, NodeTerms]) -> None:
    """Asserts that the table below the heading has the terms and totals on studio and on mini, and
    no other rows."""
    documented = _rows(page, heading)
    both = terms["studio"], terms["mini"]
    total = tuple(each.total_s for each in both)
    assert documented.pop("total") == pytest.approx(total, abs=0.006)
    for term, name in TERMS.items():
        seconds = tuple(getattr(each, term) for each in both)
        assert documented.pop(name, (0.0, 0.0)) == pytest.approx(seconds, abs=0.006), name
    assert not documented


def _rows(page: str, heading: str) -> dict[str, tuple[float, float]]:
    section = (_PAGES / page).read_text().partition(heading)[2].partition("\n## ")[0]
    table = section[section.index("| | studio | | mini | |") :].split("\n\n")[0]
    rows = [[cell.strip(" `*") for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    return {name: (float(a), float(b)) for name, _, a, _, b in rows[2:]}
