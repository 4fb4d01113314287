"""The command line, most of it against a real router."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from router.cli.main import app
from router.commands import serve
from router.commands.client import RouterAccess
from router.settings import Settings
from tests.router.commands.running import running_router


class Cli:
    def __init__(self, place: RouterAccess) -> None:
        self.place = place
        self.environ: dict[str, str | None] = {
            "MLX_FLEET_ROUTER_URL": place.url,
            "MLX_FLEET_ROUTER_HOME": str(place.home),
            "MLX_FLEET_KEY": None,
            "MLX_FLEET_NODE_TOKEN": None,
        }

    def run(self, *arguments: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(app, arguments, input=stdin, env=self.environ)

    def must(self, *arguments: str) -> str:
        done = self.run(*arguments)
        assert done.exit_code == 0, done.output
        return done.stdout

    def fails(self, *arguments: str, code: int = 1, stdin: str | None = None) -> str:
        done = self.run(*arguments, stdin=stdin)
        assert done.exit_code == code, done.output
        assert len(done.stderr.splitlines()) == 1
        assert done.stdout == ""
        return done.stderr


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    with running_router(tmp_path) as place:
        yield Cli(place)


def test_a_command_without_a_router_is_one_line(tmp_path: Path) -> None:
    cli = Cli(RouterAccess("http://127.0.0.1:9", tmp_path))
    assert "start it with `router serve`" in cli.fails("nodes")
    assert "start it with `router serve`" in cli.fails("chat", "tiny", "hi")


def test_an_empty_fleet_names_the_next_step(cli: Cli) -> None:
    assert "router add-node" in cli.must("nodes")
    assert "router nodes" in cli.must("models")
    assert "router alias set" in cli.must("alias", "list")
    assert "router chat" in cli.must("usage", "--since", "24h")
    assert json.loads(cli.must("nodes", "--json")) == []


def test_a_key_is_made_used_and_revoked(cli: Cli) -> None:
    made = cli.run("keys", "create", "ci", "--scope", "admin", "--expires-days", "30")
    key = made.stdout.strip()
    assert key.startswith("mlxf-")
    assert "expires in 30 days). It is shown this once" in made.stderr
    listed = cli.must("keys", "list")
    assert key not in listed
    assert "in 29 days" in listed or "in 30 days" in listed
    cli.environ["MLX_FLEET_KEY"] = key
    assert {row["name"] for row in json.loads(cli.must("keys", "list", "--json"))} == {
        "admin",
        "first",
        "ci",
    }
    cli.must("keys", "revoke", "ci")
    assert "MLX_FLEET_KEY" in cli.fails("nodes")
    cli.environ["MLX_FLEET_KEY"] = None
    assert "is revoked already, just now." in cli.must("keys", "revoke", "ci")


def test_a_negative_budget_is_refused_with_what_is_wrong_with_it(cli: Cli) -> None:
    assert "'-3' is neither" in cli.fails("keys", "set-budget", "first", "-3")


def test_a_key_is_listed_with_its_class_and_as_isolated(cli: Cli) -> None:
    made = cli.run("keys", "create", "ci", "--priority", "batch", "--isolate")
    assert "(inference, external; batch, isolated)" in made.stderr
    rows = {row["name"]: row for row in json.loads(cli.must("keys", "list", "--json"))}
    assert (rows["ci"]["priority"], rows["ci"]["isolated"]) == ("batch", True)
    assert (rows["first"]["priority"], rows["first"]["isolated"]) == ("default", False)
    listed = cli.must("keys", "list")
    assert "Isolated" in listed and "batch" in listed and "yes" in listed
    assert "The classes are" in cli.fails("keys", "create", "x", "--priority", "best")


def test_scopes_may_be_listed_with_spaces(cli: Cli) -> None:
    made = cli.run("keys", "create", "ci", "--scope", " inference, admin")
    assert "the key ci (admin, inference; default)" in made.stderr


@pytest.mark.parametrize("days", ["nan", "inf", "0", "-1", "4000"])
def test_days_that_are_none_are_wrong_use(cli: Cli, days: str) -> None:
    done = cli.run("keys", "create", "ci", "--expires-days", days)
    assert done.exit_code == 2
    assert "Invalid value for '--expires-days'" in done.stderr


def test_a_name_that_is_missing_is_no_other_path(cli: Cli) -> None:
    assert "no key ''" in cli.fails("keys", "revoke", "")
    assert "no node ''" in cli.fails("remove-node", "")


def test_changes_are_in_the_audit_log(cli: Cli) -> None:
    cli.must("alias", "set", "gpt", "tiny", "--force")
    assert "gpt now means" not in cli.must("alias", "rm", "gpt")
    text = cli.must("audit")
    assert "alias.set" in text and "alias.remove" in text and "admin" in text


def test_what_the_router_refuses_is_one_line(cli: Cli) -> None:
    assert "No node" in cli.fails("load", "tiny")
    assert "No node" in cli.fails("alias", "set", "gpt", "tiny")
    assert "no node 'mini'" in cli.fails("remove-node", "mini")
    assert "cannot be reached" in cli.fails("add-node", "http://127.0.0.1:9", "--token", "t")
    assert "--allow-plain-http" in cli.fails("add-node", "http://mini.example:1")
    assert "like 30s, 2m30s, 10m" in cli.fails("usage", "--since", "yesterday")
    assert "scopes" in cli.fails("keys", "create", "x", "--scope", "root")
    assert "No node" in cli.fails("chat", "tiny", "hi")


def test_a_request_that_cannot_be_explained_is_one_line(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "request.json"
    assert "cannot be read" in cli.fails("explain", str(file))
    file.write_text('{"model": "tiny", "prompt": "hi"}')
    arguments = ("explain", str(file), "--path", "/v1/completions", "--session", "s")
    assert "`router models` lists" in cli.fails(*arguments)
    text = cli.fails("explain", "-", stdin='{"prompt": "hi"}')
    assert "model" in text
    for name in ("req_nosuch", "", "a/b?c#d", "../nodes"):
        text = cli.fails("explain", "--request-id", name)
        assert f"knows nothing of a request {name!r}; it remembers the last 2,000" in text


def test_a_token_may_be_read_from_standard_input(cli: Cli) -> None:
    text = cli.fails("add-node", "http://127.0.0.1:9", "--token", "-", stdin="")
    assert "no token" in text
    text = cli.fails("add-node", "http://127.0.0.1:9", "--token", "-", stdin="secret\n")
    assert "cannot be reached" in text and "secret" not in text


def test_the_doctor_calls_the_nodes_of_a_real_router(cli: Cli) -> None:
    assert "router add-node" in cli.must("doctor")
    assert json.loads(cli.must("doctor", "--json"))["nodes"] == []


def test_a_key_for_inference_changes_nothing(cli: Cli) -> None:
    cli.environ["MLX_FLEET_KEY"] = cli.place.inference_key()
    assert "lacks the scope" in cli.fails("nodes")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--registry-url", "postgresql://db/fleet"), "SQLite"),
        (("--host", "0.0.0.0"), "--allow-plain-http"),
    ],
)
def test_a_router_that_cannot_start_is_one_line_and_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], word: str
) -> None:
    # The log of this process belongs to the tests.
    monkeypatch.setattr(serve, "logged", lambda settings: contextlib.nullcontext())
    cli = Cli(RouterAccess("", tmp_path))
    del cli.environ["MLX_FLEET_ROUTER_URL"]
    assert word in cli.fails("serve", "--port", "0", *arguments, code=2)


def test_the_queue_s_options_are_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run: list[Settings] = []
    monkeypatch.setattr(serve, "run", lambda settings, _sources: run.append(settings))
    cli = Cli(RouterAccess("", tmp_path))
    del cli.environ["MLX_FLEET_ROUTER_URL"]
    cli.must("serve", "--queue-limit", "7", "--promote-after", "2.5")
    assert run == [Settings(tmp_path, queue_limit=7, promote_after_s=2.5)]


def test_wrong_use_is_code_2(tmp_path: Path) -> None:
    cli = Cli(RouterAccess("http://127.0.0.1:9", tmp_path))
    assert cli.run("serve", "--port", "70000").exit_code == 2
    assert cli.run("serve", "--queue-limit", "0").exit_code == 2
    assert cli.run("nosuch").exit_code == 2
    assert cli.run("load").exit_code == 2


def test_the_command_prints_its_version(cli: Cli) -> None:
    assert cli.must("--version").split() == ["router", version("mlx-fleet")]


@pytest.mark.parametrize(("module", "name"), [("router", "router"), ("node", "node-agent")])
def test_a_package_runs_as_its_command(module: str, name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [name, version("mlx-fleet")]


def test_a_shell_can_complete_the_verbs() -> None:
    environ = {**os.environ, "_ROUTER_COMPLETE": "complete_bash"}
    environ |= {"COMP_WORDS": "router cor", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", "from router.cli.main import main; main()"],
        capture_output=True,
        text=True,
        env=environ,
        check=False,
    )
    assert done.stdout.split() == ["cordon"]


HEAVY = ("httpx", "aiohttp", "asyncio", "fastapi", "sqlalchemy", "uvicorn")
WHAT_IS_IMPORTED = """
import sys
from router.cli.main import main
heavy, *sys.argv = sys.argv[1:]
try:
    main()
except SystemExit as ended:
    assert not ended.code
print(*sorted(set(heavy.split(",")) & sys.modules.keys()), file=sys.stderr)
"""


@pytest.mark.parametrize("verb", ["nodes", "models", "keys list", "alias list", "usage"])
def test_a_quick_verb_imports_only_what_it_needs(verb: str, cli: Cli) -> None:
    command = [sys.executable, "-c", WHAT_IS_IMPORTED, ",".join(HEAVY), "router", *verb.split()]
    environ = {name: value for name, value in cli.environ.items() if value is not None}
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | environ, check=True
    )
    assert done.stderr.split() == []
