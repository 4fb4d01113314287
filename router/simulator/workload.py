"""The workload of a simulated fleet: sessions of calls whose prompts share prefixes.

A prompt is a path in one tree of segments, which is cut where prompts diverge or end. Caches,
chains and policies identify segments by number.
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from router.simulator.trace import Request, Trace

SEGMENT_TOKENS = 1024
"""Longest segment, which is the unit of eviction."""
SHARED_BLOCKS = 2
"""Number of leading blocks, the system prompt, that the clones of a session share."""
MIN_THINK_S = 0.2
MAX_THINK_S = 20.0
SERVED_S = 3.0
"""Seconds between two requests of a session that count as the response's duration; the rest is
think time."""


@dataclass(frozen=True, slots=True)
class SimulatedCall:
    """One request, with what its node stores of it."""

    number: int
    session: str
    """Empty in a trace without sessions."""
    model: str
    prompt_tokens: int
    output_tokens: int
    path: tuple[int, ...]
    """The prompt's segments."""
    ends: tuple[int, ...]
    """Tokens up to the end of each segment."""
    stored: tuple[int, ...]
    """The segments of prompt and response."""
    stored_ends: tuple[int, ...]
    marks: tuple[int, ...]
    """Segments of the prompt and the response at whose ends a node takes a snapshot."""
    think_s: float
    """Seconds from its response to the session's next call; infinite after the last."""


@dataclass(frozen=True, slots=True)
class Script:
    """Calls of which each is sent after the response to the previous one."""

    start_s: float
    calls: tuple[SimulatedCall, ...]


@dataclass(frozen=True, slots=True)
class Workload:
    scripts: tuple[Script, ...]
    models: tuple[str, ...]
    distinct_tokens: int
    """Tokens of all prompts, shared ones counted once: the size of a cache that would keep
    everything."""

    @property
    def calls(self) -> int:
        return sum(len(script.calls) for script in self.scripts)


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """Number of clones and the rate at which a trace is played."""

    clones: int
    """Copies of each session, which share only the system prompt."""
    gap_s: float
    """Seconds between the starts of two sessions; in a trace without sessions, of two clones."""
    seed: int


