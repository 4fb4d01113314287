"""Tokens per second over HTTP to `node-agent serve`, against two step loops beside it: our own
engine's in one process, and that of mlx-lm's `BatchGenerator`."""

import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.figures import Figure, median
from tests.bench.machine import Cores, blas_threads
from tests.bench.processes import BenchFailure
from tests.bench.shared import SharedTools, smollm2_folder
from tests.bench.sides import Chat, Run, Server, StepLoop, agent, step_loop

STREAMS = (1, 8, 16)
MLX_LM_ROUNDS = 2
"""The loop that has no bar needs no more."""
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


@dataclass(slots=True)
class Runs:
    """Runs of all sides, in turn."""

    mlx_lm: list[Run] = field(default_factory=list)
    own: list[Run] = field(default_factory=list)
    ours: list[Run] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Sides:
    mlx_lm: StepLoop
    own: StepLoop
    ours: Server


def subjects(tools: SharedTools, smollm2: Path, *, quick: bool) -> list[Subject]:
    tiny = tools.tiny_model(smollm2)
    if quick:
        return [
            Subject("tiny llama", tiny, 128, 0.9, 3, 8.0),
            Subject("SmolLM2 fp32", smollm2, 8, 0.95, 1, 10.0),
        ]
    return [
        Subject("tiny llama", tiny, 256, 0.9, 9, 20.0),
        Subject("SmolLM2 fp32", smollm2, 48, 0.95, 5, 45.0),
    ]


def measure(
    tools: SharedTools, cores: Cores, *, quick: bool, deadline_s: float
) -> Iterator[Figure]:
    """All rows of the engine; after `deadline_s` of the monotonic clock, one round of each."""
    smollm2 = smollm2_folder()
    if smollm2 is None:
        raise BenchFailure("$MLX_FLEET_SMOLLM2 names no model folder.")
    for subject in subjects(tools, smollm2, quick=quick):
        with all_sides(tools, cores, subject) as sides:
            for streams in STREAMS:
                yield from row(subject, streams, alternate(subject, streams, sides, deadline_s))


def row(subject: Subject, streams: int, runs: Runs) -> Iterator[Figure]:
    ours, own, mlx_lm = (rates(side) for side in (runs.ours, runs.own, runs.mlx_lm))
    what = f"engine: {subject.name}, {streams} stream{'s' if streams > 1 else ''}"
    yield Figure(what, median(ours), "tokens/s", note=f"{subject.max_tokens} tokens a stream")
    ratio = median(ours) / median(own)
    note = (
        f"ours {spread(ours)}, own loop {spread(own)} tokens/s, medians of {len(ours)} in turn, "
        "prompts included"
    )
    samples = tuple(a / b for a, b in zip(ours, own, strict=True))
    yield Figure(f"{what}, of our own step loop", ratio, "", subject.bar, True, note, samples)
    ours_ms, own_ms = cpu_ms(runs.ours), cpu_ms(runs.own)
    note = f"all processes of ours {ours_ms:.2f} ms, own loop {own_ms:.2f} ms"
    yield Figure(f"{what}, CPU per token, times our own loop's", ours_ms / own_ms, "", note=note)
    ratio = median(ours) / median(mlx_lm)
    note = f"BatchGenerator {spread(mlx_lm)} tokens/s, {len(mlx_lm)} runs"
    yield Figure(f"{what}, of mlx-lm's bare loop", ratio, "", note=note)


def rates(runs: list[Run]) -> list[float]:
    return [run.rate for run in runs]


def spread(values: list[float]) -> str:
    return f"{median(values):.1f} [{min(values):.1f}-{max(values):.1f}]"


def cpu_ms(runs: list[Run]) -> float:
    """Processor milliseconds per token, all processes of a side."""
    return median([run.cpu_s / run.tokens * 1e3 for run in runs])


def prompts(streams: int, number: int) -> list[Chat]:
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


def alternate(subject: Subject, streams: int, sides: Sides, deadline_s: float) -> Runs:
    """mlx-lm's loop, our own, ours, and again; the order of our two changes each time."""
    runs = Runs()
    warm_up = prompts(min(streams, 2), -1)
    for side in (sides.mlx_lm, sides.own, sides.ours):
        side.run(warm_up, 4)
    last_s = min(deadline_s, time.monotonic() + subject.budget_s)
    for number in range(subject.rounds):
        if number and time.monotonic() > last_s:
            break
        chats = prompts(streams, number)
        turns: list[tuple[list[Run], StepLoop | Server]]
        turns = [(runs.own, sides.own), (runs.ours, sides.ours)]
        if number % 2:
            turns.reverse()
        if number < MLX_LM_ROUNDS:
            turns.insert(0, (runs.mlx_lm, sides.mlx_lm))
        for found, side in turns:
            found.append(side.run(chats, subject.max_tokens))
        same_work([found[-1] for found, _ in turns])
    return runs


def same_work(runs: list[Run]) -> None:
    """Raises `BenchFailure` where the sides had not the same tokens in and out."""
    if len({(run.prompt_tokens, run.tokens) for run in runs}) > 1:
        tokens = "; ".join(f"{run.prompt_tokens} + {run.tokens}" for run in runs)
        raise BenchFailure(f"The sides did not do the same work, in tokens: {tokens}.")


@contextmanager
def all_sides(tools: SharedTools, cores: Cores, subject: Subject) -> Iterator[Sides]:
    environ = {"OPENBLAS_NUM_THREADS": str(blas_threads(cores)), "HF_HUB_OFFLINE": "1"}
    with ExitStack() as stack:
        mlx_lm = stack.enter_context(step_loop("mlx-lm", cores, subject.folder, environ))
        own = stack.enter_context(step_loop("own", cores, subject.folder, environ))
        ours = stack.enter_context(agent(tools, cores, subject.folder, environ))
        yield Sides(mlx_lm, own, ours)
