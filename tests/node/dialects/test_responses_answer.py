"""Ids of output items."""

from node.dialects.responses_answer import input_item_id, item_id, response_id
from node.protocol.ids import response_of
from node.types import PartKind
from tests.node.dialects.openai_stream import HEAD


def test_an_items_id_names_its_response() -> None:
    ids = [item_id(HEAD, kind, 12) for kind in PartKind if kind is not PartKind.TOOL_ARGS]
    assert len({each.partition("_")[0] for each in ids}) == 3
    for each in [*ids, input_item_id(HEAD, 3)]:
        assert response_of(each) == response_id(HEAD)
