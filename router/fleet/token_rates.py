"""Tokens per second of loaded models, from the counts in their nodes' statuses."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from node.protocol.messages import ModelStatus
from router.fleet.fleet import Fleet
from router.types import NodeView

WINDOW_S = 4.0
"""Shortest interval of a rate, once statuses have come for as long: two heartbeats."""
_MOST_COUNTS = 32
"""A node that sends statuses faster than that gets rates over a shorter interval."""


class TokensPerS(NamedTuple):
    """Tokens per second of one model on one node."""

    prefill: float
    decode: float


class _Counts(NamedTuple):
    at_s: float
    prefilled: int
    decoded: int


class _Load(NamedTuple):
    """One load of a model, since the counts begin at 0 with each."""

    instance_id: str
    generation: int


class _CountedLoad(NamedTuple):
    load: _Load
    counts: deque[_Counts]


class TokenRates:
    """Owner of the latest counts of each loaded model."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._read_at_s: dict[str, float] = {}
        """Times of the statuses that have been read, by node."""
        self._seen: dict[str, dict[str, _CountedLoad]] = {}
        fleet.listen(self._on_fleet)

    def of(self, node_id: str, model: str) -> TokensPerS | None:
        """The rates over the last seconds; None if the node cannot be reached, does not count
        tokens, or has sent one status only since the load."""
        view, seen = self._fleet.node(node_id), self._seen.get(node_id, {}).get(model)
        if view is None or not view.reachable or seen is None or len(seen.counts) < 2:
            return None
        first, last = seen.counts[0], seen.counts[-1]
        passed_s = last.at_s - first.at_s
        return TokensPerS(
            max(0, last.prefilled - first.prefilled) / passed_s,
            max(0, last.decoded - first.decoded) / passed_s,
        )

    def _on_fleet(self) -> None:
        views = self._fleet.snapshot
        for view in views:
            if view.status is not None and self._read_at_s.get(view.node_id) != view.status_at_s:
                self._read(view)
        if len(self._read_at_s) > len(views):
            there = {view.node_id for view in views}
            for node_id in self._read_at_s.keys() - there:
                del self._read_at_s[node_id]
                self._seen.pop(node_id, None)

    def _read(self, view: NodeView) -> None:
        assert view.status is not None
        self._read_at_s[view.node_id] = view.status_at_s
        before = self._seen.get(view.node_id, {})
        self._seen[view.node_id] = {
            model.name: _counted(
                before.get(model.name), model, view.status.instance_id, view.status_at_s
            )
            for model in view.status.models
            if model.decoded_tokens is not None
        }


def _counted(
    seen: _CountedLoad | None, model: ModelStatus, instance_id: str, at_s: float
) -> _CountedLoad:
    load = _Load(instance_id, model.generation)
    if seen is None or seen.load != load:
        seen = _CountedLoad(load, deque(maxlen=_MOST_COUNTS))
    counts = seen.counts
    counts.append(_Counts(at_s, model.prefilled_tokens or 0, model.decoded_tokens or 0))
    while len(counts) > 2 and at_s - counts[1].at_s >= WINDOW_S:
        counts.popleft()
    return seen
