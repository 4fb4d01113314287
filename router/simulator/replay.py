"""Plays a workload on simulated nodes under one policy, as events in virtual time."""

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from router.simulator.fleet import NodeSpec
from router.simulator.node import Job, JobBegan, JobEnded, JobEvent, Node
from router.simulator.policies import Dispatch, MakePolicy, Move
from router.simulator.workload import Script, Workload


class _Arrival(NamedTuple):
    script: Script
    step: int


class _Again(NamedTuple):
    job: Job


class _NodeEvent(NamedTuple):
    node: Node
    version: int


class _Wake(NamedTuple):
    version: int


_Event = _Arrival | _Again | _NodeEvent | _Wake


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The result of playing a workload."""

    jobs: tuple[Job, ...]
    """Jobs by the number of their call."""
    reprefilled_tokens: int
    """Prompt tokens that were computed although some node had computed them before."""
    busy_s: tuple[float, ...]
    """Busy seconds of each node."""


class _Replay:
    def __init__(
        self, workload: Workload, specs: Sequence[NodeSpec], make: MakePolicy, seed: int
    ) -> None:
        models = workload.models
        self._nodes = [Node(number, spec, models) for number, spec in enumerate(specs)]
        self._policy = make(self._nodes, random.Random(seed))
        self._heap: list[tuple[float, int, _Event]] = []
        self._order = count()
        self._jobs: dict[int, Job] = {}
        self._scripts: dict[int, _Arrival] = {}
        """By the number of an open call, its place in its session."""
        self._computed: set[int] = set()
        self._reprefilled = 0
        self._wake_s: float | None = None
        self._wakes = 0
        for script in workload.scripts:
            self._at(script.start_s, _Arrival(script, 0))

    def play(self) -> ReplayResult:
        while self._heap:
            now_s, _, event = heapq.heappop(self._heap)
            self._make(self._handle(event, now_s), now_s)
            self._plan_wake(now_s)
        jobs = tuple(self._jobs[number] for number in sorted(self._jobs))
        stuck = sum(job.ended_s != job.ended_s for job in jobs)
        if stuck:
            raise RuntimeError(f"{stuck} calls were never completed: the policy has lost them")
        return ReplayResult(jobs, self._reprefilled, tuple(node.busy_s for node in self._nodes))

    def _at(self, at_s: float, event: _Event) -> None:
        heapq.heappush(self._heap, (at_s, next(self._order), event))

    def _handle(self, event: _Event, now_s: float) -> list[Move]:
        match event:
            case _NodeEvent(node, version):
                if version != node.version:
                    return []
                return self._report(node, node.advance(now_s), now_s)
            case _Arrival(script, step):
                call = script.calls[step]
                job = self._jobs[call.number] = Job(call, now_s)
                self._scripts[call.number] = event
                return self._policy.on_arrival(job, now_s)
            case _Again(job):
                return self._policy.on_arrival(job, now_s)
            case _Wake(version):
                if version != self._wakes:
                    return []
                self._wake_s = None
                return self._policy.on_time(now_s)

    def _make(self, moves: list[Move], now_s: float) -> None:
        for move in moves:
            if isinstance(move, Dispatch):
                node = self._nodes[move.node]
                events = node.submit(move.job, now_s)
                self._make(self._report(node, events, now_s), now_s)
            else:
                self._at(now_s + move.after_s, _Again(move.job))

    def _report(self, node: Node, events: list[JobEvent], now_s: float) -> list[Move]:
        """Records events on a node and passes them to the policy."""
        if (next_s := node.next_s()) < float("inf"):
            self._at(next_s, _NodeEvent(node, node.version))
        moves: list[Move] = []
        for event in events:
            if isinstance(event, JobBegan):
                self._count_again(event)
            elif isinstance(event, JobEnded):
                self._go_on(event.job, now_s)
            moves += self._policy.on_event(event, now_s)
        return moves

    def _count_again(self, began: JobBegan) -> None:
        call = began.job.call
        for position in range(began.reach.positions, len(call.path)):
            segment = call.path[position]
            if segment in self._computed:
                begin = call.ends[position - 1] if position else 0
                self._reprefilled += call.ends[position] - begin
            else:
                self._computed.add(segment)

    def _go_on(self, job: Job, now_s: float) -> None:
        self._computed.update(job.call.stored)
        script, step = self._scripts.pop(job.call.number)
        if step + 1 < len(script.calls):
            self._at(now_s + job.call.think_s, _Arrival(script, step + 1))

    def _plan_wake(self, now_s: float) -> None:
        wake_s = self._policy.wake_s()
        if wake_s != self._wake_s:
            self._wakes += 1
            self._wake_s = wake_s
            if wake_s is not None:
                self._at(max(now_s, wake_s), _Wake(self._wakes))


def play(
    workload: Workload, specs: Sequence[NodeSpec], make: MakePolicy, seed: int = 1
) -> ReplayResult:
    """Plays the workload. Equal arguments give equal results."""
    return _Replay(workload, specs, make, seed).play()
