"""A bound for any policy: rules like those of the shipped scheduler, with knowledge that no router
can have.

It sees the caches, the lengths of responses and the time of each session's next call. The bound is
not strict, since it optimizes each decision by itself.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from router.simulator.node import FirstToken, Job, JobBegan, JobEnded, JobEvent, Node
from router.simulator.policies import Dispatch, Move
from router.simulator.workload import SimulatedCall

AGEING = 0.1
"""Seconds of work that a second of waiting compensates for."""


@dataclass(slots=True)
class _Session:
    node: int
    next_s: float
    """Time of its next call; infinite after its last."""


@dataclass(frozen=True, slots=True)
class _Offer:
    """The cost of a waiting call on one node."""

    service_s: float
    others_s: float
    """Seconds taken from others: evicted prefixes that they will use again, and delays."""


class Oracle:
    """A policy that queues calls until a node is free, the shortest work first."""

    def __init__(self, nodes: Sequence[Node], chance: random.Random) -> None:
        self._nodes = nodes
        self._chance = chance
        self._waiting: list[Job] = []
        self._sessions: dict[str, _Session] = {}
        self._owners: dict[int, str] = {}
        """By segment, the session that stored it last."""
        self._used_s = [-1.0] * len(nodes)

    def on_arrival(self, job: Job, now_s: float) -> list[Move]:
        self._waiting.append(job)
        return self._place(now_s)

    def on_event(self, event: JobEvent, now_s: float) -> list[Move]:
        match event:
            case JobBegan():
                return []
            case FirstToken(job):
                self._expect(job.call, job.node, now_s + self._decode_s(job.call, job.node))
            case JobEnded(job):
                self._expect(job.call, job.node, now_s)
                self._owners.update(dict.fromkeys(job.call.stored, job.call.session))
        return self._place(now_s)

    def on_time(self, now_s: float) -> list[Move]:
        return []

    def wake_s(self) -> float | None:
        return None

    def _expect(self, call: SimulatedCall, node: int, ended_s: float) -> None:
        self._sessions[call.session] = _Session(node, ended_s + call.think_s)

    def _place(self, now_s: float) -> list[Move]:
        moves: list[Move] = []
        backlog_s = [self._backlog_s(node, now_s) for node in self._nodes]
        if not any(map(self._is_free, range(len(self._nodes)), backlog_s)):
            return moves
        begins_s = [now_s + each_s for each_s in backlog_s]
        next_turns = self._next_turns()
        offers = [(job, self._offers(job.call, begins_s, next_turns)) for job in self._waiting]
        offers.sort(key=lambda each: _rank(each[0], each[1], now_s))
        for job, each in offers:
            node = self._best(each, backlog_s)
            if self._is_free(node, backlog_s[node]):
                moves.append(Dispatch(job, node))
                self._waiting.remove(job)
                self._used_s[node] = now_s
                first_s = now_s + each[node].service_s
                self._expect(job.call, node, first_s + self._decode_s(job.call, node))
            backlog_s[node] += each[node].service_s
        return moves

    def _backlog_s(self, node: Node, now_s: float) -> float:
        busy_s = node.prefill_ends_s - now_s if node.prefill_ends_s < math.inf else 0.0
        waiting_s = sum(node.service_s(job.call, node.usable(job.call)) for job in node.waiting)
        return max(0.0, busy_s) + waiting_s

    def _is_free(self, number: int, backlog_s: float) -> bool:
        node = self._nodes[number]
        return backlog_s <= 0.0 and node.in_flight < node.spec.max_rows

    def _decode_s(self, call: SimulatedCall, number: int) -> float:
        node = self._nodes[number]
        return call.output_tokens / node.spec.row_tokens_per_s(node.rows + 1)

    def _next_turns(self) -> list[list[tuple[float, str]]]:
        """For each node, the time and name of its sessions that have further calls."""
        found: list[list[tuple[float, str]]] = [[] for _ in self._nodes]
        for name, session in self._sessions.items():
            if session.next_s < math.inf:
                found[session.node].append((session.next_s, name))
        return found

    def _offers(
        self, call: SimulatedCall, begins_s: list[float], next_turns: list[list[tuple[float, str]]]
    ) -> list[_Offer]:
        return [
            self._offer(call, node, begins_s[number], next_turns[number])
            for number, node in enumerate(self._nodes)
        ]

    def _offer(
        self, call: SimulatedCall, node: Node, begin_s: float, next_turns: list[tuple[float, str]]
    ) -> _Offer:
        reach = node.usable(call)
        service_s = node.service_s(call, reach)
        if call.model not in node.ready_s:
            service_s += node.load_s(call.model)
        end_s = begin_s + service_s
        delays_s = sum(
            min(end_s - next_s, service_s)
            for next_s, session in next_turns
            if next_s < end_s and session != call.session
        )
        lost_s = self._lost_s(call, node, call.stored_ends[-1] - reach.tokens)
        return _Offer(service_s, lost_s + delays_s)

    def _lost_s(self, call: SimulatedCall, node: Node, tokens: int) -> float:
        lost = 0
        for segment, cached in node.cache(call.model).evicted_by(tokens):
            owner = self._sessions.get(self._owners.get(segment, ""))
            if owner is not None and owner.next_s < math.inf:
                lost += cached
        spec = node.spec
        return lost / (spec.restore_tokens_per_s if spec.disk_tokens else spec.prefill_tokens_per_s)

    def _best(self, offers: list[_Offer], backlog_s: list[float]) -> int:
        costs_s = [
            backlog_s[number] + offer.service_s + offer.others_s
            for number, offer in enumerate(offers)
        ]
        least_s = min(costs_s) + 0.02
        near = [number for number, cost_s in enumerate(costs_s) if cost_s <= least_s]
        return min(near, key=lambda number: self._used_s[number])


def _rank(job: Job, offers: list[_Offer], now_s: float) -> tuple[float, int]:
    least_s = min(offer.service_s for offer in offers)
    return least_s - AGEING * (now_s - job.arrived_s), job.call.number
