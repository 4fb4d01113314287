"""Codes, tokens and keys are in no log, however much is logged."""

import json
from pathlib import Path

import pytest

from tests.acceptance.processes import (
    Router,
    Running,
    clean_environment,
    listening,
    router_process,
    run_cli,
)
from tests.terminal import Terminal

SERVE = "from node.cli import main\nmain({arguments!r})\n"
OPTIONS = ("--engine", "scripted", "--no-announce", "--no-spare-engine", "--port", "0")
LOUD = ("--log-level", "DEBUG")


def logged(file: Path) -> str:
    """The log and those before it."""
    return "".join(each.read_text() for each in file.parent.glob(f"{file.name}*"))


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("host", "before"), [("0.0.0.0", "--code "), ("127.0.0.1", "--token ")])
def test_what_an_agent_shows_in_the_terminal_is_not_in_its_log_file(
    tmp_path: Path, host: str, before: str
) -> None:
    file = tmp_path / "agent.log"
    arguments = ["serve", "--host", host, *OPTIONS, *LOUD, "--log-file", str(file)]
    terminal = Terminal(SERVE.format(arguments=arguments), clean_environment(tmp_path))
    try:
        terminal.read_to(before)
        shown = terminal.read_to("\r\n").strip()
        terminal.read_to("listening on ")
        port = terminal.read_to("\r\n").rpartition(":")[2]
        another = run_cli("node", tmp_path, "pair", "--json", MLX_FLEET_NODE_PORT=port)
        assert another.returncode == 0, another.stderr
        code = json.loads(another.stdout)["code"]
        # A load is logged.
        url = f"http://127.0.0.1:{port}"
        assert run_cli("node", tmp_path, "run", "scripted", "hi", "--url", url).returncode == 0
        terminal.type("\x03")
        assert terminal.process.wait(60) == 0
    finally:
        terminal.close()
    token = (tmp_path / "node" / "token").read_text().strip()
    assert (len(shown), len(code)) == (19 if host == "0.0.0.0" else len(token), 19)
    text = logged(file)
    assert "scripted" in text
    assert [secret for secret in (shown, code, token) if secret in text] == []


@pytest.mark.timeout(120)
def test_an_agent_whose_output_is_no_terminal_prints_no_secret(tmp_path: Path) -> None:
    running = Running(["node.cli", "serve", "--host", "0.0.0.0", *OPTIONS, *LOUD], tmp_path)
    try:
        port = running.wait_for(r"listening on https://\S+:(\d+)").group(1)
        made = run_cli("node", tmp_path, "pair", "--json", MLX_FLEET_NODE_PORT=port)
        code = json.loads(made.stdout)["code"]
        with router_process(tmp_path, "--log-requests", *LOUD) as front_process:
            url = listening(front_process)
            key = (tmp_path / "router" / "first.key").read_text().strip()
            front = Router(front_process, url, key)
            front.must("add-node", f"https://127.0.0.1:{port}", "--code", code)
            front.must("chat", "scripted", "hi")
            admin_key = (tmp_path / "router" / "admin.key").read_text().strip()
    finally:
        running.stop()
    token = (tmp_path / "node" / "token").read_text().strip()
    secrets = [code, token, key, admin_key]
    for process in (running, front_process):
        text = "\n".join(process.lines)
        assert text and [secret for secret in secrets if secret in text] == []
