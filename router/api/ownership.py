"""Ids that callers show: whose they are, and which node holds what they stand for."""

from node.protocol.ids import NodeId, parse_id
from router.dispatcher import node_away
from router.errors import UnknownModel, UnknownPreviousResponse
from router.fleet import Fleet
from router.node_client import KIND_AGENT
from router.types import Caller, NodeView

RESPONSE_PREFIX = "resp_"


def own_id(text: str, caller: Caller) -> NodeId | None:
    """The id taken apart; None where it is not one of the caller's."""
    found = parse_id(text)
    return found if found is not None and found.owner == caller.owner else None


def holder(fleet: Fleet, found: NodeId) -> NodeView | None:
    """The node agent that the id names; None where it is not part of the fleet."""
    view = fleet.node(found.node_id)
    return view if view is not None and view.kind == KIND_AGENT else None


def pinned_node_id(fleet: Fleet, caller: Caller, previous_id: str, model: str) -> str:
    """The node that holds the response that a request goes on from.

    Raises `UnknownPreviousResponse`, `UnknownModel` where that node does not have the model, and
    `NodeAway`.
    """
    found = own_id(previous_id, caller)
    param = "previous_response_id"
    if found is None or not previous_id.startswith(RESPONSE_PREFIX):
        raise UnknownPreviousResponse(param=param)
    view = holder(fleet, found)
    if view is None:
        raise UnknownPreviousResponse(
            "The node that held the response in `previous_response_id` is not part of the fleet "
            "any more; send the whole input without it.",
            param=param,
        )
    if not view.reachable:
        raise node_away(view, ", or send the whole input without `previous_response_id`")
    if model not in view.model_names():
        raise UnknownModel(
            f"The node {view.name}, which holds the response in `previous_response_id`, does not "
            f"have the model {model!r}; send the whole input without it.",
            param="model",
        )
    return view.node_id
