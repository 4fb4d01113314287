"""Tokens per second over HTTP to `node-agent serve`, against the bare loop of mlx-lm beside it."""

import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.bench import processes
from tests.bench.figures import Figure, median
from tests.bench.machine import Cores, blas_threads
from tests.bench.shared import CACHE, SharedTools, smollm2_folder

STREAMS = (1, 8, 16)
_SUBJECTS = "a lighthouse, an old clock, the north wind, a lost letter, two brothers, a red kite"


@dataclass(frozen=True, slots=True)
class Subject:
    """A model, and how much of it is measured."""

    name: str
    folder: Path
    max_tokens: int
    bar: float
    rounds: int
    budget_s: float
    """No new round of a row begins after this time, so that a slow machine ends too."""


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


@dataclass(slots=True)
class Pairs:
    """Runs of both sides, in turn."""

    bare: list[Run] = field(default_factory=list)
    ours: list[Run] = field(default_factory=list)


def subjects(tools: SharedTools, smollm2: Path, *, quick: bool) -> list[Subject]:
    tiny = tools.tiny_model(smollm2)
    if quick:
        return [
            Subject("tiny llama", tiny, 128, 0.85, 3, 10.0),
            Subject("SmolLM2 fp32", smollm2, 8, 0.95, 1, 10.0),
        ]
    return [
        Subject("tiny llama", tiny, 256, 0.85, 9, 20.0),
        Subject("SmolLM2 fp32", smollm2, 48, 0.95, 5, 75.0),
    ]


def measure(
    tools: SharedTools, cores: Cores, *, quick: bool, deadline_s: float
) -> Iterator[Figure]:
    """All rows of the engine; after `deadline_s` of the monotonic clock, one round of each."""
    smollm2 = smollm2_folder()
    if smollm2 is None:
        raise processes.BenchFailure("$MLX_FLEET_SMOLLM2 names no model folder.")
    for subject in subjects(tools, smollm2, quick=quick):
        with both_sides(tools, cores, subject) as sides:
            for streams in STREAMS:
                yield from row(subject, streams, alternate(subject, streams, sides, deadline_s))


def row(subject: Subject, streams: int, pairs: Pairs) -> Iterator[Figure]:
    ours = [run.rate for run in pairs.ours]
    bare = [run.rate for run in pairs.bare]
    note = (
        f"ours {median(ours):.1f} [{min(ours):.1f}-{max(ours):.1f}], bare {median(bare):.1f} "
        f"[{min(bare):.1f}-{max(bare):.1f}] tokens/s, medians of {len(ours)} in turn, prompts "
        "included"
    )
    what = f"engine: {subject.name}, {streams} stream{'s' if streams > 1 else ''}"
    yield Figure(what, median(ours), "tokens/s", note=f"{subject.max_tokens} tokens a stream")
    ratio = median(ours) / median(bare)
    samples = tuple(a / b for a, b in zip(ours, bare, strict=True))
    yield Figure(f"{what}, of the bare loop", ratio, "", subject.bar, True, note, samples)
    ours_ms, bare_ms = cpu_ms(pairs.ours), cpu_ms(pairs.bare)
    note = f"all processes of ours {ours_ms:.2f} ms, bare {bare_ms:.2f} ms"
    yield Figure(f"{what}, CPU per token, times the bare loop's", ours_ms / bare_ms, "", note=note)


def cpu_ms(runs: list[Run]) -> float:
    """Processor milliseconds per token, all processes of a side."""
    return median([run.cpu_s / run.tokens * 1e3 for run in runs])


def prompts(streams: int, number: int) -> list[list[dict[str, str]]]:
    """Chats of like length, other ones in each round, whose answers do not end early."""
    chance = random.Random(f"{streams} {number}")
    subjects = _SUBJECTS.split(", ")
    return [
        [
            {
                "role": "user",
                "content": f"{chance.randrange(100, 1000)} Write a very long story about "
                f"{subjects[row % len(subjects)]} and the sea.",
            }
        ]
        for row in range(streams)
    ]


def alternate(subject: Subject, streams: int, sides: "Sides", deadline_s: float) -> Pairs:
    """Bare, ours, bare, ours."""
    pairs = Pairs()
    warm_up = prompts(min(streams, 2), -1)
    sides.bare.run(warm_up, 4)
    sides.ours.run(warm_up, 4)
    last_s = min(deadline_s, time.monotonic() + subject.budget_s)
    for number in range(subject.rounds):
        if number and time.monotonic() > last_s:
            break
        chats = prompts(streams, number)
        pairs.bare.append(sides.bare.run(chats, subject.max_tokens))
        pairs.ours.append(sides.ours.run(chats, subject.max_tokens))
        same_work(pairs.bare[-1], pairs.ours[-1])
    return pairs


