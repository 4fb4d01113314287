"""The last known state of each node, and the fleet's models. In memory only."""

import time
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from node.protocol.messages import NodeStatus
from registry.records import NodeRecord, ResidencyRecord
from router.prices import Prices
from router.types import NodeView
from router.waking import Waking


class Fleet:
    """Owner of all nodes' last states and of the known models."""

    def __init__(
        self,
        remembered: Iterable[ResidencyRecord] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`remembered` lists the models that nodes had before the router's start."""
        self._clock = clock
        self._nodes: dict[str, NodeView] = {}
        self._remembered: dict[str, set[str]] = {}
        for row in remembered:
            self._remembered.setdefault(row.node_id, set()).add(row.model)
        self._models: frozenset[str] = frozenset()
        self._paid_models: frozenset[str] = frozenset()
        self._snapshot: tuple[NodeView, ...] = ()
        self._listeners: list[Callable[[], None]] = []

    def listen(self, on_change: Callable[[], None]) -> None:
        """Registers a callback for every status, and for added, removed and lost nodes."""
        self._listeners.append(on_change)

    # --- nodes ---

    def add(self, record: NodeRecord) -> None:
        view = NodeView(
            node_id=record.id,
            name=record.name,
            kind=record.kind,
            url=record.url,
            status=None,
            reachable=False,
            error="The node has not responded yet.",
            status_at_s=0.0,
            remembered=frozenset(self._remembered.get(record.id, ())),
            state=record.state,
            prices=Prices(**record.prices) if record.prices is not None else None,
        )
        self._nodes[record.id] = view
        self._changed(models=True)

    def remove(self, node_id: str) -> None:
        self._nodes.pop(node_id, None)
        self._remembered.pop(node_id, None)
        self._changed(models=True)

    def set_state(self, node_id: str, state: str) -> None:
        """Sets the state that an admin has chosen."""
        view = self._nodes.get(node_id)
        if view is not None:
            self._nodes[node_id] = replace(view, state=state)
            self._changed()

    def set_url(self, node_id: str, url: str) -> None:
        """Sets the node's present address."""
        view = self._nodes.get(node_id)
        if view is not None and view.url != url:
            self._nodes[node_id] = replace(view, url=url)
            self._changed()

    def set_unaccepted(self, node_id: str, models: tuple[str, ...]) -> None:
        """Sets the models that the server lists and no admin has accepted."""
        view = self._nodes.get(node_id)
        if view is not None and view.unaccepted != models:
            self._nodes[node_id] = replace(view, unaccepted=models)
            self._changed()

    def set_stalled(self, node_id: str, models: frozenset[str]) -> None:
        """Sets the models with which the node makes no progress although it is connected."""
        view = self._nodes.get(node_id)
        if view is not None and view.stalled != models:
            self._nodes[node_id] = replace(view, stalled=models)
            self._changed()

    def set_waking(self, node_id: str, waking: Waking | None) -> None:
        """Sets whether requests may wake the node, and how far that has come."""
        view = self._nodes.get(node_id)
        if view is not None and view.waking != waking:
            self._nodes[node_id] = replace(view, waking=waking)
            self._changed()

    def on_status(self, node_id: str, status: NodeStatus) -> None:
        view = self._nodes.get(node_id)
        if view is None:
            return
        self._nodes[node_id] = replace(
            view,
            status=status,
            reachable=True,
            error=None,
            status_at_s=self._clock(),
            silent_since_s=None,
        )
        self._changed(models=view.status is None or view.status.models != status.models)

    def lost(self, node_id: str, reason: str, *, silent: bool = False) -> None:
        """Marks the node as unreachable for this reason; with `silent` it sent no response at
        all."""
        view = self._nodes.get(node_id)
        if view is None:
            return
        since_s = view.silent_since_s
        if silent != (since_s is not None):
            since_s = self._clock() if silent else None
        now = replace(view, reachable=False, error=reason, silent_since_s=since_s)
        if now != view:
            self._nodes[node_id] = now
            self._changed()

    def node(self, node_id: str) -> NodeView | None:
        return self._nodes.get(node_id)

    def name_of(self, node_id: str) -> str:
        """The node's name, or its id if it has been removed."""
        view = self._nodes.get(node_id)
        return view.name if view else node_id

    def by_name(self, name: str) -> NodeView | None:
        return next((view for view in self._snapshot if view.name == name), None)

    @property
    def snapshot(self) -> tuple[NodeView, ...]:
        """All nodes, immutable, as input of decisions."""
        return self._snapshot

    def _changed(self, *, models: bool = False) -> None:
        """Updates the snapshot and calls the listeners; `models` is True if models may have come or
        gone."""
        self._snapshot = tuple(self._nodes.values())
        if models:
            self._learn_models()
        for on_change in self._listeners:
            on_change()

    # --- models ---

    def _learn_models(self) -> None:
        free = (view.model_names() for view in self._snapshot if not view.is_paid)
        paid = (view.model_names() for view in self._snapshot if view.is_paid)
        self._models = frozenset().union(*free)
        self._paid_models = frozenset().union(*paid) - self._models

    @property
    def models(self) -> frozenset[str]:
        """Models that a request may name."""
        return self._models

    @property
    def paid_models(self) -> frozenset[str]:
        """Models that only paid servers have; only aliases lead to them."""
        return self._paid_models
