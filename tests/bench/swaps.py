"""Several models that do not all fit, in virtual time: what the scheduler that ships makes of it,
and what nodes do that serve in the order of arrival, or that get the requests in turn."""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import mean

from msgspec.structs import replace

from router.simulator.fleet import NodeSpec, spread
from router.simulator.node import Node
from router.simulator.policies import MakePolicy, Policy
from router.simulator.replay import play
from router.simulator.table import OURS, POLICIES
from router.simulator.trace import Trace, read_trace
from router.simulator.workload import LoadSpec, PlannedTrace
from tests.bench.figures import Figure, median, percentile

BLOCK_TOKENS = 100
PROMPT_BLOCKS, TURN_BLOCKS, ANSWER_TOKENS = 6, 2, 60
TURNS, TURN_S = 6, 6.0
REQUESTS = 160
SEEDS = 3
"""Traces of each kind that chance has a part in."""
BAR_SWAPS, BAR_TTFT = 1.0, 0.5
FIRST_COME = "first come"
WEIGHTS = (6, 3, 2, 1)
"""Relative frequency of requests for each model of a mix."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A fleet, and the requests for it."""

    name: str
    kind: str
    models: int
    nodes: int
    gap_s: float
    """Between two requests, or between the beginnings of two sessions."""
    room: int = 1
    """Models that are in a node's memory at once."""

    @property
    def spec(self) -> NodeSpec:
        return NodeSpec(count=self.nodes, chip="Apple M4 Pro", resident_models=self.room)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of one policy on one seed's trace."""

    mean_s: float
    p99_s: float
    longest_s: float
    loads: int
    most_loads: int
    """Loads of the node that had most."""
    end_s: float


CELLS = (
    Cell("A B A B", "turns", models=2, nodes=1, gap_s=2.3),
    Cell("A B C A B C", "turns", models=3, nodes=2, gap_s=1.1),
    Cell("a mix of 4", "mix", models=4, nodes=2, gap_s=1.1),
    Cell("a mix of 3, room for 2", "mix", models=3, nodes=1, gap_s=2.3, room=2),
    Cell("sessions of 3", "sessions", models=3, nodes=2, gap_s=7.0),
)


def measure(*, quick: bool) -> Iterator[Figure]:
    for cell in CELLS:
        yield from figures(cell, seeds=1 if quick or cell.kind == "turns" else SEEDS)


def figures(cell: Cell, *, seeds: int) -> Iterator[Figure]:
    found = {
        name: [outcome(cell, name, seed) for seed in range(1, seeds + 1)]
        for name in (OURS, FIRST_COME, "round_robin")
    }
    residency_s = cell.spec.min_residency_s
    note = f"virtual time; {cell.models} models, nodes: {cell.nodes}, room for {cell.room} each; "
    note += "; ".join(f"{name} {_words(each)}" for name, each in found.items())
    swaps = [each.most_loads * residency_s / each.end_s for each in found[OURS]]
    bars = (BAR_SWAPS, BAR_TTFT) if cell.kind == "turns" else (None, None)
    if cell.room == 1:
        what = f"{cell.name}: swaps of a node for each minimum residency"
        yield Figure(what, median(swaps), "", bars[0], samples=tuple(swaps))
    pairs = zip(found[OURS], found[FIRST_COME], strict=True)
    ratios = [ours.mean_s / other.mean_s for ours, other in pairs]
    what = f"{cell.name}: mean TTFT, of first-come order's"
    yield Figure(what, median(ratios), "", bars[1], note=note, samples=tuple(ratios))


def _words(outcomes: Sequence[Outcome]) -> str:
    mean_s, p99_s, longest_s, loads = (
        median([getattr(each, name) for each in outcomes])
        for name in ("mean_s", "p99_s", "longest_s", "loads")
    )
    return f"{mean_s:.1f} / {p99_s:.0f} / {longest_s:.0f} s, {loads:.0f} loads"


def outcome(cell: Cell, name: str, seed: int) -> Outcome:
    """First come: the node with the fewest requests, which serves them in their order."""
    workload = PlannedTrace(trace(cell, seed)).workload(LoadSpec(1, cell.gap_s, seed))
    spec, policy = cell.spec, name
    if name == FIRST_COME:
        policy = "least_in_flight"
        spec = replace(spec, min_residency_s=0.0, max_swap_wait_s=0.0)
    nodes: list[Node] = []
    jobs = play(workload, spread([spec]), _seen(POLICIES[policy], nodes), seed).jobs
    ttfts_s = [job.first_s - job.arrived_s for job in jobs]
    loads = [node.loads for node in nodes]
    return Outcome(
        mean(ttfts_s),
        percentile(ttfts_s, 99),
        max(ttfts_s),
        sum(loads),
        max(loads),
        max(job.ended_s for job in jobs),
    )


def _seen(make: MakePolicy, seen: list[Node]) -> MakePolicy:
    def made(nodes: Sequence[Node], chance: random.Random) -> Policy:
        seen.extend(nodes)
        return make(nodes, chance)

    return made


def trace(cell: Cell, seed: int) -> Trace:
    rows: dict[str, Callable[[Cell, random.Random], Iterator[dict[str, object]]]] = {
        "turns": _turns,
        "mix": _mix,
        "sessions": _sessions,
    }
    made = rows[cell.kind](cell, random.Random(seed))
    return read_trace((json.dumps(row) for row in made), BLOCK_TOKENS)


def _turns(cell: Cell, chance: random.Random) -> Iterator[dict[str, object]]:
    """One model after the other."""
    for number in range(REQUESTS):
        yield _row(number * cell.gap_s, number % cell.models, _fresh(number))


def _mix(cell: Cell, chance: random.Random) -> Iterator[dict[str, object]]:
    """At random moments, some models more often than others."""
    now_s = 0.0
    for number in range(REQUESTS):
        now_s += chance.expovariate(1.0 / cell.gap_s)
        (model,) = chance.choices(range(cell.models), WEIGHTS[: cell.models])
        yield _row(now_s, model, _fresh(number))


def _sessions(cell: Cell, chance: random.Random) -> Iterator[dict[str, object]]:
    """Agents, each with one model and a prompt that grows."""
    for session in range(REQUESTS // TURNS):
        blocks = _fresh(session)
        for turn in range(TURNS):
            row = _row(turn * TURN_S, session % cell.models, blocks)
            yield row | {"session": session}
            blocks = [*blocks, *range(blocks[-1] + 1, blocks[-1] + 1 + TURN_BLOCKS)]


def _fresh(number: int) -> list[int]:
    return [0, *range(1000 * (number + 1), 1000 * (number + 1) + PROMPT_BLOCKS - 1)]


def _row(at_s: float, model: int, blocks: Sequence[int]) -> dict[str, object]:
    return {
        "timestamp": at_s * 1000.0,
        "input_length": len(blocks) * BLOCK_TOKENS,
        "output_length": ANSWER_TOKENS,
        "hash_ids": list(blocks),
        "model": "abcd"[model],
    }