def same_work(bare: Run, ours: Run) -> None:
    if (bare.prompt_tokens, bare.tokens) != (ours.prompt_tokens, ours.tokens):
        raise processes.BenchFailure(
            f"The two sides did not do the same work: bare {bare.prompt_tokens} + {bare.tokens} "
            f"tokens, ours {ours.prompt_tokens} + {ours.tokens}."
        )


# --- the two sides ---


class BareLoop:
    """A child process that runs `tests.bench.bare`."""

    def __init__(self, child: "subprocess.Popen[str]") -> None:
        self._child = child

    def run(self, chats: list[list[dict[str, str]]], max_tokens: int) -> Run:
        return Run(**self.ask({"chats": chats, "max_tokens": max_tokens}))

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.write(json.dumps(question) + "\n")
        self._child.stdin.flush()
        text = self._child.stdout.readline()
        if not text:
            raise processes.BenchFailure("The bare loop has ended; its log says why.")
        answer: dict[str, Any] = json.loads(text)
        return answer


class Agent:
    """A `node-agent serve` with one model."""

    def __init__(self, process: psutil.Process, url: str, token: str, loadgen: Any) -> None:
        self.process = process
        self._url = url
        self._token = token
        self._loadgen = loadgen
        self._model: str = processes.fetch(url + "/v1/models", token)["data"][0]["id"]

    def run(self, chats: list[list[dict[str, str]]], max_tokens: int) -> Run:
        file = CACHE / "prompts.jsonl"
        file.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
        count = str(len(chats))
        argv = ["-c", count, "-n", count, "--max-tokens", str(max_tokens), "--light"]
        argv += ["--prompt-file", str(file), "--allow-empty"]
        before_s = processes.cpu_s(self.process)
        summary = self.load(argv)
        spent_s = processes.cpu_s(self.process) - before_s
        if summary["errors"] or summary["usage_reported"] != len(chats):
            raise processes.BenchFailure(f"Streams failed: {summary.get('error_samples')}")
        return Run(summary["output_tokens"], summary["prompt_tokens"], summary["wall_s"], spent_s)

    def load(self, argv: list[str]) -> dict[str, Any]:
        """Runs the load generator with `argv`; its summary."""
        target = ["--url", self._url, "--model", self._model, "--api-key", self._token]
        summary: dict[str, Any] = self._loadgen.run([*target, "--timeout", "600", *argv])
        del summary["_raw"]
        return summary


@dataclass(frozen=True, slots=True)
class Sides:
    bare: BareLoop
    ours: Agent


@contextmanager
def both_sides(tools: SharedTools, cores: Cores, subject: Subject) -> Iterator[Sides]:
    environ = {"OPENBLAS_NUM_THREADS": str(blas_threads(cores)), "HF_HUB_OFFLINE": "1"}
    with ExitStack() as stack:
        bare = stack.enter_context(bare_loop(cores, subject.folder, environ))
        ours = stack.enter_context(agent(tools, cores, subject.folder, environ))
        yield Sides(bare, ours)


@contextmanager
def bare_loop(cores: Cores, folder: Path, environ: dict[str, str]) -> Iterator[BareLoop]:
    log = CACHE / "logs" / "bare.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as errors, cores.starting_a_server():
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.bare", str(folder)],
            cwd=processes.PROJECT,
            env=processes.environment(environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        yield BareLoop(child)
    finally:
        child.communicate(timeout=processes.READY_S)


@contextmanager
def agent(
    tools: SharedTools, cores: Cores, folder: Path, environ: dict[str, str]
) -> Iterator[Agent]:
    with tempfile.TemporaryDirectory(prefix="bench-node-") as home:
        port = processes.free_port()
        url = f"http://127.0.0.1:{port}"
        log = CACHE / "logs" / "node-agent.log"
        argv = [*processes.command("node-agent"), "serve", "--home", home]
        argv += ["--port", str(port), "--model", str(folder)]
        with processes.running(argv, cores, log, environ) as process:
            token_file = Path(home) / "token"
            processes.wait_until(token_file.exists, process, log)
            token = token_file.read_text().strip()
            processes.wait_until(processes.answers(url + "/v1/models", token), process, log)
            yield Agent(process, url, token, tools.loadgen())
