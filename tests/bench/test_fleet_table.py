"""The cells of the policy table, and what is made of their figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.simulator.policies import BASELINES
from router.simulator.trace import read_trace
from router.simulator.workload import PlannedTrace
from tests.bench.fleet_cells import Cell, block_lines, unequal_fleet
from tests.bench.fleet_policies import BEGIN, END, Measured, markdown, read, summary, write
from tests.bench.fleet_table import GROUPS, ITEMS, Row, judge, medians

CELL = Cell("mini-swe", "over", "equal", 4, snapshot_only=False, disk=True)


def row(ours: float, best: float) -> Row:
    def figures(seconds: float) -> dict[str, float]:
        return {
            "ttft_mean_s": seconds,
            "ttft_p99_s": 10 * seconds,
            "longest_wait_s": seconds,
            "cached_share": 0.5,
        }

    others = {name: figures(best + number) for number, name in enumerate(BASELINES)}
    return {"ours": figures(ours), "oracle": figures(ours), **others}


def test_every_cell_of_the_bars_is_in_one_item() -> None:
    assert len(ITEMS) == len(GROUPS) == 12


def test_caches_of_the_overload_have_room_for_half_of_the_prompts_at_most() -> None:
    specs = CELL.specs(200_000)
    assert sum(spec.cache_tokens for spec in specs) == 100_000
    assert specs[0].disk_tokens == 600_000
    assert CELL.specs(10_000_000)[0].cache_tokens == 60_000


def test_more_nodes_get_sessions_faster() -> None:
    assert CELL.load_of(3).gap_s == 2.0
    sixteen = Cell("swe", "light", "equal", 16, snapshot_only=False, disk=False)
    assert (sixteen.load_of(1).gap_s, sixteen.load_of(1).clones) == (5.0, 1)


def test_two_unequal_nodes_are_the_first_and_the_last() -> None:
    assert [spec.prefill_tokens_per_s for spec in unequal_fleet(2)] == [2000, 250]
    assert [spec.prefill_tokens_per_s for spec in unequal_fleet(8)][3:6] == [250, 2000, 1000]


@pytest.mark.parametrize(
    ("load", "kind", "disk", "bars"),
    [
        ("light", "equal", False, (1.02, 1.02)),
        ("loaded", "unequal", True, (0.35, 0.35)),
        ("over", "unequal", False, (1.02, 1.02)),
        ("over", "unequal", True, (1.0, 0.5)),
        ("over", "equal", True, (1.02, 1.02)),
    ],
)
def test_the_bars_are_those_of_the_cell(
    load: str, kind: str, disk: bool, bars: tuple[float, float]
) -> None:
    cell = Cell("swe", load, kind, 4, snapshot_only=False, disk=disk)  # type: ignore[arg-type]
    assert cell.bars() == bars


def test_a_cell_is_judged_by_the_best_of_the_baselines() -> None:
    verdict = judge(CELL, row(2.0, 1.0))
    assert (verdict.mean, verdict.p99, verdict.longest) == (2.0, 2.0, 2.0)
    assert verdict.best == next(iter(BASELINES))
    assert verdict.misses == ["mean", "p99"]
    assert judge(CELL, row(1.0, 1.0)).misses == []
    assert judge(CELL, row(4.0, 1.0)).misses == ["mean", "p99", "wait"]


def test_sessions_of_messages_become_blocks_that_share_their_beginning() -> None:
    messages = [{"role": "user", "content": f"{number}" * 900} for number in range(4)]
    lines = list(block_lines(iter([{"messages": messages, "request_points": [1, 3]}])))
    first, second = read_trace(lines, 64).requests
    assert first.session == second.session == 0
    assert second.input_length > 2.9 * first.input_length
    assert second.hash_ids[:3] == first.hash_ids[:3]
    assert first.output_length > 200


def test_the_medians_of_a_cell_have_every_policy_s_figures() -> None:
    messages = [{"role": "user", "content": f"{number}" * 900} for number in range(6)]
    sessions = [{"messages": messages, "request_points": [1, 3, 5]}] * 3
    planned = PlannedTrace(read_trace(block_lines(iter(sessions)), 64))
    found = medians(CELL, planned, ("round_robin", "ours"))
    assert set(found) == {"round_robin", "ours"}
    assert found["ours"]["ttft_mean_s"] > 0


def test_the_table_replaces_what_stands_between_its_marks(tmp_path: Path) -> None:
    page = tmp_path / "scheduler.md"
    page.write_text(f"# Before\n{BEGIN}\nold\n{END}\nafter\n")
    measured = [Measured(CELL, row(1.0, 1.0)), Measured(CELL, row(9.0, 1.0))]
    write(page, measured)
    text = page.read_text()
    assert "old" not in text
    assert text.startswith(f"# Before\n{BEGIN}\n")
    assert text.endswith(f"{END}\nafter\n")
    assert "| 4 equal | trimmable | yes | 1.00 / 10.0 |" in text
    assert "misses mean, p99, wait" in text
    assert summary(measured).startswith("1 of 2 cells meet all bars; missed: mean in 1")
    assert "**mini-swe, over**" in markdown(measured)


def test_measured_lines_are_read_back() -> None:
    line = {
        "cell": {
            "trace": "swe",
            "load": "light",
            "kind": "equal",
            "nodes": 2,
            "snapshot_only": True,
            "disk": False,
        },
        "policies": row(1.0, 1.0),
    }
    (measured,) = read({"swe.light.equal": {"lines": [line]}, "x": {"failed": "why"}})
    assert measured.cell.name == "swe.light.equal-2.snapshots.ram"
