"""Counts of tokens in the responses of servers that report no usage records."""

from __future__ import annotations

import json
from typing import Any

import pytest

from router.client import sse
from router.types import Tokens
from router.upstream.foreign import ForeignResponse
from router.upstream.foreign_events import Ending
from tests.router.conftest import CHAT, lease, ticket

COMPLETIONS = "/v1/completions"
BODY = b'{ "model" : "m","stream": true, "temperature": 1.50 }'
HELLO = b'data: {"choices":[{"index":0,"delta":{"content":"hello"}}],"usage":null}\n\n'
DONE = b"data: [DONE]\n\n"
USAGE = {
    "ollama": b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m",'
    b'"system_fingerprint":"fp_ollama","choices":[],'
    b'"usage":{"prompt_tokens":11,"completion_tokens":7,"total_tokens":18}}\n\n',
    "lm studio": b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,'
    b'"model":"m","system_fingerprint":"m","choices":[],"usage":{"prompt_tokens":11,'
    b'"completion_tokens":7,"total_tokens":18,'
    b'"prompt_tokens_details":{"cached_tokens":5}}}\n\n',
    "llama.cpp": b'data: {"choices":[],"created":1,"id":"chatcmpl-1","model":"m",'
    b'"object":"chat.completion.chunk","usage":{"completion_tokens":7,"prompt_tokens":11,'
    b'"total_tokens":18},"timings":{"cache_n":5,"prompt_n":6,"predicted_n":7}}\r\n\r\n',
}
CACHED = {"ollama": 0, "lm studio": 5, "llama.cpp": 5}


def answer(
    body: bytes = BODY, path: str = CHAT, *, stream: bool = True, may_add_count: bool = True
) -> ForeignResponse:
    sent = ticket(path=path, body=body, stream=stream)
    return ForeignResponse(sent, may_add_count=may_add_count)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_stream_s_count_is_requested_and_nothing_else_changes(path: str) -> None:
    sent = answer(path=path).body
    assert json.loads(sent) == {**json.loads(BODY), "stream_options": {"include_usage": True}}
    assert b'"temperature":1.50' in sent


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        (b"null", {"include_usage": True}),
        (b'{"include_usage":false}', {"include_usage": True}),
        (b'{"x":[1]}', {"x": [1], "include_usage": True}),
    ],
)
def test_options_of_the_caller_s_own_are_kept(options: bytes, sent: dict[str, Any]) -> None:
    response = answer(b'{"stream_options":' + options + b',"model":"m"}')
    assert json.loads(response.body)["stream_options"] == sent
    assert response.adds_count


@pytest.mark.parametrize(
    ("body", "stream", "may_add_count"),
    [
        (b'{"stream_options":{"include_usage":true} }', True, True),
        (b'{"stream_options":7 }', True, True),
        (BODY, False, True),
        (BODY, True, False),
    ],
)
def test_a_body_that_needs_no_request_for_the_count_is_sent_as_it_is(
    body: bytes, stream: bool, may_add_count: bool
) -> None:
    response = answer(body, stream=stream, may_add_count=may_add_count)
    assert (response.body, response.adds_count) == (body, False)


def test_no_count_is_requested_on_other_paths() -> None:
    assert answer(path="/v1/messages").body == BODY


@pytest.mark.parametrize("server", USAGE)
def test_the_count_is_read_and_its_chunk_dropped(server: str) -> None:
    response = answer()
    passed = response.pass_on(HELLO + USAGE[server] + DONE)
    assert passed == HELLO + DONE
    assert response.tokens == Tokens(11, CACHED[server], 7)


@pytest.mark.parametrize("server", USAGE)
def test_a_caller_that_requested_the_count_gets_it(server: str) -> None:
    response = answer(b'{"stream_options":{"include_usage":true}}')
    events = HELLO + USAGE[server] + DONE
    assert response.pass_on(events) == events
    assert response.tokens is not None


def test_a_count_beside_content_is_read_and_passed_on() -> None:
    response = answer()
    events = (
        b'data: {"choices":[{"delta":{}}],"usage":{"prompt_tokens":3,"completion_tokens":1}}\n\n'
    )
    assert response.pass_on(events) == events
    assert response.tokens == Tokens(3, 0, 1)


@pytest.mark.parametrize(
    "usage",
    [b"7", b'{"prompt_tokens":-1,"completion_tokens":"x"}', b'{"prompt_tokens":1e99}', b"{"],
)
def test_an_invalid_count_changes_no_event(usage: bytes) -> None:
    response = answer()
    events = b'data: {"choices":[{}],"usage":' + usage + b"}\n\n"
    assert response.pass_on(events) == events
    assert response.tokens in (None, Tokens(0, 0, 0))


