"""Small traces, workloads and fleets."""

from __future__ import annotations

import json
from collections.abc import Sequence

from router.simulator.node import Job
from router.simulator.trace import Trace, read_trace
from router.simulator.workload import LoadSpec, PlannedTrace, SimulatedCall, Workload


def line(
    timestamp: float, tokens: int, output: int, ids: Sequence[int], session: int | None = None
) -> str:
    found = {
        "timestamp": timestamp,
        "input_length": tokens,
        "output_length": output,
        "hash_ids": list(ids),
    }
    return json.dumps(found if session is None else found | {"session": session})


def talks(sessions: int, turns: int, *, first_blocks: int = 20, block_tokens: int = 100) -> Trace:
    """Sessions that share a block and grow by two blocks a turn."""
    lines, fresh = [], 1
    for session in range(sessions):
        ids = [0, *range(fresh, fresh + first_blocks)]
        fresh += first_blocks
        for turn in range(turns):
            lines.append(line(turn * 4000.0, len(ids) * block_tokens, 50, ids, session))
            ids = [*ids, fresh, fresh + 1]
            fresh += 2
    return read_trace(lines, block_tokens)


def workload(trace: Trace, *, clones: int = 1, gap_s: float = 10.0, seed: int = 1) -> Workload:
    return PlannedTrace(trace).workload(LoadSpec(clones, gap_s, seed))


def call(
    number: int,
    path: Sequence[int],
    *,
    tokens: int = 100,
    output: int = 0,
    answer: int | None = None,
    model: str = "",
) -> SimulatedCall:
    """A call whose segments have so many tokens each; `answer` is the segment that it adds."""
    ends = tuple(tokens * (place + 1) for place in range(len(path)))
    stored, stored_ends = tuple(path), ends
    if answer is not None:
        stored, stored_ends = (*path, answer), (*ends, ends[-1] + output)
    marks = (path[-1], stored[-1])
    return SimulatedCall(
        number,
        "",
        model,
        ends[-1],
        output,
        tuple(path),
        ends,
        stored,
        stored_ends,
        marks,
        float("inf"),
    )


def job(number: int, path: Sequence[int], arrived_s: float = 0.0, **options: int | str) -> Job:
    return Job(call(number, path, **options), arrived_s)  # type: ignore[arg-type]
