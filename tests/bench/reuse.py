"""Measures the reuse of the prefix cache, over HTTP: a recorded agent's requests with the tiny
llama, and a tool session with a hybrid model beside a plain one."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.bench import replay, tool_session
from tests.bench.figures import Figure
from tests.bench.machine import Cores, blas_threads
from tests.bench.processes import BenchFailure
from tests.bench.shared import CACHE, SharedTools, smollm2_folder
from tests.bench.sides import agent
from tests.bench.tool_session import Turn

REPLAY_BAR = 0.95
HYBRID_BAR = 0.9
PLAIN, HYBRID = "llama", "qwen3_5"


def measure(tools: SharedTools, cores: Cores, *, quick: bool) -> Iterator[Figure]:
    yield from hybrid_rows(tools, cores)
    smollm2 = smollm2_folder()
    if smollm2 is None:
        raise BenchFailure("$MLX_FLEET_SMOLLM2 names no model folder.")
    yield from replay_rows(tools, cores, tools.tiny_model(smollm2), quick=quick)


def replay_rows(tools: SharedTools, cores: Cores, folder: Path, *, quick: bool) -> Iterator[Figure]:
    count = replay.QUICK_REQUESTS if quick else replay.REQUESTS
    requests = replay.load_requests(tools, folder, count)
    with agent(tools, cores, folder, environ(cores)) as ours:
        found = replay.run_checked(ours, requests)
    note = (
        f"reused {found.share:.3f} of {found.prompt_tokens} prompt tokens in {found.requests} "
        f"requests; ideal {found.ideal_share:.3f}"
    )
    of_ideal = found.cached_tokens / found.ideal_tokens
    yield Figure(
        "cache: agent replay, reused share of the ideal", of_ideal, "", REPLAY_BAR, True, note
    )
    note = "sum of the times to the first token"
    yield Figure("cache: agent replay, prefill", found.prefill_s, "s", note=note)


def hybrid_rows(tools: SharedTools, cores: Cores) -> Iterator[Figure]:
    plain, hybrid = (session_of(tools, cores, kind) for kind in (PLAIN, HYBRID))
    plain_share, hybrid_share = map(tool_session.reused_share, (plain, hybrid))
    if not plain_share:
        raise BenchFailure("The plain model reuses nothing in the tool session.")
    note = (
        f"{HYBRID} {hybrid_share:.3f}, {PLAIN} {plain_share:.3f} of the prompts from turn 2 on, "
        f"the last one of {plain[-1].prompt_tokens} tokens"
    )
    ratio = hybrid_share / plain_share
    yield Figure(
        "cache: tool session, hybrid's reused share of the plain's",
        ratio,
        "",
        HYBRID_BAR,
        True,
        note,
    )


def session_of(tools: SharedTools, cores: Cores, kind: str) -> list[Turn]:
    with agent(tools, cores, kind_folder(tools, kind), environ(cores)) as ours:
        try:
            return tool_session.run(ours)
        except OSError as error:
            raise BenchFailure(f"{kind}: {error}") from error


def kind_folder(tools: SharedTools, kind: str) -> Path:
    """A tiny random model of the kind, with a tokenizer of its own; made once."""
    folder = (CACHE / "kinds" / kind).resolve()
    if not (folder / "config.json").exists():
        script = tools.folder.parent / "models" / "make_tiny_lm.py"
        command = [sys.executable, str(script), kind, str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BenchFailure(f"{kind} cannot be made: {done.stderr[-600:]}")
    return folder


def environ(cores: Cores) -> dict[str, str]:
    return {"OPENBLAS_NUM_THREADS": str(blas_threads(cores)), "HF_HUB_OFFLINE": "1"}