def test_the_word_in_a_text_is_no_count() -> None:
    response = answer()
    events = b'data: {"choices":[{"delta":{"content":"say \\"usage\\""}}]}\n\n: "usage"\n\n'
    assert response.pass_on(events) == events
    assert response.tokens is None


def test_a_whole_answer_reports_its_count() -> None:
    response = answer(stream=False)
    response.read(200, b'{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2}}')
    assert response.tokens == Tokens(9, 0, 2)


def test_a_stream_of_messages_reports_its_count_in_two_parts() -> None:
    response = answer(path="/v1/messages")
    start = (
        b'event: message_start\ndata: {"type":"message_start","message":{"usage":'
        b'{"input_tokens":4,"cache_read_input_tokens":6,"output_tokens":1}}}\n\n'
    )
    end = b'event: message_delta\ndata: {"type":"message_delta","usage":{"output_tokens":8}}\n\n'
    assert response.pass_on(start) == start
    assert response.pass_on(end) == end
    assert response.tokens == Tokens(10, 6, 8)


def test_a_stream_of_a_response_reports_its_count_at_its_end() -> None:
    response = answer(path="/v1/responses")
    response.pass_on(
        b'event: response.completed\ndata: {"type":"response.completed","response":{"usage":'
        b'{"input_tokens":9,"input_tokens_details":{"cached_tokens":3},"output_tokens":2}}}\n\n'
    )
    assert response.tokens == Tokens(9, 3, 2)


@pytest.mark.parametrize(
    ("reported", "taken"),
    [(b'"reasoning_tokens":5', 5), (b'"reasoning_tokens":99', 8), (b'"reasoning_tokens":null', 0)],
)
@pytest.mark.parametrize(
    ("tokens", "details"),
    [
        (b'"prompt_tokens":1,"completion_tokens":8', b"completion_tokens_details"),
        (b'"input_tokens":1,"output_tokens":8', b"output_tokens_details"),
    ],
)
def test_reasoning_is_counted_within_the_completion(
    tokens: bytes, details: bytes, reported: bytes, taken: int
) -> None:
    response = answer(stream=False)
    response.read(200, b'{"usage":{%b,"%b":{%b}}}' % (tokens, details, reported))
    assert response.tokens == Tokens(1, 0, 8, taken)
    usage = response.usage_record(lease(), 1.0)
    assert usage.reasoning_tokens == taken


@pytest.mark.parametrize(
    ("status", "body", "refused"),
    [
        (400, b'{"error":{"message":"Unrecognized argument: stream_options"}}', True),
        (422, b'{"detail":[{"loc":["body","stream_options"]}]}', True),
        (400, b'{"error":{"message":"no"}}', False),
        (500, b"stream_options", False),
    ],
)
def test_a_refusal_of_the_request_for_a_count_is_recognized(
    status: int, body: bytes, refused: bool
) -> None:
    assert answer().is_refused(status, body) is refused
    assert not answer(may_add_count=False).is_refused(status, body)


def test_the_accounts_have_the_times_that_the_router_has_seen() -> None:
    response = answer()
    response.pass_on(USAGE["lm studio"])
    response.first_content_s = 2.0
    usage = response.usage_record(lease(), ended_s=5.0)
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (
        11,
        5,
        7,
    )
    assert (usage.ttft_s, usage.prefill_s, usage.decode_s) == (2.0, 2.0, 3.0)


OPENING = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'


def test_what_opens_a_stream_is_buffered_until_there_is_content() -> None:
    response = answer()
    assert response.begin(OPENING) == (b"", b"")
    assert response.begin(b": x\n\n" + HELLO + DONE) == (
        OPENING + b": x\n\n" + HELLO + DONE,
        HELLO + DONE,
    )
    assert response.end() == b""


def test_what_was_buffered_of_a_stream_without_content_is_its_answer_unless_it_is_empty() -> None:
    response = answer()
    response.begin(OPENING)
    assert response.end() == OPENING
    response = answer()
    response.begin(b": x\n\n")
    assert response.end() == b""


def test_an_opening_without_end_is_not_buffered_for_ever() -> None:
    response = answer()
    buffered = 0
    while response.begin(OPENING) == (b"", b""):
        buffered += len(OPENING)
    assert buffered <= sse.MAX_BUFFERED_BYTES < buffered + len(OPENING)


def test_the_last_event_is_seen_as_it_passes() -> None:
    response = answer()
    response.pass_on(HELLO)
    assert response.ending is None
    response.pass_on(USAGE["ollama"] + DONE)
    assert response.ending is Ending.WHOLE
