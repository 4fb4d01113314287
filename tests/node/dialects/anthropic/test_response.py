"""Responses are serialized as Anthropic's SDK expects them, streamed and whole."""

import json
from collections.abc import Sequence
from typing import Any

import httpx2
import pytest
from anthropic import Anthropic, APIStatusError
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from node.dialects.anthropic.response import MessageWriter, ThinkingShown
from node.dialects.anthropic.signature import carried_thought, hashed_signature
from node.dialects.base import Collected, ResponseHead
from node.errors import EngineDied, EngineFault
from node.ipc.messages import Accepted, Delta, Part, PartKind, RowUsage
from node.protocol.messages import FinishReason

EVENT: TypeAdapter[RawMessageStreamEvent] = TypeAdapter(RawMessageStreamEvent)
MESSAGE: TypeAdapter[Message] = TypeAdapter(Message)
HEAD = ResponseHead("00000000000000aa-r1", "m", 1)
ACCEPTED = Accepted("u", 30, 10)
USAGE = RowUsage(30, 12, 9, 0.1, 0.2, 0.3, 4)


def content(*texts: str) -> list[Part]:
    return [Part(PartKind.CONTENT, text) for text in texts]


def reasoning(*texts: str) -> list[Part]:
    return [Part(PartKind.REASONING, text) for text in texts]


def call(index: int, name: str, *pieces: str) -> list[Part]:
    start = Part(PartKind.TOOL_START, "", index, name, f"call_{index}")
    return [start, *(Part(PartKind.TOOL_ARGS, piece, index) for piece in pieces)]


AGENTIC = [
    *reasoning("Let me", " see."),
    *content("I look", " now.\n\n"),
    *call(0, "look", '{"at":', ' "Köln"}'),
    *call(1, "wait", "{}"),
]
INTERLEAVED = [*content("a"), *reasoning("x"), *content("b"), *reasoning("y"), *content("c")]


def writer(
    thinking: ThinkingShown = ThinkingShown.SHOWN, *, diagnosed: bool = False
) -> MessageWriter:
    return MessageWriter(HEAD, thinking, diagnosed=diagnosed)


def last(finish: FinishReason = FinishReason.STOP, stop: str | None = None) -> Delta:
    return Delta("u", (), 9, finish, USAGE, stop=stop)


def streamed(
    parts: Sequence[Part], end: Delta | None = None, thinking: ThinkingShown = ThinkingShown.SHOWN
) -> bytes:
    """Returns a whole stream, with one part a step."""
    spelled = writer(thinking)
    spelled.accepted(ACCEPTED)
    return b"".join(spelled.parts([part]) for part in parts) + spelled.ending(end or last())


def events(stream: bytes) -> list[dict[str, Any]]:
    """Returns the events, each checked against the SDK's types."""
    found = []
    for block in stream.decode().removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == "event: " + event["type"]
        EVENT.validate_json(data.removeprefix("data: "), strict=True)
        found.append(event)
    return found


def whole(
    parts: Sequence[Part], end: Delta | None = None, thinking: ThinkingShown = ThinkingShown.SHOWN
) -> Message:
    end = end or last()
    collected = Collected(finish=end.finish or FinishReason.STOP, stop=end.stop, usage=USAGE)
    collected.add(parts)
    return MESSAGE.validate_json(writer(thinking).whole([collected]), strict=True)


def client(stream: bytes) -> Anthropic:
    """Returns the SDK's client of a server that always sends these bytes."""

    def answer(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=stream)

    transport = httpx2.Client(transport=httpx2.MockTransport(answer))
    return Anthropic(api_key="k", http_client=transport, max_retries=0)


def accumulated(stream: bytes) -> Message:
    """Returns the message that the SDK builds from a stream."""
    with (
        client(stream) as sdk,
        sdk.messages.stream(
            model="m", max_tokens=9, messages=[{"role": "user", "content": "hi"}]
        ) as answer,
    ):
        return answer.get_final_message()


def bare(message: Message) -> dict[str, object]:
    """Removes members that are None, which the SDK adds itself."""
    return message.to_dict(exclude_none=True)


def kinds(stream: bytes) -> list[str]:
    return [event["type"] for event in events(stream)]


# --- streams ---------------------------------------------------------------------------------


def test_a_stream_has_its_events_in_order() -> None:
    assert kinds(streamed(content("Hel", "lo"))) == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


def test_the_start_reports_the_prompts_tokens() -> None:
    start = events(streamed(content("a")))[0]["message"]
    assert start["id"] == "msg_00000000000000aa-r1"
    assert start["usage"] == {
        "input_tokens": 20,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 10,
        "output_tokens": 0,
    }


def test_a_start_before_the_engine_accepted_the_request_reports_none() -> None:
    (start, *_) = events(writer().parts(content("a")))
    assert start["message"]["usage"]["input_tokens"] == 0


def test_the_end_reports_the_usage() -> None:
    assert events(streamed(content("a")))[-2]["usage"] == {
        "input_tokens": 18,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 12,
        "output_tokens": 9,
        "output_tokens_details": {"thinking_tokens": 4},
    }


def test_an_answer_of_nothing_has_no_block() -> None:
    assert kinds(streamed([])) == ["message_start", "message_delta", "message_stop"]
    assert whole([]).content == []


def test_no_text_block_stands_between_thinking_and_a_call() -> None:
    found = events(streamed([*reasoning("hm"), *call(0, "look", "{}")]))
    blocks = [each for each in found if each["type"] == "content_block_start"]
    assert [block["content_block"]["type"] for block in blocks] == ["thinking", "tool_use"]
    assert [block["index"] for block in blocks] == [0, 1]


