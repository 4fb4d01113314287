"""A node agent with the scripted engine and a folder of its own, for tests of this machine."""

import contextlib
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from node.hardware import python_command
from node.settings import environment_without_own

START_S = 30.0
_LISTENING = re.compile(r"listening on (http://\S+)")


@dataclass(frozen=True, slots=True)
class TrialAgent:
    """A running agent."""

    process: subprocess.Popen[str]
    url: str
    token: str

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.token}"}

    def load(self) -> None:
        """Starts an engine. Raises `httpx.HTTPError`."""
        body = {
            "model": "scripted",
            "max_tokens": 1,
            "messages": [{"role": "user", "content": "x"}],
        }
        response = httpx.post(
            f"{self.url}/v1/chat/completions", json=body, headers=self.headers, timeout=START_S
        )
        response.raise_for_status()

    def engines(self) -> list[psutil.Process]:
        """The engine processes, a spare one included."""
        return list(psutil.Process(self.process.pid).children(recursive=True))


@contextmanager
def trial_agent(script: str = "{}", open_files: int | None = None) -> Iterator[TrialAgent]:
    """Runs an agent. `open_files` is the soft limit of open files in its shell, which may be low on
    a Mac. Raises `OSError` if it does not start."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        file = home / "script.json"
        file.write_text(script)
        command = [*python_command(), "-m", "node.cli", "serve", "--home", str(home)]
        command += ["--port", "0", "--engine", "scripted", "--script", str(file)]
        if open_files is not None:
            command = ["/bin/sh", "-c", f'ulimit -Sn {open_files}; exec "$@"', "sh", *command]
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment_without_own(),
        )
        try:
            yield TrialAgent(process, _url(process), (home / "token").read_text().strip())
        finally:
            _end(process)


def _url(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if found := _LISTENING.search(line):
            return found[1]
    raise OSError("the agent did not start")


def _end(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        children = psutil.Process(process.pid).children(recursive=True)
        for each in (*children, psutil.Process(process.pid)):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def seconds_until_ended(processes: list[psutil.Process], most_s: float) -> float | None:
    """Seconds until all processes have ended; None if one still runs after `most_s`."""
    began_s = time.monotonic()
    gone, alive = psutil.wait_procs(processes, timeout=most_s)
    return None if alive or len(gone) != len(processes) else time.monotonic() - began_s


def stop_engines(processes: list[psutil.Process]) -> None:
    """Stops the processes, as a debugger or a hanging driver would: they neither run nor end."""
    for each in processes:
        each.send_signal(signal.SIGSTOP)
