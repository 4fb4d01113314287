"""`node-agent run` as a process: the agent that it starts, and how both end."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.acceptance.processes import agent, clean_environment
from tests.terminal import Terminal

WAIT_S = 60.0
RUN = "from node.cli import main\nmain({arguments!r})\n"


def environment(home: Path, script: Mapping[str, object], port: int = 0) -> dict[str, str]:
    """One in which an agent has the scripted engine and any free port."""
    home.mkdir(parents=True, exist_ok=True)
    file = home / "played.json"
    file.write_text(json.dumps(script))
    own = {"ENGINE": "scripted", "SCRIPT": str(file), "PORT": str(port)}
    return clean_environment(home) | {f"MLX_FLEET_NODE_{key}": own[key] for key in own}


def run(env: dict[str, str], *arguments: str, prompt: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "node", "run", *arguments],
        input=prompt,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        env=env,
    )


def agents_on(home: Path) -> list[psutil.Process]:
    """The agents that serve this home."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "serve" in words and str(home / "node") in words:
            found.append(process)
    return found


@contextmanager
def conversation(env: dict[str, str], *arguments: str) -> Iterator[Terminal]:
    terminal = Terminal(RUN.format(arguments=["run", *arguments]), env)
    try:
        yield terminal
    finally:
        terminal.close()


@pytest.mark.timeout(120)
def test_an_agent_is_started_for_one_response_and_ended(tmp_path: Path) -> None:
    env = environment(tmp_path, {"text": "Hello from here."})
    done = run(env, "scripted", prompt="Good morning")
    assert (done.returncode, done.stdout) == (0, "Hello from here.\n"), done.stderr
    assert agents_on(tmp_path) == []
    done = run(env, "other", "hi")
    assert (done.returncode, done.stdout) == (1, "")
    assert "There is no model other on this node." in done.stderr


@pytest.mark.timeout(120)
def test_an_agent_that_runs_on_the_home_is_used_and_left_alone(tmp_path: Path) -> None:
    with agent(tmp_path, {"text": "Hello from here."}) as there:
        port = int(there.url.rpartition(":")[2])
        env = environment(tmp_path, {"text": "not this"}, port)
        done = run(env, "scripted", "hi")
        assert (done.returncode, done.stdout) == (0, "Hello from here.\n"), done.stderr
        assert there.get("/fleet/status")["models"][0]["state"] == "ready"
        # At another port it is not found, and the home is taken.
        done = run(env | {"MLX_FLEET_NODE_PORT": "1"}, "scripted", "hi")
        assert (done.returncode, done.stdout) == (1, "")
        assert "but not at port 1; name its address with --url" in done.stderr


@pytest.mark.timeout(120)
def test_an_agent_that_cannot_start_says_why(tmp_path: Path) -> None:
    env = environment(tmp_path, {})
    (tmp_path / "node").mkdir()
    (tmp_path / "node" / "tls.pem").write_text("no certificate")
    done = run(env, "scripted", "hi")
    assert (done.returncode, done.stdout) == (1, "")
    last = done.stderr.splitlines()[-1]
    assert last.startswith("node-agent: ") and "tls.pem has no certificate." in last
    assert agents_on(tmp_path) == []


@pytest.mark.timeout(120)
def test_ctrl_c_stops_a_response_and_bye_the_agent(tmp_path: Path) -> None:
    env = environment(tmp_path, {"text": "one two three four five", "stall_after_tokens": 3})
    with conversation(env, "scripted") as terminal:
        terminal.read_to("/help shows the commands")
        terminal.read_to("> ")
        assert len(agents_on(tmp_path)) == 1
        terminal.type("Good morning\n")
        terminal.read_to("one")
        terminal.type("\x03")
        terminal.read_to("Stopped.")
        terminal.read_to("> ")
        terminal.type("/bye\n")
        assert terminal.process.wait(WAIT_S) == 0
    assert agents_on(tmp_path) == []


@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_an_agent_does_not_outlive_its_conversation(tmp_path: Path, number: int) -> None:
    env = environment(tmp_path, {})
    with conversation(env, "scripted") as terminal:
        terminal.read_to("/help shows the commands")
        (started,) = agents_on(tmp_path)
        os.kill(terminal.process.pid, number)
        expected = -number if number == signal.SIGKILL else 128 + number
        assert terminal.process.wait(WAIT_S) == expected
    gone, alive = psutil.wait_procs([started], timeout=WAIT_S)
    assert (len(gone), alive) == (1, [])
