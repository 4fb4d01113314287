"""Ids that callers show: whose they are, and which node holds what they stand for."""

from collections.abc import Mapping

from node.protocol.ids import RESPONSE_PREFIX, NodeId, parse_id, response_of
from router.dispatch.dispatcher import node_away
from router.errors import UnknownItem, UnknownModel, UnknownPreviousResponse
from router.fleet.fleet import Fleet
from router.states import KIND_AGENT
from router.types import Caller, NodeView


def own_id(text: str, caller: Caller) -> NodeId | None:
    """The id taken apart; None where it is not one of the caller's."""
    found = parse_id(text)
    return found if found is not None and found.owner == caller.owner else None


def holder(fleet: Fleet, found: NodeId) -> NodeView | None:
    """The node agent that the id names; None where it is not part of the fleet."""
    view = fleet.node(found.node_id)
    return view if view is not None and view.kind == KIND_AGENT else None


def node_of_response(fleet: Fleet, caller: Caller, previous_id: str, model: str) -> str:
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
    _need_served(
        view,
        model,
        "the response in `previous_response_id`",
        "send the whole input without `previous_response_id`",
    )
    return view.node_id


def node_of_items(fleet: Fleet, caller: Caller, items: Mapping[str, str], model: str) -> str:
    """The node that holds the items that a request refers to; `items` are their ids by path. Empty
    where no id is of the fleet: any node can say that it does not know it.

    Raises `UnknownItem`, also where two nodes hold them, `UnknownModel` where the node does not
    have the model, and `NodeAway`.
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
    found = own_id(response_id, caller)
    if found is None:
        raise UnknownItem(param=path)
    view = holder(fleet, found)
    if view is None:
        raise UnknownItem(
            f"The node that held the item in {path} is not part of the fleet any more; send the "
            "item whole.",
            param=path,
        )
    return view


def _need_served(view: NodeView, model: str, what: str, otherwise: str) -> None:
    """That the node can serve a request which needs `what` it holds; `otherwise` is what else the
    caller may do."""
    if not view.reachable:
        raise node_away(view, f", or {otherwise}")
    if model not in view.model_names():
        raise UnknownModel(
            f"The node {view.name}, which holds {what}, does not have the model {model!r}; "
            f"{otherwise}.",
            param="model",
        )
