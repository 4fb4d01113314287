"""Ours against the best of the peers, bar by bar."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.bench.figures import median
from tests.bench.peer_servers import LLAMACPP, OURS

Line = dict[str, Any]
Path = tuple[str, ...]
"""The phase, then keys."""


@dataclass(frozen=True, slots=True)
class Bar:
    """The ratio that a figure of ours must have to the best peer's."""

    what: str
    path: Path
    ratio: float
    at_least: bool = False
    """True if more is better, and `ratio` the least that passes; else it is the most."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One bar and what was measured."""

    bar: Bar
    ours: float
    peer: str
    """The best one."""
    theirs: float

    @property
    def ratio(self) -> float:
        return self.ours / self.theirs

    @property
    def passed(self) -> bool:
        return self.ratio >= self.bar.ratio if self.bar.at_least else self.ratio <= self.bar.ratio


_ONE = Bar("1 stream, tokens/s", ("single", "output_tok_s"), 1.0, at_least=True)
_REPEAT = Bar("repeat of a 2,000-token prompt, TTFT (ms)", ("long_repeat", "ttft_ms", "p50"), 0.8)
_SESSIONS = Bar("3 sessions of 3 turns over 2,000 tokens (s)", ("sessions", "wall_s"), 0.9)
BARS: dict[str, tuple[Bar, ...]] = {
    "servers-tiny": (
        _ONE,
        Bar("16 streams, tokens/s", ("conc16", "output_tok_s"), 1.2, at_least=True),
        _REPEAT,
        _SESSIONS,
        Bar(
            "6,000 cold tokens beside 3 streams: worst gap (ms)",
            ("interfere", "worst_gap_ms"),
            0.25,
        ),
        Bar("6,000 cold tokens beside 3 streams: TTFT (ms)", ("interfere", "long_ttft_ms"), 1.2),
    ),
    "servers-real": (
        _ONE,
        Bar("16 streams, tokens/s", ("conc16", "output_tok_s"), 1.0, at_least=True),
        _REPEAT,
        _SESSIONS,
    ),
    "replay": (Bar("agent replay, prefill (s)", ("replay", "prefill_s"), 0.7),),
    "replay-16": (Bar("16 agents in turn, prefill (s)", ("replay", "prefill_s"), 0.7),),
}


def values(lines: Iterable[Line], path: Path) -> list[Any]:
    """Returns the values at the path in the phases of that name, one for each time it was
    measured."""
    phase, *keys = path
    found = []
    for line in lines:
        if line.get("phase") != phase:
            continue
        value: Any = line
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None:
            found.append(value)
    return found


def judge(bars: Sequence[Bar], measured: Mapping[str, list[Line]]) -> list[Verdict]:
    """`measured` holds the lines of each server. A bar that ours or all peers lack is left out."""
    verdicts = []
    for bar in bars:
        medians = {
            server: median(found)
            for server, lines in measured.items()
            if (found := values(lines, bar.path))
        }
        peers = {name: value for name, value in medians.items() if name not in (OURS, LLAMACPP)}
        if OURS in medians and peers:
            best = (max if bar.at_least else min)(peers, key=peers.__getitem__)
            verdicts.append(Verdict(bar, medians[OURS], best, peers[best]))
    return verdicts
