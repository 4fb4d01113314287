"""Ids of output items."""

from node.dialects.responses.response import input_item_id, item_id, response_id
from node.protocol.ids import ITEM_PREFIXES, response_of
from tests.node.dialects.openai_stream import HEAD


def test_an_items_id_names_its_response() -> None:
    ids = [item_id(HEAD, prefix, 12) for prefix in ITEM_PREFIXES]
    for each in [*ids, input_item_id(HEAD, 3)]:
        assert response_of(each) == response_id(HEAD)
