"""Two node agents of one model on this machine, with one token for both: the workers of a router,
ours or a peer's."""

import secrets
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.bench import processes
from tests.bench.machine import Cores
from tests.bench.shared import CACHE

MAX_ROWS = 16
_ENVIRON = {"OPENBLAS_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
_READY_S = 120.0


@dataclass(frozen=True, slots=True)
class Agent:
    """A running `node-agent serve`, its model loaded."""

    name: str
    process: psutil.Process
    url: str
    token: str
    model: str

    def engine_cpu_s(self) -> float:
        """Processor seconds of its engine, a child process."""
        own = self.process.cpu_times()
        return processes.cpu_s(self.process) - own.user - own.system


class Busy:
    """Measures the share of the time since it was created that each agent's engine has computed."""

    def __init__(self, agents: Sequence[Agent]) -> None:
        self._agents = agents
        self._began_s = time.monotonic()
        self._before_s = [agent.engine_cpu_s() for agent in agents]

    def shares(self) -> list[float]:
        wall_s = time.monotonic() - self._began_s
        return [
            round((agent.engine_cpu_s() - before_s) / wall_s, 3)
            for agent, before_s in zip(self._agents, self._before_s, strict=True)
        ]


@contextmanager
def agents(folder: Path, count: int) -> Iterator[list[Agent]]:
    """So many agents with empty caches, each in a home of its own. Raises `BenchFailure`."""
    token = secrets.token_hex(16)
    with ExitStack() as stack:
        yield [
            stack.enter_context(_agent(folder, f"node{number}", token))
            for number in range(1, count + 1)
        ]


@contextmanager
def _agent(folder: Path, name: str, token: str) -> Iterator[Agent]:
    with tempfile.TemporaryDirectory(prefix=f"bench-{name}-") as home:
        token_file = Path(home) / "token"
        token_file.touch(0o600)
        token_file.write_text(token + "\n")
        port = processes.free_port()
        url = f"http://127.0.0.1:{port}"
        log = CACHE / "logs" / f"fleet-{name}.log"
        argv = [*processes.command("node-agent"), "serve", "--home", home]
        argv += ["--port", str(port), "--model", str(folder), "--max-rows", str(MAX_ROWS)]
        with processes.running(argv, Cores(), log, _ENVIRON) as process:
            ready = processes.answers(url + "/v1/models", token)
            processes.wait_until(ready, process, log)
            model: str = processes.fetch(url + "/v1/models", token)["data"][0]["id"]
            load_model(url, token, model)
            yield Agent(name, process, url, token, model)


def load_model(url: str, token: str, model: str) -> None:
    """By a request, which shares no prefix with any other."""
    messages = [{"role": "user", "content": "0"}]
    body = {"model": model, "messages": messages, "max_tokens": 4}
    processes.fetch(url + "/v1/chat/completions", token, body, timeout_s=_READY_S)
