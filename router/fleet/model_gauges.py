"""Counts loads and swaps of models from the nodes' statuses, and exposes their states as gauges."""

import logging
from dataclasses import dataclass, field

from node.protocol.messages import ModelState, ModelStatus, NodeStatus
from router.fleet.fleet import Fleet
from router.records.collectors import Values
from router.records.metrics import Metrics
from router.states import KIND_AGENT
from router.types import NodeView

log = logging.getLogger("mlx_fleet.nodes")

STALLED = "stalled"


@dataclass(slots=True)
class _Seen:
    """The last known loads of one node."""

    status: NodeStatus
    """The last status that was compared."""
    ready: dict[str, int] = field(default_factory=dict)
    """Models in memory, each with the number of its load."""
    has_unloaded: bool = False
    """True if a model has been unloaded since the last load."""


class ModelGauges:
    """Owner of the record of counted loads. Loads before the router's first status of a node do not
    count."""

    def __init__(self, fleet: Fleet, metrics: Metrics) -> None:
        self._fleet = fleet
        self._metrics = metrics
        self._seen: dict[str, _Seen] = {}
        fleet.listen(self._on_fleet)
        metrics.add_gauge(
            "model_state",
            "1 for the state that a model on a node is in.",
            ("node", "model", "state"),
            self._states,
        )
        metrics.add_gauge("node_up", "Whether a node can be reached.", ("node",), self._up)

    def _on_fleet(self) -> None:
        for view in self._fleet.snapshot:
            if view.status is None or view.kind != KIND_AGENT:
                continue
            seen = self._seen.get(view.node_id)
            if seen is None or seen.status.instance_id != view.status.instance_id:
                self._seen[view.node_id] = _Seen(view.status, _ready(view.status))
            elif seen.status is not view.status:
                self._compare(view.node_id, seen, view.status)

    def _compare(self, node_id: str, seen: _Seen, status: NodeStatus) -> None:
        ready = _ready(status)
        loaded = [
            model
            for model in status.models
            if model.name in ready and seen.ready.get(model.name) != model.generation
        ]
        seen.has_unloaded |= bool(seen.ready.keys() - ready.keys())
        for model in loaded:
            self._metrics.loaded(node_id, model, is_swap=seen.has_unloaded)
            took = "" if model.load_s is None else f" in {model.load_s:.1f} s"
            log.info("node %s has loaded %s%s", self._fleet.name_of(node_id), model.name, took)
        if loaded:
            seen.has_unloaded = False
        seen.status, seen.ready = status, ready

    def _states(self) -> Values:
        return [
            ((view.name, model.name, _state(view, model)), 1.0)
            for view in self._fleet.snapshot
            if view.status is not None and view.reachable
            for model in view.status.models
        ]

    def _up(self) -> Values:
        return [((view.name,), float(view.reachable)) for view in self._fleet.snapshot]


def _ready(status: NodeStatus) -> dict[str, int]:
    return {
        model.name: model.generation for model in status.models if model.state is ModelState.READY
    }


def _state(view: NodeView, model: ModelStatus) -> str:
    return STALLED if model.name in view.stalled else model.state.value
