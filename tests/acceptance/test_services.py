"""Both programs as services of a user's systemd, with real processes."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.acceptance import user_systemd
from tests.acceptance.processes import clean_environment

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="macOS has launchd instead")
TIMEOUT_S = 90.0


class Shell:
    """A user's shell with a home and a systemd of their own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.commands = user_systemd.put_into(home / "commands")
        environment = clean_environment(home)
        del environment["MLX_FLEET_HOME"]
        path = f"{self.commands}{os.pathsep}{os.environ['PATH']}"
        self._environment = {**environment, "HOME": str(home), "PATH": path, "COLUMNS": "80"}

    def run(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = Path(sys.executable).with_name(name)
        return subprocess.run(
            [command, *arguments],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path)
    yield made
    for name in ("router", "node-agent"):
        made.run(name, "service", "uninstall")


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def health(port: int) -> int:
    """The status of `/health`; a server that starts is waited for."""
    with httpx.Client(transport=httpx.HTTPTransport(retries=6)) as client:
        return client.get(f"http://127.0.0.1:{port}/health", timeout=20).status_code


def test_a_router_is_installed_changed_and_removed(shell: Shell) -> None:
    ports = free_port(), free_port()
    options = "service", "install", "--no-discovery", "--port"
    first = shell.run("router", *options, str(ports[0]))
    assert (first.returncode, "Changed" in first.stdout) == (0, False), first.stderr
    assert "mlx-fleet.router, a systemd user unit, starts when" in first.stdout
    assert health(ports[0]) == 200
    status = json.loads(shell.run("router", "service", "status", "--json").stdout)
    home = shell.home / ".mlx-fleet" / "router"
    assert status["running"] and status["home"] == str(home)
    assert status["log_file"] == str(home / "logs" / "router.log")

    second = shell.run("router", *options, str(ports[1]), "--json")
    again = json.loads(second.stdout)
    assert again["changes"] == [f'- "--port" "{ports[0]}"', f'+ "--port" "{ports[1]}"']
    assert again["pid"] != status["pid"] and health(ports[1]) == 200
    assert "Stopping" not in second.stdout and "Starting mlx-fleet.router …" in second.stderr

    removed = shell.run("router", "service", "uninstall")
    assert removed.returncode == 0 and f"Left as it is: {home}" in removed.stdout
    assert (home / "registry.db").exists() and not Path(status["file"]).exists()
    with pytest.raises(ProcessLookupError):
        os.kill(again["pid"], signal.SIG_DFL)
    assert shell.run("router", "service", "status").returncode == 1
    assert "nothing is removed" in shell.run("router", "service", "uninstall").stdout


def test_an_agent_that_cannot_start_is_told_with_the_end_of_its_log(shell: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        options = "--engine", "scripted", "--port", port
        failed = shell.run("node-agent", "service", "install", *options)
    assert failed.returncode == 1
    assert "not running" in failed.stdout and "code 2" in failed.stdout
    assert (
        "node-agent: " in failed.stderr and f"Port {port} of 127.0.0.1 is in use" in failed.stderr
    )
    shown = json.loads(shell.run("node-agent", "service", "status", "--json").stdout)
    assert (shown["running"], shown["last_exit"]) == (False, 2)
    mended = shell.run("node-agent", "service", "install", *options)
    assert mended.returncode == 0 and "running (pid" in mended.stdout, mended.stderr
    assert "node-agent pair" in mended.stdout


def test_the_file_is_shown_and_nothing_is_changed(shell: Shell) -> None:
    shown = shell.run("node-agent", "service", "install", "--print", "--engine", "scripted")
    assert '\nExecStart="' in shown.stdout and '"--engine" "scripted"' in shown.stdout
    assert shown.stderr.endswith("/.config/systemd/user/mlx-fleet.node-agent.service\n")
    assert [each.name for each in shell.home.iterdir()] == ["commands"]
