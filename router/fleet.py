"""What the router last heard of each node, and which name means which model. In memory only."""

import difflib
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from node.protocol.messages import NodeStatus
from registry.records import AliasRecord, NodeRecord
from router.errors import UnknownModel
from router.types import NodeView


class Fleet:
    """One owner of the last word of every node, of the aliases and of the known model names."""

    def __init__(
        self,
        aliases: Iterable[AliasRecord] = (),
        known_models: Iterable[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._nodes: dict[str, NodeView] = {}
        self._aliases = {alias.name: alias.target for alias in aliases}
        self._known = set(known_models)
        self._snapshot: tuple[NodeView, ...] = ()

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
        )
        self._set(view)

    def remove(self, node_id: str) -> None:
        self._nodes.pop(node_id, None)
        self._snapshot = tuple(self._nodes.values())

    def heard(self, node_id: str, status: NodeStatus) -> None:
        view = self._nodes.get(node_id)
        if view is None:
            return
        self._known.update(model.name for model in status.models)
        self._set(replace(view, status=status, reachable=True, error=None, heard_s=self._clock()))

    def lost(self, node_id: str, reason: str) -> None:
        view = self._nodes.get(node_id)
        if view is not None and (view.reachable or view.error != reason):
            self._set(replace(view, reachable=False, error=reason))

    def node(self, node_id: str) -> NodeView | None:
        return self._nodes.get(node_id)

    def by_name(self, name: str) -> NodeView | None:
        return next((view for view in self._snapshot if view.name == name), None)

    @property
    def snapshot(self) -> tuple[NodeView, ...]:
        """All nodes, immutable: what decisions are made from."""
        return self._snapshot

    def _set(self, view: NodeView) -> None:
        self._nodes[view.node_id] = view
        self._snapshot = tuple(self._nodes.values())

    # --- names ---

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
        near = difflib.get_close_matches(name, sorted(self.names()), n=3)
        hint = f" Did you mean {', '.join(near)}?" if near else ""
        raise UnknownModel(f"No node of the fleet has the model {name!r}.{hint}", param="model")

    def known(self, model: str) -> bool:
        return model in self._known

    def names(self) -> set[str]:
        """Every name that a request may use: models and aliases of models."""
        return self._known | {
            name for name, target in self._aliases.items() if target in self._known
        }
