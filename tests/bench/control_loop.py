"""Steps of one batch of our engine in a process of its own: 8 plain sequences, or 7 beside another.

`python -m tests.bench.control_loop FOLDER ROUNDS STEPS` prints one JSON object: seconds of a step
by kind of the eighth row, one value a round, and the host's seconds for each mask.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from node.engine.model.blas import load_fast_blas

load_fast_blas()

from node.engine.decoding import picker  # noqa: E402  the BLAS comes first
from node.engine.load import load  # noqa: E402
from node.engine.scheduling.engine import TextEngine  # noqa: E402
from node.ipc.generate import (  # noqa: E402
    Constraint,
    ConstraintKind,
    GenerateRequest,
    OutputFormat,
    SamplingParams,
)
from node.ipc.messages import EngineSpec, MemoryLease, Refused  # noqa: E402

ROWS = 8
PROMPT_TOKENS = 48
_SCHEMA = {
    "type": "array",
    "minItems": 200,
    "items": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
    },
}
_GREEDY = SamplingParams(temperature=0.0)

CONSTRAINED = "constrained by a schema"
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    CONSTRAINED: {
        "constraint": Constraint(ConstraintKind.JSON_SCHEMA, "schema", json.dumps(_SCHEMA))
    },
    "seeded": {"sampling": SamplingParams(seed=7)},
    "with logprobs": {"logprobs": 5},
    "with a thinking budget": {
        "thinking_tokens": 4096,
        "output": OutputFormat(reasoning="think", prompt_tail="<think>\n"),
    },
}


class Masks:
    """Measures what masks cost the engine's thread."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._constrain = vars(picker)["constrain"]
        vars(picker)["constrain"] = self._timed

    def _timed(self, *arguments: Any) -> Any:
        began_s = time.perf_counter()
        logits = self._constrain(*arguments)
        self.seconds.append(time.perf_counter() - began_s)
        return logits


def main() -> None:
    folder, rounds, steps = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    weight_bytes = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    lease = MemoryLease(weight_bytes, 2 << 30, 1 << 28)
    spec = EngineSpec("text", "bench", str(folder), ROWS, lease)
    engine = load(spec, lambda fraction: None)
    masks = Masks()
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    mask_s: list[float] = []
    for number in range(rounds + 1):
        # Each kind comes first in turn, and the first round is to warm up.
        order = [*KINDS][number % len(KINDS) :] + [*KINDS][: number % len(KINDS)]
        for kind in order:
            masks.seconds.clear()
            step_s = _step_s(engine, KINDS[kind], steps, number)
            if number:
                found[kind].append(step_s)
            if kind == CONSTRAINED:
                mask_s += masks.seconds
    engine.close()
    print(json.dumps({"step_s": found, "mask_s": statistics.median(mask_s)}), flush=True)


def _step_s(engine: TextEngine, options: dict[str, Any], steps: int, number: int) -> float:
    """Median seconds of a decode step of 7 plain sequences and one with these options."""
    for row in range(ROWS):
        tokens = tuple(range(1000 + 100 * number + row, 1000 + 100 * number + row + PROMPT_TOKENS))
        own = options if row == ROWS - 1 else {}
        request = GenerateRequest(str(row), tokens, 4096, **{"sampling": _GREEDY, **own})
        if isinstance(refused := engine.submit(request), Refused):
            raise SystemExit(refused.reason)
    _run(engine, lambda: engine.stats().decoding_rows == ROWS)
    times: list[float] = []
    for _ in range(steps):
        began_s = time.perf_counter()
        engine.step()
        times.append(time.perf_counter() - began_s)
    if engine.stats().decoding_rows != ROWS:
        raise SystemExit("A row has ended early.")
    for row in range(ROWS):
        engine.cancel(str(row))
    return statistics.median(times)


def _run(engine: TextEngine, is_done: Callable[[], bool]) -> None:
    while not is_done():
        time.sleep(engine.wait_s() or 0.0)
        engine.step()
        for answer in engine.take_responses():
            if isinstance(answer, Refused):
                raise SystemExit(answer.reason)


if __name__ == "__main__":
    main()
