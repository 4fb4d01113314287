"""`router simulate` on small traces: no router runs."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from router.cli import app
from router.simulator.report import PolicyFigures
from router.simulator.table import POLICIES
from tests.router.simulator.building import line

FIELDS = list(PolicyFigures.__struct_fields__)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    lines = [
        line(
            turn * 4000,
            100 * (turn + 4),
            20,
            [0, *range(9 * session, 9 * session + turn + 3)],
            session,
        )
        for session in range(1, 4)
        for turn in range(4)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def simulate(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["simulate", *map(str, arguments)])


def must(*arguments: str | Path) -> str:
    done = simulate(*arguments)
    assert done.exit_code == 0, done.output
    return done.stdout


def fails(*arguments: str | Path) -> str:
    done = simulate(*arguments)
    assert done.exit_code == 1, done.output
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""
    return done.stderr


def test_json_has_every_policy_with_every_figure(trace: Path) -> None:
    answer = json.loads(must(trace, "--nodes", "2", "--json"))
    assert list(answer) == ["policies"]
    assert [row["policy"] for row in answer["policies"]] == list(POLICIES)
    assert POLICIES.keys() >= {"ours", "round_robin", "oracle"}
    assert all(list(row) == FIELDS for row in answer["policies"])


def test_a_table_says_what_the_fleet_is_and_marks_the_best(trace: Path) -> None:
    text = must(trace)
    assert "Fleet: 4 × 600 tokens/s prefill, 40 decode, cache of 60,000 tokens" in text
    assert "12 requests in 3 sessions" in text
    assert "text_tree" in text
    assert " *" in text


def test_one_policy_can_be_asked_for(trace: Path) -> None:
    answer = json.loads(must(trace, "--policy", "round_robin", "--json"))
    assert [row["policy"] for row in answer["policies"]] == ["round_robin"]


def test_a_fleet_file_and_a_packed_trace_are_read(trace: Path, tmp_path: Path) -> None:
    packed = tmp_path / "trace.jsonl.gz"
    packed.write_bytes(gzip.compress(trace.read_bytes()))
    fleet = tmp_path / "fleet.toml"
    fleet.write_text("[[node]]\ncount = 2\nprefill_tokens_per_s = 50\ndisk_tokens = 90000\n")
    text = must(packed, "--fleet", fleet, "--policy", "ours")
    assert "2 × 50 tokens/s prefill" in text
    assert "90,000 on disk" in text


def test_every_option_changes_what_is_played(trace: Path) -> None:
    plain = ("--policy", "least_in_flight", "--json", "--nodes", "2")
    texts = {
        must(trace, *plain, *more)
        for more in ((), ("--clones", "3"), ("--gap-s", "0.5"), ("--seed", "9"))
    }
    assert len(texts) == 4


def test_errors_are_one_sentence(trace: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.jsonl"
    broken.write_text(trace.read_text() + '{"timestamp": 1}\n')
    fleet = tmp_path / "fleet.toml"
    fleet.write_text("[[node]]\nprefil = 1\n")
    assert "Line 13: Object missing required field `input_length`" in fails(broken)
    assert "cannot be read" in fails(tmp_path / "none.jsonl")
    assert "--policy is ours" in fails(trace, "--policy", "best")
    assert "`prefil`" in fails(trace, "--fleet", fleet)
    assert "leave --nodes out" in fails(trace, "--fleet", fleet, "--nodes", "2")
    assert "13 blocks" not in fails(trace, "--block-tokens", "64")
    packed = tmp_path / "broken.jsonl.gz"
    packed.write_bytes(gzip.compress(trace.read_bytes())[:-9])
    assert "not whole" in fails(packed)


def test_a_gap_without_sessions_or_clones_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "open.jsonl"
    path.write_text(line(0, 64, 1, [1]) + "\n" + line(9, 64, 1, [2]) + "\n")
    assert "--gap-s needs" in fails(path, "--gap-s", "3")
    assert "in 2 sessions" not in must(path, "--gap-s", "3", "--clones", "2")
