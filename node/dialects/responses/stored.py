"""Responses of `/v1/responses/{id}` and the paths below it, made from a stored response."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from node.dialects.fields.field_table import unsupported
from node.dialects.responses.body import encrypts_reasoning
from node.dialects.responses.items import Item, reasoning_text, sealed
from node.dialects.responses.response import StoredResponse
from node.errors import BadRequest, UnknownItem, UnknownResponse

MAX_LISTED = 100
_DEFAULT_LISTED = 20

_encode = msgspec.json.Encoder().encode

Query = Mapping[str, Sequence[str]]
"""Values of a query string by name; the name of a list may end in `[]`."""


def unknown_response(response_id: str) -> UnknownResponse:
    """Returns the error that there is no response with this id."""
    return UnknownResponse(
        f"There is no response {response_id!r} here: it was not stored, was deleted, or was "
        "evicted for newer ones.",
        param="response_id",
    )


def check_retrieve(query: Query) -> bool:
    """Checks the query of a GET; True if it requests `encrypted_content`. Raises `BadRequest`, and
    `Unsupported` for a stream of a stored response."""
    if _last(query, "stream") not in (None, "", "false"):
        raise unsupported("the stream of a stored response", "stream")
    if _last(query, "starting_after") is not None:
        raise unsupported("the stream of a stored response", "starting_after")
    return _seals(query)


def retrieved_body(body: bytes, *, seals_reasoning: bool) -> bytes:
    """Returns the body of a GET of a response; `body` is the stored JSON."""
    if not seals_reasoning:
        return body
    response = msgspec.json.decode(body)
    response["output"] = _sealed_items(response["output"])
    return _encode(response)


def deleted_body(response_id: str) -> bytes:
    """Returns the body of a DELETE."""
    return _encode({"id": response_id, "object": "response", "deleted": True})


def cancel_ended(stored: StoredResponse) -> bytes:
    """Returns the body for a cancel of a response that has ended: the response itself if it was
    cancelled. Raises `BadRequest` otherwise."""
    status = msgspec.json.decode(stored.body)["status"]
    if status == "cancelled":
        return stored.body
    raise BadRequest(
        f"Cannot cancel a response that has ended: its status is {status}.", param="response_id"
    )


@dataclass(frozen=True, slots=True)
class ItemsPage:
    """A page of a response's input items."""

    limit: int = _DEFAULT_LISTED
    is_ascending: bool = False
    after: str | None = None
    """Id of the item before the page."""
    seals_reasoning: bool = False


def read_items_page(query: Query) -> ItemsPage:
    """Parses the page from a query string. Raises `BadRequest` or `Unsupported`."""
    given = _last(query, "limit") or str(_DEFAULT_LISTED)
    limit = int(given) if given.isdecimal() and len(given) <= 4 else 0
    if not 1 <= limit <= MAX_LISTED:
        raise BadRequest(f"limit must be a number from 1 to {MAX_LISTED}.", param="limit")
    order = _last(query, "order") or "desc"
    if order not in ("asc", "desc"):
        raise BadRequest("order must be asc or desc.", param="order")
    after = _last(query, "after") or None
    return ItemsPage(limit, order == "asc", after, _seals(query))


def input_items_body(stored: StoredResponse, page: ItemsPage) -> bytes:
    """Returns the body of a GET of a response's `input_items`, which are those of its own turn.
    Raises `UnknownItem`."""
    items = list(stored.items) if page.is_ascending else list(reversed(stored.items))
    if page.after is not None:
        ids = [item["id"] for item in items]
        if page.after not in ids:
            raise UnknownItem(f"The response's input has no item {page.after!r}.", param="after")
        items = items[ids.index(page.after) + 1 :]
    listed: Sequence[Item] = items[: page.limit]
    if page.seals_reasoning:
        listed = _sealed_items(listed)
    body: dict[str, Any] = {"object": "list", "data": listed}
    body["first_id"] = listed[0]["id"] if listed else ""
    body["last_id"] = listed[-1]["id"] if listed else ""
    body["has_more"] = len(items) > len(listed)
    return _encode(body)


def _last(query: Query, name: str) -> str | None:
    values = query.get(name) or ()
    return values[-1] if values else None


def _seals(query: Query) -> bool:
    return encrypts_reasoning([*query.get("include", ()), *query.get("include[]", ())])


def _sealed_items(items: Sequence[Item]) -> list[Item]:
    return [_with_seal(item) if item.get("type") == "reasoning" else item for item in items]


def _with_seal(item: Item) -> Item:
    seal = item.get("encrypted_content") or sealed(reasoning_text(item, "item"))
    return {**item, "encrypted_content": seal}
