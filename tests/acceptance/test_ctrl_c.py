"""Ctrl-C in every command that may take long: one line, exit code 130, no process and nothing half
left. Each is interrupted where it waits for something that the test holds."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.acceptance.processes import clean_environment, fleet
from tests.acceptance.test_pulls import until
from tests.node.models.test_huggingface import PlayedHub, playing

WAIT_S = 60.0
STOPPED = "Stopped."
LOCK = "import os, sys\nopen(os.environ['GATE'], 'rb').read()\n"
"""A module whose import waits until the test lets it go on."""


class Command:
    """A running command, in a process group as a shell gives it one."""

    def __init__(self, home: Path, arguments: list[str], extra: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
            env=clean_environment(home) | extra,
        )

    def interrupt(self, *, group: bool = True, alone: bool = True, again: bool = False) -> str:
        """The last line that it prints, after Ctrl-C; `alone`, it is the only one. `again`: it goes
        into a system call just now, before which CPython does not see a signal that comes between
        its last look and the call; a person presses again."""
        pid = self.process.pid
        inside = psutil.Process(pid).children(recursive=True)
        for _ in range(20 if again else 1):
            (os.killpg if group else os.kill)(pid, signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                out, err = self.process.communicate(timeout=WAIT_S / (20 if again else 1))
                break
        else:
            raise AssertionError("it does not end")
        assert (self.process.returncode, out) == (130, ""), err
        _, alive = psutil.wait_procs(inside, timeout=WAIT_S)
        assert not alive
        lines = err.splitlines()
        assert "Traceback" not in err and (len(lines) == 1 or not alone), err
        return str(lines[-1])


@contextmanager
def command(home: Path, *arguments: str, **extra: str) -> Iterator[Command]:
    running = Command(home, list(arguments), extra)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.communicate()


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A file whose reader waits until it is written to."""
    path = tmp_path / "gate"
    os.mkfifo(path)
    return path


@contextmanager
def read(gate: Path) -> Iterator[None]:
    """From when somebody reads the file; meanwhile there is nothing in it."""
    with gate.open("wb"):
        yield


@contextmanager
def silent_server() -> Iterator[tuple[str, threading.Event]]:
    """Its address, and what is set once it has received a request. It never answers."""
    requested, open_ = threading.Event(), []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                open_.append(connection)
                if connection.recv(1):
                    requested.set()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", requested
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
        for each in open_:
            each.close()


