"""`router keys`, `teams`, `usage` and `audit` against a real router."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from router.settings import Settings
from tests.router.cli.test_main import Cli
from tests.router.commands.running import running_router


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    with running_router(tmp_path) as place:
        yield Cli(place)


def key(cli: Cli, name: str) -> dict[str, Any]:
    row: dict[str, Any] = json.loads(cli.must("keys", "show", name, "--json"))
    return row


def test_a_team_and_its_keys_have_limits(cli: Cli) -> None:
    assert "router teams create" in cli.must("teams", "list")
    made = cli.must(
        "teams", "create", "lab", "--tokens-per-day", "2M", "--concurrent-requests", "4"
    )
    assert "the team lab (2,000,000 tokens/day, 4 at once)" in made
    options = ("--team", "lab", "--model", "qwen*", "--model", "fast", "--tokens-per-minute", "50k")
    done = cli.run("keys", "create", "ann", *options)
    assert done.exit_code == 0, done.output
    assert "team lab; models qwen*, fast; 50,000 tokens/min)" in done.stderr
    listed = cli.must("teams", "list")
    assert "ann" in listed and "0 of 2,000,000" in listed and "0 of 4" in listed
    assert key(cli, "ann")["use"]["tokens_left"] == 50_000
    shown = cli.must("keys", "show", "ann")
    assert "50,000 tokens/min" in shown and "Left now" in shown and "qwen*, fast" in shown
    assert "50,000 tokens/min" in cli.must("keys", "list", "--wide")
    assert "still has the key ann" in cli.fails("teams", "delete", "lab")


def test_a_key_is_updated(cli: Cli) -> None:
    cli.must("teams", "create", "lab")
    cli.must("keys", "create", "ci", "--requests-per-minute", "5", "--model", "a")
    said = cli.must("keys", "update", "ci", "--team", "lab", "--tokens-per-day", "1,500")
    assert said.startswith("Changed the key ci: inference, external; default; team lab; models a;")
    assert "5 requests/min, 1,500 tokens/day" in said
    cli.must(*("keys", "update", "ci", "--team", "none", "--model", "all"))
    cli.must(*("keys", "update", "ci", "--requests-per-minute", "none", "--expires-days", "3"))
    row = key(cli, "ci")
    assert (row["team"], row["models"], row["limits"]["requests_per_minute"]) == (None, None, None)
    assert row["limits"]["tokens_per_day"] == 1500 and row["expires_at_s"] is not None
    cli.must("keys", "update", "ci", "--expires-days", "never", "--scope", "metrics")
    assert (key(cli, "ci")["expires_at_s"], key(cli, "ci")["scopes"]) == (None, ["metrics"])
    assert "Nothing to change" in cli.fails("keys", "update", "ci")
    assert "Nothing to change" in cli.fails("teams", "update", "lab")
    assert "30 requests/min" in cli.must("teams", "update", "lab", "--requests-per-minute", "30")


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "many", "9e9", "10M0", "2000000M"])
def test_a_limit_that_is_no_number_is_named(cli: Cli, text: str) -> None:
    said = cli.fails("teams", "create", "x", f"--tokens-per-day={text}")
    assert (
        f"--tokens-per-day is a whole number from 1, such as 60, 50k or 2M, or none; {text!r}"
        in (said)
    )


@pytest.mark.parametrize("text", ["0", "nan", "soon", "4000"])
def test_days_that_are_no_days_are_named(cli: Cli, text: str) -> None:
    assert "--expires-days is a number of days" in cli.fails(
        "keys", "update", "first", "--expires-days", text
    )


def test_a_rotated_key_is_printed_once_and_its_file_is_replaced(cli: Cli) -> None:
    file = Settings(home=cli.place.home).admin_key_file
    old = file.read_text().strip()
    done = cli.run("keys", "rotate", "admin", "--grace", "1h")
    assert done.exit_code == 0, done.output
    new = done.stdout.strip()
    assert new.startswith("mlxf-") and file.read_text().strip() == new != old
    assert file.stat().st_mode & 0o777 == 0o600 and str(file) in done.stderr
    assert "still works for 1 h" in done.stderr
    assert "the old secret" in cli.must("keys", "show", "admin")
    for key_ in (old, new):
        cli.environ["MLX_FLEET_KEY"] = key_
        cli.must("keys", "list")
    cli.environ["MLX_FLEET_KEY"] = None
    assert "has ended" in cli.run("keys", "rotate", "admin").stderr
    cli.environ["MLX_FLEET_KEY"] = new
    assert "It refused the key" in cli.fails("keys", "list")


def test_usage_and_audit_are_read_by_scripts(cli: Cli) -> None:
    assert cli.must("usage", "--by", "team,day", "--csv").splitlines() == [
        "team,day,requests,prompt_tokens,cached_tokens,completion_tokens,reasoning_tokens,cost"
    ]
    assert json.loads(cli.must("usage", "--by", "node", "--json")) == []
    assert "--csv and --json" in cli.run("usage", "--csv", "--json").output
    assert "not 'user'" in cli.fails("usage", "--by", "user")
    cli.must("keys", "create", "ci")
    entries = json.loads(cli.must("audit", "--since", "1h", "--json"))
    assert [entry["verb"] for entry in entries] == ["key.create"] * 3
    assert [entry["actor"] for entry in entries] == ["admin", "router", "router"]
    assert (entries[0]["client"], entries[0]["outcome"]) == ("127.0.0.1", "done")
    assert "local" in cli.must("audit")
    cli.fails("keys", "create", "ci")
    assert json.loads(cli.must("audit", "--limit", "1", "--json"))[0]["outcome"] == "conflict"


def test_a_key_with_letters_that_no_key_has_is_named(cli: Cli) -> None:
    cli.environ["MLX_FLEET_KEY"] = "ключ"
    assert "no key of a router has" in cli.fails("nodes")
