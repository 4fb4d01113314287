from __future__ import annotations

import json
from typing import Any

import pytest

from node.protocol.errors import BROKEN_CALL
from node.protocol.overflow import Overflow
from node.protocol.paths import ApiDialect
from router.client import sse
from router.client.error_dialects import event_body
from router.client.framing import Loading
from router.errors import NodeFailed
from router.types import Queued

OTHERWISE = NodeFailed("The node a responded with status 500.")


PING_EVENT = b'event: ping\ndata: {"type": "ping"}\n\n'


@pytest.mark.parametrize(
    ("waits_for", "comment"),
    [
        (Queued("r", 3, 12.4), b": waiting, position 3, about 12 s\n\n"),
        (Loading("org/m", 0.424), b": loading org/m 42 %\n\n"),
        (Loading("org/m", None), b": loading org/m\n\n"),
        (Loading("a\n\ndata: b", 0.0), b": loading 'a\\n\\ndata: b' 0 %\n\n"),
    ],
)
def test_comments_in_silence_name_what_is_waited_for(
    waits_for: Queued | Loading, comment: bytes
) -> None:
    assert sse.ping(ApiDialect.OPENAI, waits_for) == comment
    assert sse.ping(ApiDialect.RESPONSES, waits_for) == comment
    assert sse.ping(ApiDialect.ANTHROPIC, waits_for) == comment + PING_EVENT
    assert not sse.has_event(sse.ping(ApiDialect.ANTHROPIC, waits_for))


def test_silence_of_which_nothing_is_known_is_filled_all_the_same() -> None:
    assert sse.ping(ApiDialect.OPENAI) == b": keep-alive\n\n"
    assert sse.ping(ApiDialect.ANTHROPIC) == PING_EVENT


@pytest.mark.parametrize(
    ("events", "filler"),
    [
        (b": x\n\n", True),
        (PING_EVENT, True),
        (b": x\n\n" + PING_EVENT, True),
        (b": x\n\ndata: 1\n\n", False),
        (b"data: 1\n\n", False),
        (b"event: message_start\ndata: {}\n\n", False),
    ],
)
def test_a_node_s_own_filler_is_distinguished_from_its_answer(events: bytes, filler: bool) -> None:
    assert sse.is_keepalive(events) is filler


@pytest.mark.parametrize("answer", [b"", b"[]", b"\xff", b"{}", b'{"error":null}', b'{"error":{}}'])
def test_what_is_no_error_is_not_too_long_and_has_no_message(answer: bytes) -> None:
    assert not sse.is_too_long(answer)
    assert sse.error_message(answer) == ""


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 8192 tokens.",
        "This model's Maximum Context Length is 8192 tokens.",
        "Prompt too long: 9000 tokens exceeds max context window of 8192 tokens",
        "prompt is too long: 210000 tokens > 200000 maximum",
        "The input (9000 tokens) is longer than the model's context length (8192 tokens).",
        "This model's maximum prompt length is 131072 but the request contains 200000 tokens.",
    ],
)
def test_a_prompt_that_is_too_long_is_known_by_each_server_s_words(message: str) -> None:
    assert sse.is_too_long(json.dumps({"error": {"message": message}}).encode())


def test_a_prompt_that_is_too_long_becomes_the_router_s_own_error_with_its_lengths() -> None:
    message = "The input (11 tokens) is longer than the model's context length (8 tokens)."
    error = sse.too_long_error(json.dumps({"error": {"message": message}}).encode())
    assert (error.message, error.overflow) == (message, Overflow(11, 8))


