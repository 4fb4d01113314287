"""Checks whether ids that callers send are their own, and finds the node that holds the object."""

from collections.abc import Mapping

from node.protocol.ids import RESPONSE_PREFIX, NodeId, parse_id, response_of
from router.dispatch.dispatcher import node_away
from router.errors import UnknownItem, UnknownModel, UnknownPreviousResponse
from router.fleet.fleet import Fleet
from router.states import KIND_AGENT
from router.types import Caller, NodeView


def parse_own_id(text: str, caller: Caller) -> NodeId | None:
    """Parses the id; returns None if it is not one of the caller's."""
    found = parse_id(text)
    return found if found is not None and found.owner == caller.owner else None


def node_of(fleet: Fleet, found: NodeId) -> NodeView | None:
    """Returns the node agent that the id names; None if it is not part of the fleet."""
    view = fleet.node(found.node_id)
    return view if view is not None and view.kind == KIND_AGENT else None


def node_of_response(fleet: Fleet, caller: Caller, previous_id: str, model: str) -> str:
    """Returns the id of the node that stores the response which a request continues.

    Raises `UnknownPreviousResponse`, `UnknownModel` if that node does not have the model, and
    `NodeAway`.
    """
    found = parse_own_id(previous_id, caller)
    param = "previous_response_id"
    if found is None or not previous_id.startswith(RESPONSE_PREFIX):
        raise UnknownPreviousResponse(param=param)
    view = node_of(fleet, found)
    if view is None:
        raise UnknownPreviousResponse(
            "The node that stored the response in `previous_response_id` is not part of the fleet "
            "any more; send the whole input without it.",
            param=param,
        )
    _need_served(
        view,
        model,
        "the response in `previous_response_id`",
        "send the whole input without `previous_response_id`",
    )
    return view.node_id


def node_of_items(fleet: Fleet, caller: Caller, items: Mapping[str, str], model: str) -> str:
    """Returns the id of the node that stores the items a request refers to; `items` maps paths to
    item ids. Returns "" if no id was made by this fleet; then any node can report it as unknown.

    Raises `UnknownItem`, also if two nodes store them, `UnknownModel` if the node does not have the
    model, and `NodeAway`.
    """
    first_path, first = "", None
    for path, item_id in items.items():
        response_id = response_of(item_id)
        if response_id is None or parse_id(response_id) is None:
            continue
        view = _item_holder(fleet, caller, response_id, path)
        if first is None:
            first_path, first = path, view
            _need_served(view, model, f"the item in {path}", "send the item whole")
        elif first.node_id != view.node_id:
            raise UnknownItem(
                f"The item in {path} is on the node {view.name}, that in {first_path} on "
                f"{first.name}: a request can refer to items of one node only; send the others "
                "whole.",
                param=path,
            )
    return first.node_id if first else ""


def _item_holder(fleet: Fleet, caller: Caller, response_id: str, path: str) -> NodeView:
    found = parse_own_id(response_id, caller)
    if found is None:
        raise UnknownItem(param=path)
    view = node_of(fleet, found)
    if view is None:
        raise UnknownItem(
            f"The node that stored the item in {path} is not part of the fleet any more; send the "
            "item whole.",
            param=path,
        )
    return view


def _need_served(view: NodeView, model: str, what: str, otherwise: str) -> None:
    """Raises `NodeAway` or `UnknownModel` if the node cannot serve a request that needs `what` it
    stores; `otherwise` names the caller's alternative."""
    if not view.reachable:
        raise node_away(view, f", or {otherwise}")
    if model not in view.model_names():
        raise UnknownModel(
            f"The node {view.name}, which stores {what}, does not have the model {model!r}; "
            f"{otherwise}.",
            param="model",
        )
