"""Where a model can be copied from: the nodes that have all of it, by what they told.

Pure.
"""

from collections.abc import Iterable
from urllib.parse import urlsplit

from node.protocol.messages import ModelState
from router.states import KIND_AGENT
from router.types import NodeView
from serving.own_machine import is_loopback


def sources(fleet: Iterable[NodeView], model: str, to: NodeView) -> list[NodeView]:
    """The agents that `to` can copy the model from."""
    return [
        view
        for view in fleet
        if view.node_id != to.node_id and has_whole(view, model) and can_reach(to, view)
    ]


def hidden(fleet: Iterable[NodeView], model: str, to: NodeView) -> NodeView | None:
    """One that has the model, but where `to` does not find it."""
    return next(
        (view for view in fleet if has_whole(view, model) and not can_reach(to, view)), None
    )


def has_whole(view: NodeView, model: str) -> bool:
    """Whether it is an agent that can be reached and has all of the model on disk."""
    if view.kind != KIND_AGENT or not view.reachable or view.status is None:
        return False
    return any(
        each.name == model and each.state is not ModelState.PULLING for each in view.status.models
    )


def can_reach(to: NodeView, source: NodeView) -> bool:
    """Whether the address of `source` that the router has means the same machine for `to`."""
    return not _is_local(source) or _is_local(to)


def _is_local(view: NodeView) -> bool:
    return is_loopback(urlsplit(view.url).hostname or "")