GOES_ON = "continues without this command; `router models` shows its progress."


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nodes"], STOPPED),
        (["models"], STOPPED),
        (["usage"], STOPPED),
        (["doctor"], STOPPED),
        (["add-node", "http://mini:8801", "--token", "x"], STOPPED),
        (["load", "m"], f"The load of m {GOES_ON}"),
        (["unload", "m"], f"The unload of m {GOES_ON}"),
        (["models", "pull", "m"], f"The pull of m {GOES_ON}"),
        (["models", "rm", "m", "--node", "a", "--yes"], f"The deletion of m {GOES_ON}"),
        (["drain", "mini"], STOPPED),
        (["maintenance", "mini"], STOPPED),
        (["chat", "m", "hi"], STOPPED),
    ],
    ids=lambda each: each if isinstance(each, str) else each[0],
)
def test_a_command_that_waits_for_the_router(
    tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    with (
        silent_server() as (url, requested),
        command(tmp_path, "router", *arguments, "--router", url) as running,
    ):
        assert requested.wait(WAIT_S)
        assert running.interrupt(again=True) == f"router: {sentence}"


@pytest.mark.parametrize("verb", ["warm", "bench", "cache", "ps", "stop", "run"])
def test_a_command_that_waits_for_the_agent(tmp_path: Path, verb: str) -> None:
    file = tmp_path / "prompts.json"
    file.write_text('{"model": "m", "prompt": "hi"}')
    rest = {
        "warm": [str(file)],
        "bench": ["m"],
        "cache": ["clear", "--yes"],
        "ps": [],
        "stop": ["m"],
        "run": ["m", "hi"],
    }[verb]
    with (
        silent_server() as (url, requested),
        command(tmp_path, "node", verb, *rest, "--url", url) as running,
    ):
        assert requested.wait(WAIT_S)
        running.interrupt(again=True)


def test_a_load_that_is_no_longer_waited_for_goes_on(tmp_path: Path) -> None:
    with fleet(tmp_path, {"load_delay_s": 4.0}) as (front, (node,)):
        arguments = ("router", "load", "scripted", "--router", front.url)
        with command(front.running.home, *arguments) as running:
            until(lambda: node.get("/fleet/status")["models"][0]["state"] == "loading")
            assert running.interrupt() == f"router: The load of scripted {GOES_ON}"
        until(lambda: node.get("/fleet/status")["models"][0]["state"] == "ready")


def test_a_simulation(tmp_path: Path, gate: Path) -> None:
    with command(tmp_path, "router", "simulate", str(gate)) as running, read(gate):
        assert running.interrupt(again=True) == f"router: {STOPPED}"


def test_a_router_that_is_still_imported(tmp_path: Path, gate: Path) -> None:
    (tmp_path / "typer.py").write_text(LOCK)
    extra = {"GATE": str(gate), "PYTHONPATH": str(tmp_path)}
    with command(tmp_path, "router", "nodes", **extra) as running, read(gate):
        assert running.interrupt(again=True) == f"router: {STOPPED}"


def test_a_fleet_that_is_not_up_yet(tmp_path: Path, gate: Path) -> None:
    arguments = ("router", "up", "--port", "0", "--node-port", "0", "--engine", "scripted")
    extra = {"MLX_FLEET_NODE_SCRIPT": str(gate)}
    with command(tmp_path, *arguments, **extra) as running, read(gate):
        # What takes longer than a moment is printed as well.
        assert (
            running.interrupt(alone=False, again=True) == "router: Stopped before the fleet was up."
        )


def test_an_agent_that_does_not_serve_yet(tmp_path: Path, gate: Path) -> None:
    arguments = ("node", "serve", "--port", "0", "--engine", "scripted", "--script", str(gate))
    with command(tmp_path, *arguments) as running:
        assert running.process.stdout is not None
        while "prints the token" not in running.process.stdout.readline():
            pass
        with read(gate):
            assert running.interrupt(again=True) == f"node-agent: {STOPPED}"


@pytest.mark.parametrize("group", [True, False], ids=["terminal", "kill"])
def test_an_import_leaves_nothing(tmp_path: Path, gate: Path, group: bool) -> None:
    models = tmp_path / "node" / "models"
    with command(tmp_path, "node", "import", str(gate), "--name", "org/tiny") as running:
        until((models / "org--tiny.partial").exists)
        assert running.interrupt(group=group) == f"node-agent: {STOPPED}"
    assert list(models.iterdir()) == []


def test_a_pull_prints_how_it_is_resumed(tmp_path: Path) -> None:
    weights = tmp_path / "node" / "models" / "org--tiny" / "model.safetensors"
    with playing(PlayedHub(stalls=threading.Event())) as url:
        extra = {"HF_ENDPOINT": url, "HF_HOME": str(tmp_path / "hf")}
        # The hub is not waited for.
        extra["HF_HUB_DOWNLOAD_TIMEOUT"] = "600"
        with command(tmp_path, "node", "pull", "org/tiny", **extra) as running:
            until(lambda: weights.exists() and weights.stat().st_size)
            assert running.interrupt() == (
                "node-agent: Stopped; org/tiny is not complete. The same command resumes it, "
                "and `node-agent rm org/tiny` deletes its files."
            )
    assert weights.exists()


@pytest.mark.parametrize("rest", [[], ["--full"]], ids=["doctor", "full"])
def test_an_examination_of_the_machine(tmp_path: Path, gate: Path, rest: list[str]) -> None:
    (tmp_path / "mlx").mkdir()
    (tmp_path / "mlx" / "__init__.py").write_text(LOCK)
    extra = {"GATE": str(gate), "PYTHONPATH": str(tmp_path)}
    arguments = ("node", "doctor", *rest, *(("--report", str(tmp_path)) if rest else ()))
    with command(tmp_path, *arguments, "--json", **extra) as running, read(gate):
        # What the whole examination has found so far is printed as it is found.
        assert running.interrupt(alone=not rest, again=True) == f"node-agent: {STOPPED}"
