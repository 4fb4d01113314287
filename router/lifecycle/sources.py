"""Finds the nodes that a model can be copied from.

Pure.
"""

from collections.abc import Iterable
from urllib.parse import urlsplit

from node.protocol.messages import ModelState
from router.states import KIND_AGENT
from router.types import NodeView
from serving.own_machine import is_loopback


def sources(fleet: Iterable[NodeView], model: str, to: NodeView) -> list[NodeView]:
    """Returns the agents that `to` can copy the model from."""
    return [
        view
        for view in fleet
        if view.node_id != to.node_id and has_whole(view, model) and can_reach(to, view)
    ]


def unreachable_source(fleet: Iterable[NodeView], model: str, to: NodeView) -> NodeView | None:
    """Returns a node that has the model, but at an address which `to` cannot reach."""
    return next(
        (view for view in fleet if has_whole(view, model) and not can_reach(to, view)), None
    )


def has_whole(view: NodeView, model: str) -> bool:
    """Returns True if it is a reachable agent that has the whole model on disk."""
    if view.kind != KIND_AGENT or not view.reachable:
        return False
    status = view.model(model)
    return status is not None and status.state is not ModelState.PULLING


def can_reach(to: NodeView, source: NodeView) -> bool:
    """Returns True if the router's address of `source` means the same machine for `to`."""
    return not _is_local(source) or _is_local(to)


def _is_local(view: NodeView) -> bool:
    return is_loopback(urlsplit(view.url).hostname or "")
