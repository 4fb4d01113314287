"""Tests the events that open the streams of other servers, and those that end them."""

from __future__ import annotations

import pytest

from router.upstream import foreign_events
from router.upstream.foreign_events import Ending
from tests.router.upstream.test_foreign import DONE, HELLO, USAGE

ROLE = (
    b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":"","refusal":null},'
    b'"logprobs":null,"finish_reason":null}],"usage":{"prompt_tokens":3}}\n\n'
)
MESSAGE_START = (
    b'event: message_start\ndata: {"type":"message_start","message":{"id":"x","content":[],'
    b'"usage":{"input_tokens":3,"output_tokens":0}}}\n\n'
)
OVERLOADED = (
    b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error",'
    b'"message":"Overloaded"}}\n\n'
)
FAILED = (
    b'event: response.failed\ndata: {"type":"response.failed","sequence_number":3,'
    b'"response":{"id":"r","status":"failed","error":{"code":"server_error","message":"No."}}}\n\n'
)


def event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


def chat(choice: bytes) -> bytes:
    return event(b'{"choices":[{"index":0,' + choice + b"}]}")


@pytest.mark.parametrize(
    "events",
    [
        b"",
        b": comment\n\n",
        b"event: ping\ndata: {}\n\n",
        b"id: 1\nretry: 5\n\n",
        ROLE,
        ROLE.replace(b"\n", b"\r\n"),
        event(b'{"choices":[],"prompt_filter_results":[1]}'),
        chat(b'"delta":{"content":null,"tool_calls":[]}'),
        chat(b'"text":""'),
        MESSAGE_START,
        event(b'{"type":"content_block_start","content_block":{"type":"text","text":""}}'),
        event(b'{"type":"content_block_start","content_block":{"type":"thinking","thinking":""}}'),
        event(b'{"type":"response.created","response":{"error":null,"usage":null}}'),
        event(b'{"type":"response.in_progress","response":{}}'),
        event(b'{"type":"response.output_item.added","item":{"type":"message"}}'),
        event(b'{"type":"response.content_part.added","part":{"text":""}}'),
    ],
)
def test_what_opens_a_stream_is_no_content(events: bytes) -> None:
    assert foreign_events.content_at(events) is None
    assert foreign_events.content_at(events * 2 + HELLO + DONE) == len(events) * 2
    assert foreign_events.ending(events) is None


@pytest.mark.parametrize(
    "content",
    [
        HELLO,
        DONE,
        USAGE["ollama"],
        chat(b'"delta":{"role":"assistant","content":" "}'),
        chat(b'"delta":{"reasoning_content":"x"}'),
        chat(b'"delta":{"tool_calls":[{"id":"c"}]}'),
        chat(b'"delta":{"refusal":"no"}'),
        chat(b'"delta":{},"finish_reason":"stop"'),
        chat(b'"text":"x"'),
        chat(b'"message":{}'),
        event(b'{"choices":[],"error":{"message":"No."}}'),
        event(b'{"type":"content_block_start","content_block":{"type":"tool_use","name":"f"}}'),
        event(b'{"type":"content_block_delta","delta":{"text":"x"}}'),
        event(b'{"type":"response.output_text.delta","delta":"x"}'),
        event(b'{"choices":7}'),
        event(b"[" * 99999),
        event(b"\xff"),
        b'{"object": "not a stream"}',
        OVERLOADED,
        FAILED,
    ],
)
def test_all_else_is_content(content: bytes) -> None:
    assert foreign_events.content_at(content) == 0
    assert foreign_events.content_at(MESSAGE_START + content) == len(MESSAGE_START)


@pytest.mark.parametrize(
    ("last", "ending"),
    [
        (DONE, Ending.WHOLE),
        (b"data:[DONE]\r\n\r\n", Ending.WHOLE),
        (event(b'{"type":"message_stop"}'), Ending.WHOLE),
        (event(b'{"type": "response.completed","response":{"error":null}}'), Ending.WHOLE),
        (event(b'{"type":"response.incomplete","response":{}}'), Ending.WHOLE),
        (event(b'{"error":{"message":"x","type":"invalid_request_error"}}'), Ending.WHOLE),
        (event(b'{"type":"error","code":"invalid_value","message":"x"}'), Ending.WHOLE),
        (event(b'{"id":"x","choices":[],"error":{"code":502,"message":"x"}}'), Ending.FAILED),
        (event(b'{"error":"x"}'), Ending.FAILED),
        (event(b'{"type":"error","code":null,"message":"x"}'), Ending.FAILED),
        (event(b'{"type":"response.failed"}'), Ending.FAILED),
        (OVERLOADED + DONE, Ending.FAILED),
        (FAILED, Ending.FAILED),
    ],
)
def test_the_last_event_shows_how_the_answer_ended(last: bytes, ending: Ending) -> None:
    assert foreign_events.ending(HELLO + last) is ending


@pytest.mark.parametrize(
    "events",
    [
        HELLO,
        chat(b'"delta":{"content":"data: [DONE] {\\"error\\":1} \\"message_stop\\""}'),
        chat(b'"logprobs":{"token":"error"},"delta":{"content":"error"}'),
        chat(b'"delta":{"x":{"type":"error","error":{"message":"x"}}}'),
        event(b'{"choices":[{"delta":{"content":"x"}}],"error":null}'),
        event(b'{"type":"response.output_item.done","item":{"type":"error"}}'),
        event(b'"error"'),
    ],
)
def test_an_answer_whose_content_only_mentions_ends_goes_on(events: bytes) -> None:
    assert foreign_events.ending(events) is None
    assert foreign_events.ending(events + DONE) is Ending.WHOLE
