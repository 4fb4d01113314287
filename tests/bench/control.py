"""Measures the cost of control over one sequence's output: of the mask, and for the sequences
beside it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from tests.bench import processes
from tests.bench.figures import Figure, median
from tests.bench.machine import Cores, blas_threads
from tests.bench.processes import BenchFailure
from tests.bench.shared import smollm2_folder

MASK_BAR_MS = 0.5
TAX_BAR = 0.9
"""Least share of the plain rows' speed beside 8 plain ones."""
LIMIT_S = 240.0


def measure(cores: Cores, *, quick: bool) -> Iterator[Figure]:
    """All rows, with SmolLM2."""
    folder = smollm2_folder()
    if folder is None:
        raise BenchFailure("$MLX_FLEET_SMOLLM2 names no model folder.")
    rounds, steps = (2, 8) if quick else (4, 24)
    found = _run([str(folder), str(rounds), str(steps)], cores)
    note = "host time of one row's mask in a step, median: consume, compute, apply"
    yield Figure(
        "control: mask of one row, SmolLM2", found["mask_s"] * 1e3, "ms", MASK_BAR_MS, note=note
    )
    steps_s: dict[str, list[float]] = found["step_s"]
    plain = steps_s.pop("plain")
    for kind, taken in steps_s.items():
        samples = tuple(a / b for a, b in zip(plain, taken, strict=True))
        note = (
            f"step of 8 plain rows {median(plain) * 1e3:.1f} ms, of 7 beside it "
            f"{median(taken) * 1e3:.1f} ms; medians of {len(plain)} rounds in turn"
        )
        what = f"control: 7 plain rows beside one {kind}, speed"
        yield Figure(what, median(samples), "", TAX_BAR, True, note, samples)


def _run(argv: list[str], cores: Cores) -> dict[str, Any]:
    environ = {"OPENBLAS_NUM_THREADS": str(blas_threads(cores)), "HF_HUB_OFFLINE": "1"}
    with cores.starting_a_server():
        done = subprocess.run(
            [sys.executable, "-m", "tests.bench.control_loop", *argv],
            cwd=processes.PROJECT,
            env=processes.environment(environ),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    if done.returncode:
        raise BenchFailure(f"The loop of controlled rows failed: {done.stderr[-400:]}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer
