"""Tests what `router up` starts, prints and registers; its whole run is in tests/acceptance."""

import json
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from typer.testing import CliRunner

from router.api.admin.views import NodeModel, NodeRow
from router.cli.main import app
from router.commands import fleet_of_one, up
from router.commands.children import Child
from router.commands.client import AdminClient, CommandFailed, RouterAccess
from router.commands.fleet_of_one import Plan
from router.errors import StartError

Played = Callable[[Callable[[httpx.Request], httpx.Response]], AdminClient]


def a_plan(tmp_path: Path, **changes: Any) -> Plan:
    values = {"home": tmp_path / "r", "node_home": tmp_path / "n", "port": 0, "node_port": 0}
    return Plan(**{**values, **changes})


def node(name: str, url: str, node_id: str, *models: NodeModel) -> NodeRow:
    return NodeRow(
        id=node_id,
        name=name,
        url=url,
        kind="agent",
        created_at_s=0,
        reachable=True,
        error=None,
        status_age_s=0,
        version="1",
        engine="text",
        chip="M4",
        memory_budget_bytes=1,
        memory_leased_bytes=0,
        in_flight=0,
        max_rows=None,
        models=models,
    )


# --- what is started and printed ---


def test_children_get_their_homes_ports_and_the_end_of_input(tmp_path: Path) -> None:
    plan = a_plan(tmp_path, port=8800, engine="scripted")
    agent, router = plan.agent_argv(), plan.router_argv()
    for argv in (agent, router):
        assert argv[0] == sys.executable
        assert "--exit-on-stdin-eof" in argv
        assert argv[argv.index("--host") + 1] == "127.0.0.1"
    assert agent[agent.index("--home") + 1] == str(tmp_path / "n")
    assert agent[-2:] == ["--engine", "scripted"]
    assert router[router.index("--port") + 1] == "8800"
    assert router[-1] == "--log-requests"
    assert a_plan(tmp_path, quiet=True).router_argv()[-1] == "--no-log-requests"
    assert "--engine" not in a_plan(tmp_path).agent_argv()


def test_a_folder_named_router_where_one_stands_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert a_plan(tmp_path).router_argv()[1] == "-P"


def test_the_banner_has_a_line_that_can_be_pasted(tmp_path: Path) -> None:
    row = node("local", "http://127.0.0.1:1", "i", NodeModel(name="it's", state="on_disk"))
    text = fleet_of_one.banner("http://127.0.0.1:8800", "mlxf-1", row, a_plan(tmp_path))
    assert "http://127.0.0.1:8800/v1" in text
    assert "mlxf-1" in text
    assert "it's (on disk)" in text
    words = shlex.split(next(line for line in text.splitlines() if line.startswith("curl")))
    assert words[1] == "http://127.0.0.1:8800/v1/chat/completions"
    assert json.loads(words[-1])["model"] == "it's"


def test_a_banner_that_somebody_keeps_has_the_keys_file(tmp_path: Path) -> None:
    row = node("local", "http://127.0.0.1:1", "i", NodeModel(name="it's", state="on_disk"))
    file = tmp_path / "my home" / "first.key"
    text = fleet_of_one.banner("http://127.0.0.1:8800", file, row, a_plan(tmp_path))
    assert f"API key   in {file}" in text
    file.parent.mkdir()
    file.write_text("mlxf-1\n")
    line = next(line for line in text.splitlines() if line.startswith("curl"))
    printing = line.replace("curl", r"printf '%s\n'", 1)
    printed = subprocess.run(["sh", "-c", printing], capture_output=True)
    assert b"\nAuthorization: Bearer mlxf-1\n" in printed.stdout


def test_a_banner_without_models_names_their_folder(tmp_path: Path) -> None:
    row = node("local", "http://127.0.0.1:1", "i")
    assert str(tmp_path / "n" / "models") in fleet_of_one.banner("u", "k", row, a_plan(tmp_path))