def test_a_body_longer_than_any_error_is_not_parsed_as_one() -> None:
    for length, message in ((sse.MAX_ERROR_BYTES - 100, "no"), (sse.MAX_ERROR_BYTES, "")):
        param = b"[" + b"[]," * (length // 3) + b"[]]"
        answer = (
            b'{"error":{"message":"no","code":"context_length_exceeded","param":' + param + b"}}"
        )
        assert sse.error_message(answer) == message
        assert sse.is_too_long(answer) is bool(message)
    assert OTHERWISE.message.encode() in sse.late_error(answer, OTHERWISE, ApiDialect.RESPONSES)


def test_only_the_beginning_of_a_message_is_searched() -> None:
    for words, known in (
        ("prompt is too long", sse.is_too_long),
        ("model not found", sse.is_model_missing),
    ):
        for begin, found in (("x " * 400, True), ("model " * 100_000, False)):
            assert known(json.dumps({"error": f"{begin}{words}"}).encode()) is found


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


def test_an_endless_event_is_not_buffered_for_ever() -> None:
    data = b"data: " + b"x" * sse.MAX_BUFFERED_BYTES
    assert sse.split(data) == (data, b"")
    assert sse.split(data[: sse.MAX_BUFFERED_BYTES])[0] == b""


def test_any_split_of_a_stream_gives_the_same_bytes() -> None:
    stream = b": hi\n\ndata: 1\n\ndata: 2\r\n\r\nevent: x\ndata: 3\n\ndata: [DONE]\n\n"
    for size in range(1, len(stream)):
        passed, buffered = b"", b""
        for at in range(0, len(stream), size):
            events, buffered = sse.split(buffered + stream[at : at + size])
            assert not events or events.endswith((b"\n\n", b"\r\n\r\n"))
            passed += events
        assert (passed, buffered) == (stream, b"")


@pytest.mark.parametrize(
    ("events", "content"),
    [
        (b": keep-alive\n\n", False),
        (b": one\n\n: two\n\n", False),
        (b"data: 1\n\n", True),
        (b": one\n\ndata: 1\n\n", True),
        (b"event: x\ndata: {}\n\n", True),
        (b"event: ping\ndata: {}\n\n", False),
        (b": one\n\nevent: ping\r\ndata: {}\r\n\r\n: two\n\n: thr", False),
        (b"event: ping\ndata: {}\n\ndata: 1\n\n", True),
        (b"event: ping\ndata: {}\n\nevent: message_start\ndata: {}\n\n", True),
        (b'{"object": "not a stream"}', True),
    ],
)
def test_comments_and_pings_are_not_content(events: bytes, content: bool) -> None:
    assert sse.has_event(events) is content


@pytest.mark.parametrize("dialect", ApiDialect)
def test_what_fills_silence_is_no_content(dialect: ApiDialect) -> None:
    ping = sse.ping(dialect)
    assert not sse.has_event(ping) and sse.split(ping) == (ping, b"")
    assert (b"event: ping" in ping) == (dialect is ApiDialect.ANTHROPIC)


ERROR = b'{"error":{"message":"No.","type":"server_error"}}'


ANTHROPIC = b'{"type":"error","error":{"type":"api_error","message":"No."},"request_id":null}'
NUMBERED = b'{"error":{"code":500,"message":"No."}}'
PINGS = b'event: ping\ndata: {"type": "ping"}\n\n: x\n\n' * 2


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
        (PINGS + b"data: " + ERROR + b"\n\n", ERROR),
        (PINGS + b"event: error\ndata: " + ANTHROPIC + b"\n\n", ANTHROPIC),
        (PINGS, None),
        (b"event: ping\ndata: no JSON\n\n" * 50, None),
        (b"event: error\ndata: " + ANTHROPIC.replace(b"api", b"not_found") + b"\n\n", None),
        (b"event: message_start\ndata: {}\n\nevent: error\ndata: " + ANTHROPIC + b"\n\n", None),
        (b'data: {"type":"error","code":"context_length_exceeded","message":"No."}\n\n', None),
        (b'data: {"error":{"code":500,"message":"No."}}\n\n', NUMBERED),
        (b'data: {"error":{"type":"exceed_context_size_error","message":"No."}}\n\n', None),
        (b'data: {"error":"the input length exceeds the context length"}\n\n', None),
    ],
)
def test_an_error_before_content_is_found_unless_the_caller_s(
    events: bytes, error: bytes | None
) -> None:
    assert sse.leading_error(events) == error


def test_a_response_stream_s_error_becomes_a_whole_answer_s() -> None:
    event = b'event: error\ndata: {"type":"error","code":"c","message":"No.","param":null}\n\n'
    assert json.loads(sse.leading_error(event) or b"") == {
        "error": {"message": "No.", "type": "server_error", "param": None, "code": "c"}
    }


def test_a_response_that_has_failed_reports_its_error() -> None:
    event = (
        b'data: {"type":"response.failed","response":{"error":{"code":"c","message":"No."}}}\n\n'
    )
    assert json.loads(sse.leading_error(event) or b"") == {
        "error": {"message": "No.", "type": "server_error", "param": None, "code": "c"}
    }
    too_long = event.replace(b'"c"', b'"context_length_exceeded"')
    assert sse.leading_error(too_long) is None
    assert sse.leading_too_long(too_long) is not None
    assert sse.leading_too_long(event) is None


def fields_of(event: bytes, dialect: ApiDialect) -> Any:
    """The fields of one error event."""
    name = b"" if dialect is ApiDialect.OPENAI else b"event: error\n"
    assert event.startswith(name + b"data: ") and event.endswith(b"}\n\n")
    assert event.count(b"\n") == name.count(b"\n") + 2
    return json.loads(event[len(name) + 6 :])


