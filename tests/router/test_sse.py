from __future__ import annotations

import json

import pytest

from router import sse
from router.errors import NodeFailed

OTHERWISE = NodeFailed("The node a answered with status 500.")


@pytest.mark.parametrize(
    ("data", "whole", "rest"),
    [
        (b"data: 1\n\n", b"data: 1\n\n", b""),
        (b"data: 1\n\ndata: 2", b"data: 1\n\n", b"data: 2"),
        (b"data: 1\n", b"", b"data: 1\n"),
        (b"data: 1\r\n\r\n", b"data: 1\r\n\r\n", b""),
        (b"data: 1\r\n\r\ndata: 2\r\n\r", b"data: 1\r\n\r\n", b"data: 2\r\n\r"),
        (b"data: 1\n\ndata: 2\r\n\r\n: x", b"data: 1\n\ndata: 2\r\n\r\n", b": x"),
        (b"", b"", b""),
    ],
)
def test_only_whole_events_are_passed_on(data: bytes, whole: bytes, rest: bytes) -> None:
    assert sse.split(data) == (whole, rest)


def test_an_endless_event_is_not_held_for_ever() -> None:
    data = b"data: " + b"x" * sse.MAX_HELD_BYTES
    assert sse.split(data) == (data, b"")
    assert sse.split(data[: sse.MAX_HELD_BYTES])[0] == b""


def test_any_split_of_a_stream_gives_the_same_bytes() -> None:
    stream = b": hi\n\ndata: 1\n\ndata: 2\r\n\r\nevent: x\ndata: 3\n\ndata: [DONE]\n\n"
    for size in range(1, len(stream)):
        passed, held = b"", b""
        for at in range(0, len(stream), size):
            events, held = sse.split(held + stream[at : at + size])
            assert not events or events.endswith((b"\n\n", b"\r\n\r\n"))
            passed += events
        assert (passed, held) == (stream, b"")


@pytest.mark.parametrize(
    ("events", "content"),
    [
        (b": keep-alive\n\n", False),
        (b": one\n\n: two\n\n", False),
        (b"data: 1\n\n", True),
        (b": one\n\ndata: 1\n\n", True),
        (b"event: ping\ndata: {}\n\n", True),
        (b'{"object": "not a stream"}', True),
    ],
)
def test_comments_are_not_content(events: bytes, content: bool) -> None:
    assert sse.has_event(events) is content
    assert not sse.has_event(sse.PING)


ERROR = b'{"error":{"message":"No.","type":"server_error"}}'


@pytest.mark.parametrize(
    ("events", "error"),
    [
        (b"data: " + ERROR + b"\n\n", ERROR),
        (b": x\n\n: y\r\n\r\ndata:" + ERROR + b"\r\n\r\n", ERROR),
        (b"event: error\ndata: " + ERROR + b"\n\n", ERROR),
        (b'data: { "error": "No." }\n\n', b'{ "error": "No." }'),
        (b"data: " + ERROR, ERROR),
        (b"data: " + ERROR.replace(b"server", b"invalid_request") + b"\n\n", None),
        (b"data: {}\n\ndata: " + ERROR + b"\n\n", None),
        (b'data: {"error":\n\n', None),
        (b'data: {"error":null,"choices":[]}\n\n', None),
        (b"data: " + b'{"error":' + b"[" * 9999, None),
        (b": comment\n\n", None),
    ],
)
def test_an_error_before_content_is_found_unless_the_caller_s(
    events: bytes, error: bytes | None
) -> None:
    assert sse.leading_error(events) == error


def test_an_error_event_is_one_event_with_the_envelope() -> None:
    event = sse.error_event(NodeFailed("Gone."))
    assert event.startswith(b"data: ") and event.endswith(b"}\n\n") and event.count(b"\n") == 2
    assert json.loads(event[6:])["error"]["code"] == "node_failed"


@pytest.mark.parametrize(
    "body", [b'{"error":{"message":"full"}}', b'{\n "error": {\r\n"a": 1}\n}\n']
)
def test_a_node_s_error_becomes_one_event_however_it_is_laid_out(body: bytes) -> None:
    event = sse.late_error(body, OTHERWISE)
    assert event.startswith(b"data: ") and event.endswith(b"\n\n") and event.count(b"\n") == 2
    assert json.loads(event[6:]) == json.loads(body)


@pytest.mark.parametrize(
    "body", [b"", b"Internal Server Error", b'{"detail":"x"}', b"[1]", b"\xff", b"[" * 99999]
)
def test_an_answer_outside_the_envelope_becomes_the_router_s_error(body: bytes) -> None:
    assert sse.late_error(body, OTHERWISE) == sse.error_event(OTHERWISE)


def test_the_fleet_comment_is_a_comment() -> None:
    assert sse.fleet_comment("mini", "m") == b": fleet node=mini model=m\n\n"
