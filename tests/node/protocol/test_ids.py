"""Ids that clients see."""

import pytest

from node.protocol.ids import (
    ITEM_PREFIXES,
    PREFIXES,
    RESPONSE_PREFIX,
    client_id,
    owner_mark,
    parse_id,
    response_of,
)

NODE = "0123456789abcdef"


@pytest.mark.parametrize("prefix", PREFIXES)
def test_an_id_contains_its_node_its_request_and_its_owner(prefix: str) -> None:
    owner = owner_mark("key")
    found = parse_id(client_id(prefix, NODE, f"{owner}-1.a_B"))
    assert found is not None
    assert (found.node_id, found.request_id, found.owner) == (NODE, f"{owner}-1.a_B", owner)


@pytest.mark.parametrize("prefix", ITEM_PREFIXES)
@pytest.mark.parametrize("number", ["0", "12", "i3"])
def test_an_item_s_id_names_its_response(prefix: str, number: str) -> None:
    longest = "x" * 64
    response = response_of(client_id(prefix, NODE, longest) + f"-{number}")
    assert response == client_id(RESPONSE_PREFIX, NODE, longest)
    assert parse_id(response) is not None


@pytest.mark.parametrize(
    "text",
    ["", "msg", "msg_", "msg_abc", "msg_-1", "x_a-1", "msg_a-b", "msg_a-i", "resp_a-1", "msg_a-²"],
)
def test_other_texts_name_no_response(text: str) -> None:
    assert response_of(text) is None


@pytest.mark.parametrize(
    "text", ["", "resp_", f"resp_{NODE}", f"resp_{NODE}-", f"x_{NODE}-1", f"resp_{NODE}-a b"]
)
def test_other_texts_are_no_ids(text: str) -> None:
    assert parse_id(text) is None
