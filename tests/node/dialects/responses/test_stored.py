"""Responses of the paths below `/v1/responses/{id}`."""

import json
from typing import Any

import pytest
from openai.types.responses import ResponseItemList
from pydantic import TypeAdapter

from node.dialects.responses.input import messages_of
from node.dialects.responses.items import stored_item
from node.dialects.responses.response import StoredResponse
from node.dialects.responses.stored import (
    ItemsPage,
    cancel_ended,
    check_retrieve,
    deleted_body,
    input_items_body,
    read_items_page,
    retrieved_body,
    unknown_response,
)
from node.errors import BadRequest, UnknownItem, Unsupported

THOUGHT = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [],
    "content": [{"type": "reasoning_text", "text": "Hm."}],
}
ITEMS: list[dict[str, Any]] = [
    {"role": "user", "content": "hi"},
    THOUGHT,
    {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "a", "output": "5"},
]


def stored(status: str = "completed") -> StoredResponse:
    body = json.dumps({"id": "resp_1", "status": status, "output": [THOUGHT]}).encode()
    items = [stored_item(item, f"msg_{at}") for at, item in enumerate(ITEMS)]
    return StoredResponse("resp_1", "m", 1, None, body, items)


def listed(page: ItemsPage) -> Any:
    body = json.loads(input_items_body(stored(), page))
    TypeAdapter(ResponseItemList).validate_python(body)
    return body


def test_a_stored_response_is_given_as_it_is() -> None:
    body = stored().body
    assert retrieved_body(body, seals_reasoning=check_retrieve({"stream": ["false"]})) == body


def test_reasoning_is_sealed_on_request() -> None:
    for name in ("include", "include[]"):
        seals = check_retrieve({name: ["reasoning.encrypted_content"]})
        output = json.loads(retrieved_body(stored().body, seals_reasoning=seals))["output"]
        assert output[0].pop("content") == THOUGHT["content"]
        assert messages_of(output)[0].reasoning == "Hm."


def test_what_is_sealed_is_the_summary_where_that_is_the_reasoning() -> None:
    summary = [{"type": "summary_text", "text": "Hm."}]
    thought = {**THOUGHT, "summary": summary, "content": []}
    body = json.dumps({"id": "resp_1", "output": [thought]}).encode()
    (item,) = json.loads(retrieved_body(body, seals_reasoning=True))["output"]
    assert item.pop("summary") == summary
    assert messages_of([item])[0].reasoning == "Hm."


@pytest.mark.parametrize("query", [{"stream": ["true"]}, {"starting_after": ["3"]}])
def test_what_has_ended_is_no_stream(query: dict[str, list[str]]) -> None:
    with pytest.raises(Unsupported) as caught:
        check_retrieve(query)
    assert caught.value.param in query


def test_a_deleted_response_is_named() -> None:
    assert json.loads(deleted_body("resp_1")) == {
        "id": "resp_1",
        "object": "response",
        "deleted": True,
    }


def test_only_a_cancelled_response_may_be_cancelled_again() -> None:
    assert cancel_ended(stored("cancelled")) == stored("cancelled").body
    with pytest.raises(BadRequest, match="completed"):
        cancel_ended(stored())


def test_input_is_listed_from_its_end_unless_requested_otherwise() -> None:
    body = listed(read_items_page({}))
    assert [item["id"] for item in body["data"]] == ["msg_3", "msg_2", "rs_1", "msg_0"]
    assert (body["first_id"], body["last_id"], body["has_more"]) == ("msg_3", "msg_0", False)
    body = listed(read_items_page({"order": ["asc"]}))
    assert body["first_id"] == "msg_0"


def test_input_is_listed_in_pages() -> None:
    body = listed(read_items_page({"order": ["asc"], "limit": ["2"]}))
    assert ([item["id"] for item in body["data"]], body["has_more"]) == (["msg_0", "rs_1"], True)
    body = listed(read_items_page({"order": ["asc"], "limit": ["2"], "after": ["rs_1"]}))
    assert ([item["id"] for item in body["data"]], body["has_more"]) == (["msg_2", "msg_3"], False)
    body = listed(ItemsPage(is_ascending=True, after="msg_3"))
    assert (body["data"], body["first_id"], body["last_id"]) == ([], "", "")


def test_reasoning_of_the_input_is_sealed_on_request() -> None:
    page = read_items_page({"include": ["reasoning.encrypted_content"], "order": ["asc"]})
    assert "encrypted_content" in listed(page)["data"][1]


def test_a_page_begins_behind_an_item_of_the_input_only() -> None:
    with pytest.raises(UnknownItem) as caught:
        input_items_body(stored(), ItemsPage(after="msg_x"))
    assert caught.value.param == "after"


@pytest.mark.parametrize(
    ("name", "value"), [("limit", "0"), ("limit", "101"), ("limit", "x"), ("order", "up")]
)
def test_a_bad_query_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(BadRequest) as caught:
        read_items_page({name: [value]})
    assert caught.value.param == name


def test_an_unknown_response_is_named() -> None:
    error = unknown_response("resp_9")
    assert (error.status, error.code) == (404, "response_not_found")
    assert "resp_9" in error.message