def test_the_requested_model_wins_then_one_that_is_ready() -> None:
    a, b = NodeModel(name="a", state="on_disk"), NodeModel(name="b", state="ready")
    assert fleet_of_one.pick_model(node("l", "u", "i", a, b), "c") == "c"
    assert fleet_of_one.pick_model(node("l", "u", "i", a, b), None) == "b"
    assert fleet_of_one.pick_model(node("l", "u", "i", a), None) == "a"
    assert fleet_of_one.pick_model(node("l", "u", "i"), None) is None


def test_a_failed_child_is_reported_with_its_own_last_lines() -> None:
    assert fleet_of_one.failure("router", []) == "router ended without a message."
    assert fleet_of_one.failure("router", ["Port taken.", ""]) == "Port taken."
    assert fleet_of_one.failure("router", ["router: Port taken."]) == "Port taken."
    agent = fleet_of_one.failure("node-agent", ["node-agent: Port taken."])
    assert agent == "node-agent: Port taken."
    traceback = ["Traceback (most recent call last):", '  File "x.py", line 1', "OSError: no"]
    assert fleet_of_one.failure("router", traceback) == "OSError: no"
    missing = ["ModuleNotFoundError: No module named 'mlx_lm'"]
    assert "pip install '.[node]' in your clone" in fleet_of_one.failure("node-agent", missing)
    assert fleet_of_one.failure("router", ["one", "two"]).splitlines()[1:] == ["one", "two"]


def test_a_port_in_use_is_reported_with_its_option(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartError, match="--node-port"):
            up.check_ports(a_plan(tmp_path, node_port=port))
        with pytest.raises(StartError, match="another with --port"):
            up.check_ports(a_plan(tmp_path, port=port))
    up.check_ports(a_plan(tmp_path))


def test_an_engine_that_is_not_installed_is_reported_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(StartError, match="pip install"):
        up.check_installed(a_plan(tmp_path))
    up.check_installed(a_plan(tmp_path, engine="scripted"))


def test_a_signal_that_arrives_with_the_banner_is_an_end_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def interrupted(text: str) -> None:
        seen.append(text)
        raise KeyboardInterrupt

    row = node("local", "http://127.0.0.1:1", "i", NodeModel(name="m", state="on_disk"))
    started = (RouterAccess("http://127.0.0.1:8800", tmp_path), row)
    monkeypatch.setattr(up.LocalFleet, "start", lambda family: started)
    monkeypatch.setattr(up, "put", interrupted)
    up.run(a_plan(tmp_path, engine="scripted"))
    assert "curl" in seen[0]


# --- the node is registered ---


