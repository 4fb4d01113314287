"""The phases that an inference server and its peers are measured in, ours and theirs alike."""

import itertools
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tests.bench.sides import Server

LONG_TOKENS = 2000
_STREAMS_BESIDE = 3
_LEAD_S = 0.8
"""Seconds that the streams run before the long prompt arrives."""

Line = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Effort:
    """The extent of a server's measurement. Phases that are 0 or empty are left out."""

    singles: int = 0
    """Requests of one stream, one after the other."""
    streams: tuple[int, ...] = ()
    requests_per_stream: int = 2
    max_tokens: int = 128
    repeats: int = 0
    """Repeats of a prompt of `LONG_TOKENS`, after its first time."""
    sessions: int = 0
    """Sessions of three turns over a system prompt of `LONG_TOKENS`."""
    interfering_tokens: int = 0
    """Length of a prompt that arrives while other streams decode."""


TINY = Effort(singles=3, streams=(4, 16), repeats=3, sessions=3, interfering_tokens=6000)
REAL: dict[str, Effort] = {
    "speed": Effort(singles=2, streams=(16,), requests_per_stream=1, max_tokens=32),
    "long": Effort(repeats=2),
    "sessions": Effort(sessions=3),
}
"""In parts, since each takes a minute or more."""


def measure(server: Server, effort: Effort) -> Iterator[Line]:
    """One line a phase: the load generator's summary, or `failed` and why."""
    server.load(["-n", "1", "--max-tokens", "8", "--seed", "3", "--unique", "--allow-empty"])
    for phase, argv in phases(effort):
        yield {"phase": phase, **server.measured(argv)}
    if effort.interfering_tokens:
        yield {"phase": "interfere", **interfere(server, effort.interfering_tokens)}


def phases(effort: Effort) -> Iterator[tuple[str, list[str]]]:
    """The load of each phase, as options of loadgen."""
    tokens = ["--max-tokens", str(effort.max_tokens), "--unique"]
    if effort.singles:
        yield "single", ["-c", "1", "-n", str(effort.singles), "--seed", "1", *tokens]
    for streams in effort.streams:
        count = str(effort.requests_per_stream * streams)
        argv = ["-c", str(streams), "-n", count, "--seed", str(10 + streams)]
        yield f"conc{streams}", [*argv, *tokens]
    if effort.repeats:
        long = ["-c", "1", "--max-tokens", "8", "--seed", "77", "--allow-empty"]
        long += ["--prompt-tokens", str(LONG_TOKENS)]
        yield "long_cold", [*long, "-n", "1"]
        yield "long_repeat", [*long, "-n", str(effort.repeats)]
    if effort.sessions:
        shape = ["--sessions", str(effort.sessions), "--turns", "3", "--turn-tokens", "40"]
        prefix = ["--shared-prefix-tokens", str(LONG_TOKENS)]
        argv = [*shape, *prefix, "-c", "1", "--max-tokens", "16", "--seed", "5", "--allow-empty"]
        yield "sessions", argv


def interfere(server: Server, tokens: int) -> Line:
    """Streams decode, and a cold prompt arrives: their longest gap, and its first token."""
    count = str(_STREAMS_BESIDE)
    beside = ["-c", count, "-n", count, "--max-tokens", "256", "--unique", "--seed", "21"]
    long = ["-n", "1", "--max-tokens", "8", "--unique", "--seed", "99", "--allow-empty"]
    long += ["--prompt-tokens", str(tokens)]
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(server.load, beside)
        # The lead is part of what is measured, not a wait for something to be ready.
        time.sleep(_LEAD_S)
        summary, arrived = server.load(long)
        beside_summary, streams = running.result()
    errors = [*summary.get("error_samples", []), *beside_summary.get("error_samples", [])]
    if errors:
        return {"failed": str(errors[0])}
    return gaps(streams, arrived[0])


def gaps(streams: list[Line], arrived: Line) -> Line:
    """The longest gap of the streams that were decoding when the long prompt had been sent, and
    when its first token arrived."""
    ttft_ms = round(arrived["ttft"] * 1e3, 1)
    worst_s = [
        gap_s
        for stream in streams
        for gap_s in overlapping(stream, arrived["t0"], arrived["t0"] + arrived["ttft"])
    ]
    if not worst_s:
        return {"long_ttft_ms": ttft_ms, "note": "the streams had ended before"}
    return {"long_ttft_ms": ttft_ms, "worst_gap_ms": round(max(worst_s) * 1e3, 1)}


def overlapping(stream: Line, begin_s: float, end_s: float) -> Iterator[float]:
    """Yields the gaps between the stream's chunks that lie in the span, wholly or in part."""
    times_s = itertools.accumulate(stream["itl"], initial=stream["t0"] + stream["ttft"])
    for earlier_s, later_s in itertools.pairwise(times_s):
        if later_s > begin_s and earlier_s < end_s:
            yield later_s - earlier_s
