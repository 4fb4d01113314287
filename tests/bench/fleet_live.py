"""The live parts of `python -m tests.bench.fleet`: real node agents behind a router, ours or a
peer's, and agent sessions through it."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from node.dialects.chat.body import read_chat
from node.prompt.renderer import PromptRenderer
from tests.bench import fleet_agents, fleet_load, fleet_reuse, fleet_routers, fleet_sessions, peers
from tests.bench.figures import percentile
from tests.bench.fleet_agents import Agent, Busy
from tests.bench.fleet_load import Answer, Chat, Target
from tests.bench.fleet_routers import OURS, Front
from tests.bench.fleet_sessions import Shape
from tests.bench.parts import Result
from tests.bench.peers import Bench
from tests.bench.replay import Ids

ALONE = "alone"
"""One agent without a router."""
NODES = 2
TINY = Shape(
    kinds=(12, 2, 2),
    turns=8,
    system_words=700,
    turn_words=560,
    answer_tokens=24,
    think_s=1.6,
    begin_s=3.0,
)
REAL = Shape(
    kinds=(4,),
    turns=3,
    system_words=120,
    turn_words=160,
    answer_tokens=24,
    think_s=2.0,
    begin_s=4.0,
)


@dataclass(frozen=True, slots=True)
class Bed:
    """The agents and the front that the sessions run on."""

    folder: Path
    agents: Sequence[Agent]
    front: Front


def sessions_tiny(bench: Bench, item: str) -> list[Result]:
    return [_through_ours(bench, bench.tools.tiny_model(bench.smollm2), TINY, int(item))]


def sessions_real(bench: Bench, item: str) -> list[Result]:
    return [_through_ours(bench, bench.smollm2, REAL, int(item))]


def beside_routers(bench: Bench, item: str) -> list[Result]:
    """The same sessions for all routers of a round, and for one agent alone."""
    name, _, number = item.partition(".")
    folder = bench.tools.tiny_model(bench.smollm2)
    with bed(bench, name, folder) as made:
        line, _ = _measure(bench, made, TINY, int(number))
    return [{**line, "phase": ALONE if name == ALONE else line["phase"]}]


def fake_sessions(bench: Bench, item: str) -> list[Result]:
    """The session test of the shared bench_router.py: fake nodes with toy caches, and callers that
    don't name which session they belong to."""
    return peers.routed(bench, item, ["--policy", "cache_aware", "--phases", "sessions"])


@contextmanager
def bed(bench: Bench, name: str, folder: Path) -> Iterator[Bed]:
    """The router `name` over two agents with empty caches; one agent and no router for `ALONE`.
    Raises `BenchFailure`."""
    with fleet_agents.agents(folder, 1 if name == ALONE else NODES) as agents:
        if name == ALONE:
            yield Bed(folder, agents, Front(agents[0].url, agents[0].token))
            return
        with fleet_routers.router(name, bench.tools, bench.home, agents) as front:
            yield Bed(folder, agents, front)


def _through_ours(bench: Bench, folder: Path, shape: Shape, seed: int) -> Result:
    with bed(bench, OURS, folder) as made:
        line, answers = _measure(bench, made, shape, seed)
    nodes = Counter(answer.node for answer in answers)
    line["split"] = [nodes[agent.name] for agent in made.agents]
    foresight = fleet_reuse.foresight(answers)
    return line if foresight is None else {**line, **asdict(foresight)}


def _measure(bench: Bench, made: Bed, shape: Shape, seed: int) -> tuple[Result, list[Answer]]:
    """Sends all sessions to their ends. Raises `BenchFailure`."""
    target = Target(made.front.url, made.front.key, made.agents[0].model, shape.answer_tokens)
    sessions = fleet_sessions.write(shape, seed)
    busy, began_s = Busy(made.agents), time.monotonic()
    answers = asyncio.run(fleet_load.run(target, sessions, bench.left_s()))
    line: Result = {
        "phase": "sessions",
        "requests": len(answers),
        "wall_s": round(time.monotonic() - began_s, 1),
        "busy": busy.shares(),
    }
    reuse = fleet_reuse.reuse(answers, _render(made.folder))
    ttfts_ms = [answer.ttft_s * 1e3 for answer in answers]
    line |= {
        "occupied": fleet_reuse.occupied_share(answers),
        **asdict(reuse),
        "uncached_tokens": reuse.uncached_tokens,
        "share": reuse.share,
        "ideal_share": reuse.ideal_share,
        "of_ideal": reuse.of_ideal,
        "ttft_mean_ms": sum(ttfts_ms) / len(ttfts_ms),
        "ttft_p50_ms": percentile(ttfts_ms, 50),
        "ttft_p95_ms": percentile(ttfts_ms, 95),
    }
    return line, answers


def _render(folder: Path) -> Callable[[Chat], Ids]:
    """Returns a function that renders a chat to tokens as an agent does."""
    renderer = PromptRenderer(folder)

    def render(chat: Chat) -> Ids:
        body = json.dumps({"model": "bench", "messages": chat}).encode()
        return np.asarray(renderer.render(read_chat(body).request).tokens, dtype=np.int32)

    return render
