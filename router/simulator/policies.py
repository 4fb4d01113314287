"""The interface of policies in the simulator, and the policies of other routers for comparison.

The policies in this file send each call at once and know only what they have sent. Calls then wait
on their node, first come, first served.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from router.simulator.node import Job, JobEvent, Node
from router.simulator.workload import SimulatedCall


class Dispatch(NamedTuple):
    job: Job
    node: int


class Retry(NamedTuple):
    """The call was rejected; its client sends it again."""

    job: Job
    after_s: float


Move = Dispatch | Retry


class Policy(Protocol):
    """Decides where calls go. Each method may return moves for other calls, too."""

    def on_arrival(self, job: Job, now_s: float) -> list[Move]: ...

    def on_event(self, event: JobEvent, now_s: float) -> list[Move]: ...

    def on_time(self, now_s: float) -> list[Move]: ...

    def wake_s(self) -> float | None:
        """Time of the next `on_time`; None for none."""


MakePolicy = Callable[[Sequence[Node], random.Random], Policy]


class Chooser(Protocol):
    def choose(self, call: SimulatedCall) -> int: ...


class SendAtOnce:
    """A policy that sends each call on arrival."""

    def __init__(self, chooser: Chooser) -> None:
        self._choose = chooser.choose

    def on_arrival(self, job: Job, now_s: float) -> list[Move]:
        return [Dispatch(job, self._choose(job.call))]

    def on_event(self, event: JobEvent, now_s: float) -> list[Move]:
        return []

    def on_time(self, now_s: float) -> list[Move]:
        return []

    def wake_s(self) -> float | None:
        return None


class RoundRobin:
    def __init__(self, nodes: Sequence[Node], chance: random.Random) -> None:
        self._nodes = len(nodes)
        self._next = chance.randrange(self._nodes)

    def choose(self, call: SimulatedCall) -> int:
        self._next += 1
        return self._next % self._nodes


class LeastInFlight:
    def __init__(self, nodes: Sequence[Node], chance: random.Random) -> None:
        self._nodes = nodes
        self._chance = chance

    def choose(self, call: SimulatedCall) -> int:
        return _least([node.in_flight for node in self._nodes], self._chance)


class SessionPin:
    """Keeps a session on the node of its first call, which is the one with the fewest sessions.
    Without sessions, calls with the same first segment count as one."""

    def __init__(self, nodes: Sequence[Node], chance: random.Random) -> None:
        self._chance = chance
        self._pins: dict[str, int] = {}
        self._pinned = [0] * len(nodes)

    def choose(self, call: SimulatedCall) -> int:
        session = call.session or str(call.path[0])
        node = self._pins.get(session)
        if node is None:
            node = self._pins[session] = _least(self._pinned, self._chance)
            self._pinned[node] += 1
        return node


@dataclass(slots=True)
class _SentTo:
    """The segments that one node was sent, the least recently used first."""

    tokens: int = 0
    segments: dict[int, int] = field(default_factory=dict)

    def matched(self, call: SimulatedCall) -> int:
        tokens = 0
        for segment, end in zip(call.path, call.ends, strict=True):
            if segment not in self.segments:
                break
            tokens = end
        return tokens

    def insert(self, call: SimulatedCall, most_tokens: int) -> None:
        segments = self.segments
        for position in range(len(call.path) - 1, -1, -1):
            segment = call.path[position]
            tokens = segments.pop(segment, None)
            if tokens is None:
                tokens = call.ends[position] - (call.ends[position - 1] if position else 0)
                self.tokens += tokens
            segments[segment] = tokens
        while self.tokens > most_tokens:
            self.tokens -= segments.pop(next(iter(segments)))


class TextTree:
    """A radix tree of the texts that were sent, like the cache-aware policy of the SGLang model
    gateway with its command line's thresholds. It chooses the node with the longest match if that
    is long enough, else the one with the smallest tree; if the numbers in flight differ much, the
    one with the fewest."""

    CACHE_THRESHOLD = 0.3
    BALANCE_ABS = 64
    BALANCE_REL = 1.5
    MAX_TOKENS = 67_108_864 // 4
    """The gateway's limit of characters, at four per token."""

    def __init__(self, nodes: Sequence[Node], chance: random.Random) -> None:
        self._nodes = nodes
        self._chance = chance
        self._sent = [_SentTo() for _ in nodes]

    def choose(self, call: SimulatedCall) -> int:
        node = self._find(call)
        self._sent[node].insert(call, self.MAX_TOKENS)
        return node

    def _find(self, call: SimulatedCall) -> int:
        counts = [node.in_flight for node in self._nodes]
        most, fewest = max(counts), min(counts)
        if most - fewest > self.BALANCE_ABS and most > self.BALANCE_REL * fewest:
            return _least(counts, self._chance)
        matches = [sent.matched(call) for sent in self._sent]
        best = max(matches)
        if best / call.prompt_tokens > self.CACHE_THRESHOLD:
            return matches.index(best)
        return _least([sent.tokens for sent in self._sent], self._chance)


def _least(values: Sequence[int], chance: random.Random) -> int:
    """The index of the smallest value, a random one of several."""
    fewest = min(values)
    places = [place for place, value in enumerate(values) if value == fewest]
    return places[0] if len(places) == 1 else chance.choice(places)


BASELINES: dict[str, Callable[[Sequence[Node], random.Random], Chooser]] = {
    "round_robin": RoundRobin,
    "least_in_flight": LeastInFlight,
    "session_pin": SessionPin,
    "text_tree": TextTree,
}


def baseline(name: str) -> MakePolicy:
    make = BASELINES[name]
    return lambda nodes, chance: SendAtOnce(make(nodes, chance))
