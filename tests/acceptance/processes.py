"""Real `router` and `node-agent` processes on loopback, started and ended by a test."""

import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from node.protocol.messages import PROTOCOL_VERSION
from tests.fakes import NO_TLS

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0


def clean_environment(home: Path) -> dict[str, str]:
    """This process's environment without mlx-fleet's own variables."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("MLX_FLEET_")}
    return {**kept, "MLX_FLEET_HOME": str(home), "NO_COLOR": "1", "COLUMNS": "200"}


class Running:
    """A process whose output lines can be waited for."""

    def __init__(self, arguments: list[str], home: Path) -> None:
        self.home = home
        self.lines: list[str] = []
        self._fresh: queue.Queue[str | None] = queue.Queue()
        self.process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=clean_environment(home),
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            self._fresh.put(self.lines[-1])
        self._fresh.put(None)

    def wait_for(self, pattern: str, timeout_s: float = START_TIMEOUT_S) -> re.Match[str]:
        """The first new line that matches. Fails with the whole output if the process ends."""
        while True:
            line = self._fresh.get(timeout=timeout_s)
            if line is None:
                raise AssertionError(f"ended without {pattern!r}:\n" + "\n".join(self.lines))
            if found := re.search(pattern, line):
                return found

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(STOP_TIMEOUT_S)

    def stop(self) -> int:
        """Ends it as Ctrl-C would; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        return self.wait()

    def wait(self) -> int:
        try:
            return self.process.wait(STOP_TIMEOUT_S)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            self._reader.join(STOP_TIMEOUT_S)
            assert self.process.stdin is not None and self.process.stdout is not None
            self.process.stdin.close()
            self.process.stdout.close()


@dataclass(frozen=True)
class Agent:
    running: Running
    url: str
    token: str

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.token}", "x-fleet-protocol": str(PROTOCOL_VERSION)}

    def get(self, path: str) -> Any:
        answer = httpx.get(self.url + path, headers=self.headers, timeout=10, verify=NO_TLS)
        answer.raise_for_status()
        return answer.json()

    def post(self, path: str) -> Any:
        answer = httpx.post(self.url + path, headers=self.headers, timeout=10, verify=NO_TLS)
        answer.raise_for_status()
        return answer.json()

    def put(self, path: str, body: object) -> None:
        answer = httpx.put(
            self.url + path, headers=self.headers, json=body, timeout=10, verify=NO_TLS
        )
        answer.raise_for_status()


@dataclass(frozen=True)
class Router:
    running: Running
    url: str
    key: str

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"}

    @property
    def registry(self) -> Path:
        return self.running.home / "router" / "registry.db"

    def cli(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run_cli("router", self.running.home, *arguments, "--router", self.url)

    def must(self, *arguments: str) -> str:
        """The output of a command that has to succeed."""
        done = self.cli(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def run_cli(
    module: str, home: Path, *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
        env=clean_environment(home) | variables,
    )


def admin(front: Router) -> dict[str, str]:
    """The headers of a request of an admin."""
    key = (front.running.home / "router" / "admin.key").read_text().strip()
    return {"authorization": f"Bearer {key}"}


def register(front: Router, name: str, each: Agent) -> None:
    """Adds a node as `router add-node` does, without a process for it."""
    add_node(front, {"url": each.url, "name": name, "token": each.token})


def add_node(front: Router, body: Mapping[str, str]) -> None:
    url = front.url + "/admin/nodes"
    response = httpx.post(
        url, headers=admin(front), json=dict(body), timeout=START_TIMEOUT_S, verify=NO_TLS
    )
    assert response.is_success, response.text


@contextmanager
def agent_process(home: Path, script: dict[str, object] | None, *extra: str) -> Iterator[Running]:
    arguments = ["node.cli", "serve", "--port", "0", *extra]
    if "--engine" not in extra:
        arguments += ["--engine", "scripted"]
    if script is not None:
        home.mkdir(parents=True, exist_ok=True)
        file = home / "script.json"
        file.write_text(json.dumps(script))
        arguments += ["--script", str(file)]
    running = Running(arguments, home)
    try:
        yield running
    finally:
        running.stop()


@contextmanager
def router_process(home: Path, *extra: str) -> Iterator[Running]:
    running = Running(["router", "serve", "--port", "0", *extra], home)
    try:
        yield running
    finally:
        running.stop()


def listening(running: Running) -> str:
    """The URL of one that has just been started."""
    return running.wait_for(r"listening on (http://\S+)").group(1)


def agent_in(running: Running) -> Agent:
    url = listening(running)
    return Agent(running, url, (running.home / "node" / "token").read_text().strip())


def router_in(running: Running) -> Router:
    url = listening(running)
    return Router(running, url, (running.home / "router" / "first.key").read_text().strip())


@contextmanager
def agent(home: Path, script: dict[str, object] | None = None, *extra: str) -> Iterator[Agent]:
    """A node agent with the scripted engine on an ephemeral port."""
    with agent_process(home, script, *extra) as running:
        yield agent_in(running)


@contextmanager
def router(home: Path, *extra: str) -> Iterator[Router]:
    """A router on an ephemeral port, with its first key."""
    with router_process(home, *extra) as running:
        yield router_in(running)


@contextmanager
def named_fleet(
    folder: Path, scripts: Mapping[str, dict[str, object]]
) -> Iterator[tuple[Router, dict[str, Agent]]]:
    """A router with one scripted agent for each script. They start at the same time."""
    with router_process(folder / "router") as front_process, ExitStack() as stack:
        started = {
            name: stack.enter_context(agent_process(folder / name, script))
            for name, script in scripts.items()
        }
        front = router_in(front_process)
        agents = {name: agent_in(each) for name, each in started.items()}
        for name, each in agents.items():
            register(front, name, each)
        yield front, agents


@contextmanager
def fleet(tmp_path: Path, *scripts: dict[str, object]) -> Iterator[tuple[Router, list[Agent]]]:
    """The same; the agents are named node1, node2, …"""
    named = {f"node{number}": script for number, script in enumerate(scripts, 1)}
    with named_fleet(tmp_path, named) as (front, agents):
        yield front, list(agents.values())
