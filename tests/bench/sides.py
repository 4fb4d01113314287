"""The sides of a comparison: two step loops in processes of their own, and servers."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.bench import processes
from tests.bench.machine import Cores, load_average
from tests.bench.processes import BenchFailure
from tests.bench.shared import CACHE, SharedTools

Chat = list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one side."""

    tokens: int
    prompt_tokens: int
    wall_s: float
    cpu_s: float

    @property
    def rate(self) -> float:
        return self.tokens / self.wall_s


class StepLoop:
    """A child process that runs `tests.bench.loop`."""

    def __init__(self, child: "subprocess.Popen[str]") -> None:
        self._child = child

    def run(self, chats: list[Chat], max_tokens: int) -> Run:
        return Run(**self.ask({"chats": chats, "max_tokens": max_tokens}))

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.write(json.dumps(question) + "\n")
        self._child.stdin.flush()
        text = self._child.stdout.readline()
        if not text:
            raise BenchFailure("A step loop has ended; its log in .cache/bench/logs has the cause.")
        answer: dict[str, Any] = json.loads(text)
        return answer


@contextmanager
def step_loop(kind: str, cores: Cores, folder: Path, environ: dict[str, str]) -> Iterator[StepLoop]:
    """`kind` is `mlx-lm` or `own`."""
    log = CACHE / "logs" / f"loop-{kind}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as errors, cores.starting_a_server():
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.loop", kind, str(folder)],
            cwd=processes.PROJECT,
            env=processes.environment(environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        yield StepLoop(child)
    finally:
        child.communicate(timeout=processes.READY_S)


@dataclass(frozen=True, slots=True)
class Server:
    """A server that speaks OpenAI's chat dialect, ours or a peer's."""

    process: psutil.Process
    url: str
    model: str
    """The name that it wants in requests."""
    token: str
    """Empty: it wants none."""
    loadgen: Any

    def run(self, chats: list[Chat], max_tokens: int) -> Run:
        """All chats at once."""
        count = str(len(chats))
        argv = ["-c", count, "-n", count, "--max-tokens", str(max_tokens), "--light"]
        before_s = processes.cpu_s(self.process)
        summary, _ = self.load([*argv, "--allow-empty", *prompt_file(chats)])
        spent_s = processes.cpu_s(self.process) - before_s
        if summary["errors"] or summary["usage_reported"] != len(chats):
            raise BenchFailure(f"Streams failed: {summary.get('error_samples')}")
        return Run(summary["output_tokens"], summary["prompt_tokens"], summary["wall_s"], spent_s)

    def load(self, argv: list[str]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Runs the load generator with `argv`; its summary, and one record a request."""
        target = ["--url", self.url, "--model", self.model]
        if self.token:
            target += ["--api-key", self.token]
        summary: dict[str, Any] = self.loadgen.run([*target, "--timeout", "600", *argv])
        return summary, summary.pop("_raw")

    def measured(self, argv: list[str]) -> dict[str, Any]:
        """The summary of a load, with what it cost. Where requests failed, only why."""
        before_s = processes.cpu_s(self.process)
        summary, _ = self.load(argv)
        if summary["errors"]:
            return {"failed": f"{summary['errors']} failed: {summary['error_samples'][0]}"}
        spent_s = processes.cpu_s(self.process) - before_s
        summary["server_cpu_s"] = round(spent_s, 2)
        summary["tok_per_cpu_s"] = round(summary["output_tokens"] / max(spent_s, 1e-6), 2)
        summary["rss_mb"] = round(processes.rss_bytes(self.process) / 2**20)
        summary["load1"] = load_average()
        return summary

    def ask(self, chat: Chat, max_tokens: int) -> dict[str, Any]:
        """One chat without a stream; the answer's `usage`."""
        body = {"model": self.model, "messages": chat, "max_tokens": max_tokens, "temperature": 0}
        url = self.url + "/v1/chat/completions"
        answer = processes.fetch(url, self.token, body, timeout_s=120.0)
        usage: dict[str, Any] = answer["usage"]
        return usage


def prompt_file(chats: list[Chat]) -> list[str]:
    """Options of the load generator that make it send the chats, in order."""
    file = CACHE / "prompts.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
    return ["--prompt-file", str(file)]


@contextmanager
def agent(
    tools: SharedTools, cores: Cores, folder: Path, environ: dict[str, str]
) -> Iterator[Server]:
    """A `node-agent serve` with one model, in a home of its own."""
    with tempfile.TemporaryDirectory(prefix="bench-node-") as home:
        port = processes.free_port()
        url = f"http://127.0.0.1:{port}"
        log = CACHE / "logs" / "node-agent.log"
        argv = [*processes.command("node-agent"), "serve", "--home", home]
        argv += ["--port", str(port), "--model", str(folder), "--max-rows", "16"]
        with processes.running(argv, cores, log, environ) as process:
            token_file = Path(home) / "token"
            processes.wait_until(token_file.exists, process, log)
            token = token_file.read_text().strip()
            processes.wait_until(processes.answers(url + "/v1/models", token), process, log)
            model: str = processes.fetch(url + "/v1/models", token)["data"][0]["id"]
            yield Server(process, url, model, token, tools.loadgen())
