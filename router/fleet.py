"""What the router last heard of each node, and which name means which model. In memory only."""

import difflib
import time
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from node.protocol.messages import NodeStatus
from registry.records import AliasRecord, NodeRecord, ResidencyRecord
from router.errors import UnknownModel
from router.types import NodeView

NAME_CHARS = 200
"""Of a name that nobody has, no more is compared or repeated."""


class Fleet:
    """One owner of the last word of every node, of the aliases and of the known model names."""

    def __init__(
        self,
        aliases: Iterable[AliasRecord] = (),
        remembered: Iterable[ResidencyRecord] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`remembered` are the models of nodes before the router's start."""
        self._clock = clock
        self._nodes: dict[str, NodeView] = {}
        self._aliases = {alias.name: alias.targets[0].model for alias in aliases}
        self._remembered: dict[str, set[str]] = {}
        for row in remembered:
            self._remembered.setdefault(row.node_id, set()).add(row.model)
        self._known: frozenset[str] = frozenset()
        self._snapshot: tuple[NodeView, ...] = ()
        self._listeners: list[Callable[[], None]] = []

    def listen(self, on_change: Callable[[], None]) -> None:
        """`on_change` is called at each new word of a node, and when one comes or goes."""
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
            error="The node has not answered yet.",
            heard_s=0.0,
            remembered=frozenset(self._remembered.get(record.id, ())),
            state=record.state,
            is_paid=record.prices is not None,
        )
        self._nodes[record.id] = view
        self._changed(names=True)

    def remove(self, node_id: str) -> None:
        self._nodes.pop(node_id, None)
        self._remembered.pop(node_id, None)
        self._changed(names=True)

    def set_state(self, node_id: str, state: str) -> None:
        """An admin wants it so."""
        view = self._nodes.get(node_id)
        if view is not None:
            self._nodes[node_id] = replace(view, state=state)
            self._changed()

    def heard(self, node_id: str, status: NodeStatus) -> None:
        view = self._nodes.get(node_id)
        if view is None:
            return
        self._nodes[node_id] = replace(
            view, status=status, reachable=True, error=None, heard_s=self._clock()
        )
        self._changed(names=view.status is None or view.status.models != status.models)

    def lost(self, node_id: str, reason: str) -> None:
        view = self._nodes.get(node_id)
        if view is not None and (view.reachable or view.error != reason):
            self._nodes[node_id] = replace(view, reachable=False, error=reason)
            self._changed()

    def node(self, node_id: str) -> NodeView | None:
        return self._nodes.get(node_id)

    def by_name(self, name: str) -> NodeView | None:
        return next((view for view in self._snapshot if view.name == name), None)

    @property
    def snapshot(self) -> tuple[NodeView, ...]:
        """All nodes, immutable: what decisions are made from."""
        return self._snapshot

    def _changed(self, *, names: bool = False) -> None:
        """`names`: models may have come or gone, too."""
        self._snapshot = tuple(self._nodes.values())
        if names:
            self._learn_names()
        for on_change in self._listeners:
            on_change()

    # --- names ---

    def _learn_names(self) -> None:
        self._known = frozenset().union(*(view.model_names() for view in self._snapshot))

    @property
    def aliases(self) -> dict[str, str]:
        return dict(self._aliases)

    def set_alias(self, name: str, target: str) -> None:
        self._aliases[name] = target

    def remove_alias(self, name: str) -> None:
        self._aliases.pop(name, None)

    def resolve(self, name: str) -> str:
        """The model that `name` means. Raises `UnknownModel` naming near names."""
        model = self._aliases.get(name, name)
        if model in self._known:
            return model
        shown = name[:NAME_CHARS]
        near = difflib.get_close_matches(shown, sorted(self.names()), n=3)
        hint = f" Did you mean {', '.join(near)}?" if near else ""
        raise UnknownModel(f"No node of the fleet has the model {shown!r}.{hint}", param="model")

    def known(self, model: str) -> bool:
        return model in self._known

    def names(self) -> set[str]:
        """Every name that a request may use: models and aliases of models."""
        aliases = {name for name, target in self._aliases.items() if target in self._known}
        return aliases | self._known
