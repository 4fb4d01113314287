"""`router simulate` on small traces: no router runs."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from router.cli.main import app
from router.commands.simulate import print_rows
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


def test_a_table_describes_the_fleet_and_marks_the_best(trace: Path) -> None:
    text = must(trace)
    assert "Fleet: 4 × 600 tokens/s prefill, 40 decode, cache of 60,000 tokens" in text
    assert "12 requests in 3 sessions" in text
    assert "text_tree" in text
    assert " *" in text


def test_one_policy_can_be_selected(trace: Path) -> None:
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


def test_what_all_policies_do_as_well_is_marked_for_none(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    path.write_text(line(0, 64, 1, [1]) + "\n")
    text = must(path, "--nodes", "1")
    assert "Load: 1 request, 64 different prompt tokens" in text
    assert "*" not in text
    assert "Times in seconds; oracle knows the future." in text


def row(policy: str, mean_s: float, share: float) -> PolicyFigures:
    return PolicyFigures(policy, mean_s, 1.0, 1.0, 1.0, 1, share, 1.0)


def test_the_best_of_a_column_are_all_that_look_so_and_never_the_limit(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_rows([row("a", 0.101, 0.5), row("b", 0.099, 0.9), row("c", 2, 0.1), row("oracle", 0, 1)])
    lines = capsys.readouterr().out.splitlines()
    marked = {line.split()[0]: line.count("*") for line in lines if line.strip()}
    assert [marked[name] for name in ("a", "b", "c", "oracle")] == [1, 2, 0, 0]


def test_a_trace_of_several_models_is_described_as_one(trace: Path, tmp_path: Path) -> None:
    path = tmp_path / "two.jsonl"
    lines = [json.loads(each) for each in trace.read_text().splitlines()]
    path.write_text(
        "\n".join(json.dumps(each | {"model": f"m{each['session'] % 2}"}) for each in lines)
    )
    text = must(path, "--nodes", "2", "--policy", "ours")
    assert "60,000 tokens, 1 model in memory at once, 10 s to load one" in text
    assert "12 requests in 3 sessions for 2 models" in text
    fleet = tmp_path / "fleet.toml"
    fleet.write_text("[[node]]\ncount = 2\ndisk_models = 1\nlan_bytes_per_s = 1e9\n")
    text = must(path, "--fleet", fleet, "--policy", "ours")
    assert "10 s to load one, 1 model on disk, 4 s to copy one" in text
    fleet.write_text("[[node]]\ndisk_models = 1\n")
    assert "no node has the 1 last of the trace's 2 models" in fails(path, "--fleet", fleet)


def test_the_help_names_every_policy() -> None:
    text = must("--help")
    assert [name for name in POLICIES if name not in text] == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("--gap-s", "inf"),
        ("--gap-s", "nan"),
        ("--gap-s", "-1"),
        ("--nodes", "100000"),
        ("--nodes", "0"),
        ("--clones", "100000"),
    ],
)
def test_what_would_not_end_is_wrong_use(trace: Path, arguments: tuple[str, ...]) -> None:
    done = simulate(trace, *arguments)
    assert done.exit_code == 2
    assert f"Invalid value for '{arguments[0]}'" in done.stderr


def test_too_many_requests_are_refused_before_they_are_played(trace: Path, tmp_path: Path) -> None:
    long = tmp_path / "long.jsonl"
    long.write_text("".join(line(n, 64, 1, [1]) + "\n" for n in range(101)))
    assert "That is 101,000 requests, and at most 100,000" in fails(long, "--clones", "1000")


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
    assert "incomplete" in fails(packed)


def test_a_gap_without_sessions_or_clones_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "open.jsonl"
    path.write_text(line(0, 64, 1, [1]) + "\n" + line(9, 64, 1, [2]) + "\n")
    assert "--gap-s needs" in fails(path, "--gap-s", "3")
    assert "in 2 sessions" not in must(path, "--gap-s", "3", "--clones", "2")