class PlayedRouter:
    """The admin API's nodes, as `register` uses them."""

    def __init__(self, *rows: NodeRow) -> None:
        self.rows = {row.name: row for row in rows}
        self.posted: list[dict[str, Any]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.method == "DELETE":
            return self._answer(self.rows.pop(request.url.path.rpartition("/")[2]))
        if request.method == "POST":
            body = json.loads(request.content)
            self.posted.append(body)
            row = node(body["name"] or "127.0.0.1", body["url"], "me")
            self.rows[row.name] = row
            return self._answer(row)
        return httpx.Response(200, json=[row.model_dump() for row in self.rows.values()])

    def _answer(self, row: NodeRow) -> httpx.Response:
        return httpx.Response(200, json=row.model_dump())


HERE = "http://127.0.0.1:8801"


@pytest.fixture
def registered(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> Callable[[PlayedRouter], NodeRow]:
    monkeypatch.setattr(up, "agent_id", lambda _url, _token: "me")
    monkeypatch.setattr(up, "_REACH_S", 0.0)
    return lambda router: up.register(played(router), HERE, "t")


def test_the_first_run_adds_the_node(registered: Callable[[PlayedRouter], NodeRow]) -> None:
    router = PlayedRouter(node("other", "http://mini:8801", "other"))
    assert registered(router).name == "local"
    assert router.posted == [{"url": HERE, "token": "t", "name": "local"}]


def test_the_next_run_finds_it(
    registered: Callable[[PlayedRouter], NodeRow], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(up, "_REACH_S", 5.0)
    router = PlayedRouter(node("mine", HERE, "me"))
    assert registered(router).name == "mine"
    assert router.posted == []


@pytest.mark.parametrize("url", ["http://127.0.0.1:9999", HERE])
def test_a_new_port_or_token_replaces_it_under_its_name(
    registered: Callable[[PlayedRouter], NodeRow], url: str
) -> None:
    router = PlayedRouter(node("mine", url, "me"))
    assert registered(router).url == HERE
    assert list(router.rows) == ["mine"]
    assert len(router.posted) == 1


def test_another_node_at_the_address_is_gone_and_a_taken_name_stays_taken(
    registered: Callable[[PlayedRouter], NodeRow],
) -> None:
    router = PlayedRouter(node("old", HERE, "x"), node("local", "http://mini:8801", "y"))
    registered(router)
    assert sorted(router.rows) == ["127.0.0.1", "local"]


# --- children ---


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def a_child(program: str, lines: list[str] | None = None, *, loud: bool = True) -> Child:
    seen: list[str] = [] if lines is None else lines
    return Child("child", [sys.executable, "-c", program], seen.append, loud=loud)


LISTENS = "print('child listening on http://127.0.0.1:1', flush=True)\n"
WAITS_FOR_EOF = LISTENS + "import sys\nprint('one', flush=True)\nsys.stdin.read()\nprint('two')"


def test_a_child_is_ready_when_it_listens_and_ends_with_its_input() -> None:
    lines: list[str] = []
    child = a_child("import signal; signal.signal(15, signal.SIG_IGN)\n" + WAITS_FOR_EOF, lines)
    assert child.wait_until_listening(20) == "http://127.0.0.1:1"
    child.stop(time.monotonic() + 20)
    assert child.ended.is_set()
    assert lines == ["one", "two"]


def test_a_child_that_does_not_start_is_reported_with_its_output() -> None:
    child = a_child("import sys; sys.exit('The port is taken.')")
    with pytest.raises(CommandFailed, match="child: The port is taken"):
        child.wait_until_listening(20)
    child.stop(time.monotonic() + 20)


def test_a_child_that_will_not_end_is_made_to_with_all_it_started() -> None:
    program = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(15, signal.SIG_IGN)\n"
        "inner = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"{LISTENS}print(inner.pid, flush=True)\ntime.sleep(600)"
    )
    inner: list[str] = []
    child = a_child(program, inner)
    child.wait_until_listening(20)
    child.stop(time.monotonic() + 0.5)
    assert child.ended.is_set()
    assert not is_running(int(inner[0]))


def test_a_quiet_child_s_output_is_printed_when_it_fails(capfd: pytest.CaptureFixture[str]) -> None:
    child = a_child(LISTENS + "import sys; sys.exit('It broke.')", loud=False)
    child.wait_until_listening(20)
    assert child.ended.wait(20)
    assert "It broke." in child.failed().message
    child.stop(time.monotonic() + 20)
    assert capfd.readouterr().err == ""


def test_the_agents_folder_and_port_come_from_its_own_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plans = list[Plan]()
    monkeypatch.setattr(up, "run", lambda plan, *_: plans.append(plan))
    assert CliRunner().invoke(app, ["up"]).exit_code == 0
    monkeypatch.setenv("MLX_FLEET_NODE_HOME", "~/x")
    monkeypatch.setenv("MLX_FLEET_NODE_PORT", "7")
    assert CliRunner().invoke(app, ["up"]).exit_code == 0
    assert [plan.node_port for plan in plans] == [8801, 7]
    assert plans[1].token_file == Path.home() / "x" / "token"
    refused = CliRunner().invoke(app, ["up", "--node-port", "65536"])
    assert (refused.exit_code, len(plans)) == (2, 2)
    assert "--node-port must be a port number from 0 to 65535" in refused.output
