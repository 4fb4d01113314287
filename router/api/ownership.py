"""Checks whether ids that callers send are their own, and finds the node that holds the object."""

from collections.abc import Mapping

from node.protocol.ids import RESPONSE_PREFIX, NodeId, parse_id, response_of
from router.dispatch.dispatcher import owner_unreachable
from router.errors import RouterError, UnknownItem, UnknownModel, UnknownPreviousResponse
from router.fleet.fleet import Fleet
from router.states import KIND_AGENT
from router.types import Caller, NodeView


def parse_own_id(text: str, caller: Caller) -> NodeId | None:
    """Parses the id; returns None if it is not one of the caller's."""
    found = parse_id(text)
    return found if found is not None and found.owner == caller.owner else None


def node_of_own(
    fleet: Fleet,
    caller: Caller,
    text: str,
    unknown: type[RouterError],
    gone: str,
    *,
    param: str | None = None,
) -> NodeView:
    """Returns the node agent that an id of the caller's names.

    Raises `unknown`: with its default message if the id is not one of the caller's, with `gone` if
    the node is not part of the fleet.
    """
    found = parse_own_id(text, caller)
    if found is None:
        raise unknown(param=param)
    view = fleet.node(found.node_id)
    if view is None or view.kind != KIND_AGENT:
        raise unknown(gone, param=param)
    return view


def node_of_response(fleet: Fleet, caller: Caller, previous_id: str, model: str) -> str:
    """Returns the id of the node that stores the response which a request continues.

    Raises `UnknownPreviousResponse`, `UnknownModel` if that node does not have the model, and
    `OwnerUnreachable`.
    """
    param = "previous_response_id"
    if not previous_id.startswith(RESPONSE_PREFIX):
        raise UnknownPreviousResponse(param=param)
    view = node_of_own(
        fleet,
        caller,
        previous_id,
        UnknownPreviousResponse,
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
    model, and `OwnerUnreachable`.
    """
    first_path, first = "", None
    for path, item_id in items.items():
        response_id = response_of(item_id)
        if response_id is None or parse_id(response_id) is None:
            continue
        gone = (
            f"The node that stored the item in {path} is not part of the fleet any more; send the "
            "item whole."
        )
        view = node_of_own(fleet, caller, response_id, UnknownItem, gone, param=path)
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


def _need_served(view: NodeView, model: str, what: str, otherwise: str) -> None:
    """Raises `OwnerUnreachable` or `UnknownModel` if the node cannot serve a request that needs
    `what` it stores; `otherwise` names the caller's alternative."""
    if not view.reachable:
        raise owner_unreachable(view, f", or {otherwise}")
    if model not in view.model_names():
        raise UnknownModel(
            f"The node {view.name}, which stores {what}, does not have the model {model!r}; "
            f"{otherwise}.",
            param="model",
        )
