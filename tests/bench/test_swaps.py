"""Several models in virtual time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.bench import swaps
from tests.bench.swaps import CELLS, figures, trace


def test_models_in_turn_meet_the_bars_of_swaps_and_of_first_come() -> None:
    swapped, ttft = figures(CELLS[0], seeds=1)
    assert swapped.passed
    assert ttft.passed
    assert all(f"{name} " in ttft.note for name in ("ours", "first come", "round_robin"))


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_a_cell_requests_all_of_its_models_and_is_the_same_each_time(cell: swaps.Cell) -> None:
    made = trace(cell, 1)
    assert {each.model for each in made.requests} == set("abcd"[: cell.models])
    assert made == trace(replace(cell), 1)
    assert made.has_sessions is (cell.kind == "sessions")