class _Tree:
    """All block sequences of a trace. Each has a number, which is higher than its parent's."""

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self._numbers: dict[tuple[int, int, int], int] = {}
        self._parents: list[int] = []
        self._tokens: list[int] = []
        self._children: list[int] = []
        self._cuts: set[int] = set()

    def __len__(self) -> int:
        return len(self._tokens)

    def add(self, root: int, request: Request) -> list[int]:
        """The request's sequences, the shortest first; `root` separates models."""
        parent, left = -1 - root, request.input_length
        ids = request.hash_ids
        numbers = []
        for block in ids:
            tokens = min(left, self.block_tokens)
            parent = self._number(parent, block, tokens)
            numbers.append(parent)
            left -= tokens
        if not ids:
            numbers.append(self.private(left, parent))
        return numbers

    def private(self, tokens: int, parent: int) -> int:
        """A sequence that no other one extends."""
        self._tokens.append(tokens)
        self._parents.append(parent)
        self._children.append(0)
        number = len(self._tokens) - 1
        self._cuts.add(number)
        return number

    def _number(self, parent: int, block: int, tokens: int) -> int:
        key = (parent, block, tokens)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._tokens)
            self._tokens.append(tokens)
            self._parents.append(parent)
            self._children.append(0)
            if parent >= 0:
                self._children[parent] += 1
        return number

    def cut(self, number: int) -> None:
        self._cuts.add(number)

    def cut_all(self) -> None:
        """Cuts where sequences diverge, and where a segment would be too long."""
        runs = [0] * len(self._tokens)
        for number, tokens in enumerate(self._tokens):
            parent = self._parents[number]
            before = runs[parent] if parent >= 0 and parent not in self._cuts else 0
            runs[number] = before + tokens
            if self._children[number] > 1 or runs[number] >= SEGMENT_TOKENS:
                self._cuts.add(number)

    def segments(self, numbers: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The path's segments, and the tokens up to the end of each."""
        path, ends, tokens = [], [], 0
        for number in numbers:
            tokens += self._tokens[number]
            if number in self._cuts:
                path.append(number)
                ends.append(tokens)
        return tuple(path), tuple(ends)

    @property
    def total_tokens(self) -> int:
        return sum(self._tokens)

    def tokens(self, numbers: Sequence[int]) -> int:
        return sum(self._tokens[number] for number in numbers)


class _Planner:
    """Turns the requests of a trace into calls, for any number of clones."""

    def __init__(self, trace: Trace) -> None:
        self._requests = trace.requests
        self._block_tokens = trace.block_tokens
        self.models = tuple(dict.fromkeys(request.model for request in trace.requests))
        roots = {model: root for root, model in enumerate(self.models)}
        tree = _Tree(trace.block_tokens)
        self._prompts = [tree.add(roots[each.model], each) for each in trace.requests]
        self.shared = set()
        for numbers in self._prompts:
            self.shared.update(numbers[:SHARED_BLOCKS])
        self.clone_tokens = tree.total_tokens - tree.tokens(sorted(self.shared))
        self.shared_tokens = tree.tokens(sorted(self.shared))
        self._stored = list(self._store(tree))
        for numbers in self._prompts:
            tree.cut(numbers[-1])
            tree.cut(numbers[min(len(numbers), SHARED_BLOCKS) - 1])
        tree.cut_all()
        self._stride = len(tree)
        self._paths = [tree.segments(numbers) for numbers in self._prompts]
        self._stored_paths = [tree.segments(numbers) for numbers, _ in self._stored]

    def _store(self, tree: _Tree) -> Iterator[tuple[list[int], tuple[int, ...]]]:
        """The segments that a node stores for each request, and the ends of its snapshots. A trace
        does not name a response's blocks. They are taken from the next request that extends this
        one, if it is long enough to contain them; otherwise nothing extends the response."""
        followers = self._followers()
        for index, numbers in enumerate(self._prompts):
            request = self._requests[index]
            full = numbers[: request.input_length // self._block_tokens] or numbers
            tree.cut(full[-1])
            follower = followers.get(index)
            if follower is not None:
                both = request.input_length + request.output_length
                stored = self._prompts[follower][: max(len(full), both // self._block_tokens)]
                tree.cut(stored[-1])
            elif request.output_length:
                stored = [*numbers, tree.private(request.output_length, numbers[-1])]
            else:
                stored = numbers
            ends = (full[-1], numbers[-1], stored[-1])
            yield stored, tuple(dict.fromkeys(end for end in ends if end in stored))

    def _followers(self) -> dict[int, int]:
        waiting: dict[int, int] = {}
        followers: dict[int, int] = {}
        for index, numbers in enumerate(self._prompts):
            length = self._requests[index].input_length
            for number in numbers:
                before = waiting.get(number)
                if before is None:
                    continue
                earlier = self._requests[before]
                if length >= earlier.input_length + earlier.output_length:
                    followers[before] = index
                    del waiting[number]
            # A prompt without ids is one block of its own, however long.
            full = min(self._requests[index].input_length // self._block_tokens, len(numbers))
            if full:
                waiting[numbers[full - 1]] = index
        return followers

    def call(self, index: int, clone: int, number: int, think_s: float) -> SimulatedCall:
        request = self._requests[index]
        path, ends = self._paths[index]
        stored, stored_ends = self._stored_paths[index]
        session = "" if request.session is None else f"{request.session}/{clone}"
        return SimulatedCall(
            number,
            session,
            request.model,
            request.input_length,
            request.output_length,
            self._of_clone(path, clone),
            ends,
            self._of_clone(stored, clone),
            stored_ends,
            self._of_clone(self._stored[index][1], clone),
            think_s,
        )

    def _of_clone(self, numbers: tuple[int, ...], clone: int) -> tuple[int, ...]:
        shift = clone * self._stride
        if not shift:
            return numbers
        shared = self.shared
        return tuple(number if number in shared else number + shift for number in numbers)


class PlannedTrace:
    """A trace that is ready to be played under any load."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._planner = _Planner(trace)
        self._groups: list[range] = []
        begin = 0
        for index, request in enumerate(trace.requests):
            following = trace.requests[index + 1 : index + 2]
            alone = request.session is None
            if alone or not following or following[0].session != request.session:
                self._groups.append(range(begin, index + 1))
                begin = index + 1

    def workload(self, load: LoadSpec) -> Workload:
        """The workload for a load. Equal loads give equal workloads."""
        chance = random.Random(load.seed)
        plans = [(group, clone) for clone in range(load.clones) for group in self._groups]
        if self._trace.has_sessions:
            chance.shuffle(plans)
        scripts, number = [], 0
        for place, (group, clone) in enumerate(plans):
            thinks_s = self._thinks_s(group)
            calls = tuple(
                self._planner.call(index, clone, number + step, thinks_s[step])
                for step, index in enumerate(group)
            )
            number += len(group)
            start_s = self._start_s(group, clone, place, load, chance)
            scripts.append(Script(start_s, calls))
        planner = self._planner
        distinct = planner.shared_tokens + load.clones * planner.clone_tokens
        return Workload(tuple(scripts), planner.models, distinct)

    def _start_s(
        self, group: range, clone: int, place: int, load: LoadSpec, chance: random.Random
    ) -> float:
        if self._trace.has_sessions:
            return (place + chance.random()) * load.gap_s
        begin_ms = self._trace.requests[0].timestamp
        at_s = (self._trace.requests[group[0]].timestamp - begin_ms) / 1000
        return at_s + (clone and (clone - 1 + chance.random()) * load.gap_s)

    def _thinks_s(self, group: range) -> tuple[float, ...]:
        times_s = [self._trace.requests[index].timestamp / 1000 for index in group]
        gaps_s = [after - before for before, after in zip(times_s, times_s[1:], strict=False)]
        thinks_s = (max(MIN_THINK_S, min(MAX_THINK_S, gap - SERVED_S)) for gap in gaps_s)
        return (*thinks_s, math.inf)
