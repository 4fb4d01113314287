"""Tests that the number of a body's values is known before anything is made of them."""

import json
import tracemalloc

import pytest

from node.dialects.anthropic.body import read_count_tokens, read_messages
from node.dialects.chat.body import read_chat
from node.dialects.completions.completions import read_completion
from node.dialects.responses.body import read_responses
from node.errors import BadRequest, BodyTooLarge
from node.protocol.json_size import MAX_CONTAINERS, MAX_VALUES, has_too_many_values


@pytest.mark.parametrize("each", [b"[]", b"{}", b'{"a":"b"}'])
def test_containers_count(each: bytes) -> None:
    for count, too_many in ((MAX_CONTAINERS - 1, False), (MAX_CONTAINERS, True)):
        assert has_too_many_values(b"[" + b",".join([each] * count) + b"]") is too_many


@pytest.mark.parametrize("each", [b"1", b'""', b'"a"', b"null"])
def test_values_count(each: bytes) -> None:
    for count, too_many in ((MAX_VALUES, False), (MAX_VALUES + 2, True)):
        assert has_too_many_values(b"[" + b",".join([each] * count) + b"]") is too_many


def test_a_container_within_another_counts_too() -> None:
    assert has_too_many_values(b"[" * (MAX_CONTAINERS + 1))
    assert not has_too_many_values(b"[" * MAX_CONTAINERS)


@pytest.mark.parametrize("text", ["[{,", '"[{,', '\\"[,', "[\\", '[,\\\\"{', "\n[{,\t"])
def test_what_stands_in_a_text_does_not(text: str) -> None:
    body = json.dumps({"a": [text * MAX_VALUES, "b", text]}).encode()
    assert not has_too_many_values(body)
    values = ["[]"] * MAX_CONTAINERS
    assert has_too_many_values(body[:-1] + f', "c": [{",".join(values)}]}}'.encode())


@pytest.mark.parametrize(
    "read", [read_chat, read_completion, read_messages, read_count_tokens, read_responses]
)
def test_no_dialect_decodes_what_has_too_many(read: object) -> None:
    body = b'{"model":"m","messages":[' + b",".join([b"[]"] * MAX_CONTAINERS) + b"]}"
    assert callable(read)
    with pytest.raises(BodyTooLarge, match="more than 100,000 objects and lists"):
        read(body)


@pytest.mark.parametrize("field", ["messages", "tools"])
@pytest.mark.parametrize("read", [read_chat, read_messages])
def test_a_list_of_faults_takes_no_more_than_one(read: object, field: str) -> None:
    lists = {"messages": b'[{"role":"user","content":"a"}]', "tools": b"[]"}
    lists[field] = b"[" + b",".join([b"1"] * 50_000) + b"]"
    fields = b",".join(b'"%b":%b' % (name.encode(), value) for name, value in lists.items())
    body = b'{"model":"m","max_tokens":9,' + fields + b"}"
    assert callable(read)
    tracemalloc.start()
    try:
        with pytest.raises(BadRequest) as caught:
            read(body)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caught.value.param == f"{field}[0]"
    assert most_bytes < 4 << 20