@pytest.mark.parametrize("dialect", ApiDialect)
def test_an_error_event_is_one_event_of_its_dialect(dialect: ApiDialect) -> None:
    error = NodeFailed("Gone.")
    event = fields_of(sse.error_event(error, dialect), dialect)
    assert event == json.loads(event_body(error, dialect))


@pytest.mark.parametrize(
    ("after", "number"),
    [
        (b"", 0),
        (b'data: {"sequence_number":4}\n\ndata: {"type":"x","sequence_number": 5}\n\n', 6),
        (b'data: {"sequence_number":4,"delta":"\\"sequence_number\\":99"}\n\n', 5),
    ],
)
def test_an_error_event_of_a_response_stream_is_counted_on(after: bytes, number: int) -> None:
    event = sse.error_event(NodeFailed(), ApiDialect.RESPONSES, after)
    assert fields_of(event, ApiDialect.RESPONSES)["sequence_number"] == number


@pytest.mark.parametrize(
    "body", [b'{"error":{"message":"full"}}', b'{\n "error": {\r\n"a": 1}\n}\n']
)
def test_a_node_s_error_becomes_one_event_however_it_is_laid_out(body: bytes) -> None:
    event = sse.late_error(body, OTHERWISE, ApiDialect.OPENAI)
    assert fields_of(event, ApiDialect.OPENAI) == json.loads(body)


def test_a_node_s_error_becomes_an_event_of_its_dialect() -> None:
    event = sse.late_error(ANTHROPIC, OTHERWISE, ApiDialect.ANTHROPIC)
    assert fields_of(event, ApiDialect.ANTHROPIC) == json.loads(ANTHROPIC)
    body = b'{"error":{"message":"No.","type":"server_error","param":"p","code":"c"}}'
    assert fields_of(
        sse.late_error(body, OTHERWISE, ApiDialect.RESPONSES), ApiDialect.RESPONSES
    ) == {
        "type": "error",
        "code": "c",
        "message": "No.",
        "param": "p",
        "sequence_number": 0,
        "error": {"type": "server_error", "code": "c", "message": "No.", "param": "p"},
    }


@pytest.mark.parametrize("dialect", ApiDialect)
@pytest.mark.parametrize(
    "body", [b"", b"Internal Server Error", b'{"detail":"x"}', b"[1]", b"\xff", b"[" * 99999]
)
def test_an_answer_outside_the_envelope_becomes_the_router_s_error(
    body: bytes, dialect: ApiDialect
) -> None:
    assert sse.late_error(body, OTHERWISE, dialect) == sse.error_event(OTHERWISE, dialect)


@pytest.mark.parametrize(
    ("body", "dialect"),
    [
        (b'{"error":"No."}', ApiDialect.RESPONSES),
        (b'{"error":{"code":"c"}}', ApiDialect.RESPONSES),
        (ERROR, ApiDialect.ANTHROPIC),
    ],
)
def test_another_dialect_s_envelope_becomes_the_router_s_error(
    body: bytes, dialect: ApiDialect
) -> None:
    assert sse.late_error(body, OTHERWISE, dialect) == sse.error_event(OTHERWISE, dialect)


def test_the_fleet_comment_is_a_comment() -> None:
    assert sse.fleet_comment("mini", "m") == b": fleet node=mini model=m\n\n"
    comment = sse.fleet_comment("mini", "m", b"1/2", b"tools[8]")
    assert comment == b": fleet node=mini model=m cached=1/2 ignored=tools[8]\n\n"


@pytest.mark.parametrize(
    "event",
    [
        b'data: {"error":{"message":"%b","type":"server_error","code":"broken_tool_call"}}\n\n',
        b'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"%b"}}\n\n',
        b'event: error\ndata: {"type":"error","code":"broken_tool_call","message":"%b"}\n\n',
        b'event: response.failed\ndata: {"type":"response.failed","response":{"error":'
        b'{"code":"server_error","message":"%b"}}}\n\n',
    ],
)
def test_a_call_that_the_model_broke_off_is_no_error_of_its_node(event: bytes) -> None:
    broken = b": keep-alive\n\n" + event % f"{BROKEN_CALL}f: it ended.".encode()
    assert sse.leading_error(broken) is None
    # It is an answer, and passed on as one.
    assert not sse.leads_with_refusal(broken)
    assert sse.leading_error(event % b"It broke.") is not None