def test_a_thinking_block_ends_with_its_signature() -> None:
    deltas = [
        event["delta"]
        for event in events(streamed([*reasoning("Let me", " see."), *content("x")]))
        if event["type"] == "content_block_delta"
    ]
    assert deltas == [
        {"type": "thinking_delta", "thinking": "Let me"},
        {"type": "thinking_delta", "thinking": " see."},
        {"type": "signature_delta", "signature": hashed_signature("Let me see.")},
        {"type": "text_delta", "text": "x"},
    ]


def test_the_pieces_of_an_input_are_exactly_its_json() -> None:
    inputs = {0: "", 1: ""}
    for event in events(streamed(call(0, "look", '{"a": "', '\\"x\\""', "}") + call(1, "b", "{}"))):
        if event["type"] == "content_block_delta":
            inputs[event["index"]] += event["delta"]["partial_json"]
    assert inputs == {0: '{"a": "\\"x\\""}', 1: "{}"}


def test_whitespace_is_text() -> None:
    assert accumulated(streamed(content("a", "\n\n", "b"))).content[0].to_dict() == {
        "type": "text",
        "text": "a\n\nb",
    }


def test_no_delta_contains_null() -> None:
    for event in events(streamed(AGENTIC)):
        if event["type"].startswith("content_block"):
            assert b"null" not in json.dumps(event).encode()


def test_silence_is_a_ping() -> None:
    stream = writer().keep_alive + streamed(content("a")) + writer().keep_alive
    assert accumulated(stream).content[0].to_dict()["text"] == "a"


# --- streamed and whole ----------------------------------------------------------------------


@pytest.mark.parametrize("thinking", list(ThinkingShown))
@pytest.mark.parametrize("parts", [AGENTIC, INTERLEAVED, content("a"), reasoning("x"), []])
def test_the_sdk_reads_the_same_message_streamed_and_whole(
    parts: list[Part], thinking: ThinkingShown
) -> None:
    read = accumulated(streamed(parts, thinking=thinking))
    assert bare(read) == bare(whole(parts, thinking=thinking))


def test_an_agents_answer_has_a_block_for_each_thing() -> None:
    message = whole(AGENTIC)
    assert [block.to_dict() for block in message.content] == [
        {
            "type": "thinking",
            "thinking": "Let me see.",
            "signature": hashed_signature("Let me see."),
        },
        {"type": "text", "text": "I look now.\n\n"},
        {"type": "tool_use", "id": "call_0", "name": "look", "input": {"at": "Köln"}},
        {"type": "tool_use", "id": "call_1", "name": "wait", "input": {}},
    ]


def test_thinking_that_was_turned_off_is_not_sent() -> None:
    none = ThinkingShown.NONE
    assert writer(none).parts(reasoning("hm")) == b""
    assert "hm" not in streamed([*reasoning("hm"), *content("a")], None, none).decode()
    assert [block.type for block in whole(INTERLEAVED, thinking=none).content] == ["text"]


def test_omitted_thinking_is_in_the_signature_only() -> None:
    stream = streamed(reasoning("Let me", " see."), thinking=ThinkingShown.OMITTED)
    (block,) = accumulated(stream).content
    assert block.type == "thinking"
    assert block.thinking == ""
    assert carried_thought(block.signature) == "Let me see."


@pytest.mark.parametrize(
    ("parts", "end", "reason", "sequence"),
    [
        (content("a"), last(), "end_turn", None),
        (content("a"), last(FinishReason.LENGTH), "max_tokens", None),
        (content("a"), last(stop="END"), "stop_sequence", "END"),
        (call(0, "look", "{}"), last(), "tool_use", None),
        (call(0, "look", "{}"), last(FinishReason.LENGTH), "max_tokens", None),
    ],
)
def test_the_stop_reason_is_reported(
    parts: list[Part], end: Delta, reason: str, sequence: str | None
) -> None:
    for message in (accumulated(streamed(parts, end)), whole(parts, end)):
        assert message.stop_reason == reason
        assert message.stop_sequence == sequence


def test_a_request_for_cache_diagnostics_is_answered_with_no_diagnosis() -> None:
    body = writer(diagnosed=True).whole([Collected(usage=USAGE)])
    assert json.loads(body)["diagnostics"] == {"cache_miss_reason": {"type": "unavailable"}}
    MESSAGE.validate_json(body, strict=True)


# --- failures --------------------------------------------------------------------------------


def test_a_failure_within_a_stream_is_an_error_event() -> None:
    spelled = writer()
    stream = spelled.parts(content("a")) + spelled.error(EngineDied())
    assert stream.endswith(b"\n\n")
    with pytest.raises(APIStatusError) as caught:
        accumulated(stream)
    assert caught.value.body == {
        "type": "error",
        "error": {"type": "overloaded_error", "message": EngineDied().message},
        "request_id": "req_00000000000000aa-r1",
    }


def test_an_end_without_usage_is_a_fault_of_the_engine() -> None:
    with pytest.raises(EngineFault):
        writer().ending(Delta("u", (), 0, FinishReason.STOP))
    with pytest.raises(EngineFault):
        writer().whole([Collected()])


def test_a_whole_answer_has_nothing_of_the_input_of_a_call_that_was_cut() -> None:
    begun = call(0, "look", '{"at": ', '"K')
    message = whole(begun, last(FinishReason.LENGTH))
    assert message.stop_reason == "max_tokens"
    assert [block.model_dump(include={"name", "input"}) for block in message.content] == [
        {"name": "look", "input": {}}
    ]
    pieces = [event["delta"] for event in events(streamed(begun, last(FinishReason.LENGTH)))[2:4]]
    assert [piece["partial_json"] for piece in pieces] == ['{"at": ', '"K']
