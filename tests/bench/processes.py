"""The processes under measurement: started, waited for, read from /proc, stopped."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from tests.bench.machine import Cores

READY_S = 60.0
STOP_S = 10.0
PROJECT = Path(__file__).resolve().parents[2]


class BenchFailure(Exception):
    """Something under measurement did not do what it should; the text names what."""


def command(name: str) -> list[str]:
    """The argv of one of the project's two commands, from this environment and this tree."""
    package = {"router": "router", "node-agent": "node"}[name]
    return [sys.executable, "-m", package]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError):
            return False
    return True


def environment(extra: dict[str, str]) -> dict[str, str]:
    """This process's environment and `extra`, without the settings of the two commands."""
    settings = ("MLX_FLEET_ROUTER_", "MLX_FLEET_NODE_")
    kept = {key: text for key, text in os.environ.items() if not key.startswith(settings)}
    return {**kept, **extra}


@contextmanager
def running(
    argv: Sequence[str], cores: Cores, log: Path, environ: dict[str, str] | None = None
) -> Iterator[psutil.Process]:
    """A process and all its children, until the end of the block."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as out, cores.starting_a_server():
        child = subprocess.Popen(
            list(argv),
            cwd=PROJECT,
            env=environment(environ or {}),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    process = psutil.Process(child.pid)
    try:
        yield process
    finally:
        _stop(child, process)


def _stop(child: subprocess.Popen[bytes], process: psutil.Process) -> None:
    whole = tree(process)
    child.terminate()
    for left in psutil.wait_procs(whole, timeout=STOP_S)[1]:
        left.kill()
    child.wait()


def tree(process: psutil.Process) -> list[psutil.Process]:
    try:
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def cpu_s(process: psutil.Process) -> float:
    """Processor seconds of a process and its living children, user and system."""
    total = 0.0
    for each in tree(process):
        try:
            times = each.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def rss_bytes(process: psutil.Process) -> int:
    return sum(each.memory_info().rss for each in tree(process))


def wait_until(
    ready: Callable[[], bool], process: psutil.Process, log: Path, timeout_s: float = READY_S
) -> None:
    """Raises `BenchFailure` with the end of the log where the process ends or never gets ready."""
    deadline_s = time.monotonic() + timeout_s
    while not ready():
        ended = not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
        if ended or time.monotonic() > deadline_s:
            what = "ended" if ended else "is not ready"
            raise BenchFailure(f"{log.stem} {what}: {log.read_text(errors='replace')[-1500:]}")
        time.sleep(0.05)


def answers(url: str, key: str = "") -> Callable[[], bool]:
    """Returns a function that returns True if a GET of the URL returns 200."""

    def ask() -> bool:
        try:
            fetch(url, key)
        except (OSError, ValueError):
            return False
        return True

    return ask


def fetch(url: str, key: str = "", body: object = None, timeout_s: float = 10.0) -> Any:
    """JSON from a loopback URL; a POST where there is a body. Raises `OSError`."""
    headers = {"content-type": "application/json"}
    if key:
        headers["authorization"] = f"Bearer {key}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as response:
            return json.loads(response.read())
    except urllib.error.HTTPError as error:
        raise OSError(f"{url} answers {error.code}: {error.read()[:300]!r}") from error
