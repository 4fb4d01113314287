"""Deltas in, bytes out: one send for each wake-up, and nothing before the first content."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.types import Message

from node.agent.batch import Batch
from node.dialects.anthropic.body import read_messages
from node.dialects.base import ResponseHead, Writer
from node.dialects.chat.body import read_chat
from node.dialects.ollama.chat import OllamaRequest, read_ollama_chat
from node.dialects.responses.body import read_responses
from node.engines.lease import ANOTHER_IN_USE, BEING_UNLOADED, ModelAwaited
from node.errors import EngineDied, EngineFault
from node.ipc.messages import Accepted, Delta, Part, PartKind, Progress, RowUsage
from node.protocol.event_stream import ANTHROPIC_PING
from node.protocol.messages import FinishReason
from node.server.stream import EventStream, collect
from tests.node.serving import chat_body, data_of

USAGE = RowUsage(1, 0, 2, 0, 0, 0)


def delta(*texts: str, finish: FinishReason | None = None) -> Delta:
    parts = tuple(Part(PartKind.CONTENT, text) for text in texts)
    return Delta("u", parts, 1, finish, None if finish is None else USAGE)


async def batches(*items: Batch | Exception) -> AsyncIterator[Batch]:
    for item in items:
        if isinstance(item, Exception):
            raise item
        yield item


def answer(**fields: Any) -> Writer:
    parsed = read_chat(json.dumps(chat_body(stream=True, **fields)).encode())
    return parsed.writer(ResponseHead("id", "m", 0))


class Wire:
    """Records the messages that a server would send."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    async def send(self, message: Message) -> None:
        self.messages.append(message)

    @property
    def bodies(self) -> list[bytes]:
        return [message["body"] for message in self.messages[1:]]


async def stream(*items: Batch | Exception, idle_interval_s: float = 60.0, **fields: Any) -> Wire:
    wire = Wire()
    writer = EventStream(answer(**fields), wire.send, [(b"x-a", b"b")])
    await writer.run(batches(*items), idle_interval_s)
    return wire


async def test_all_that_waits_goes_out_in_one_send() -> None:
    ending = delta("c", finish=FinishReason.STOP)
    wire = await stream([delta("a", "b"), ending], stream_options={"include_usage": True})
    assert wire.messages[0]["status"] == 200
    assert (b"x-a", b"b") in wire.messages[0]["headers"]
    assert (b"content-type", b"text/event-stream") in wire.messages[0]["headers"]
    assert len(wire.bodies) == 1
    assert not wire.messages[1]["more_body"]
    chunks = data_of(wire.bodies[0].decode())
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:4]]
    assert deltas == [
        {"role": "assistant", "content": "a"},
        {"content": "b"},
        {"content": "c"},
        {},
    ]
    assert chunks[4]["usage"]["completion_tokens"] == 2
    assert chunks[5] == "[DONE]"


def choice_delta(choice: int, text: str, *, open_choices: int | None = None) -> Delta:
    """Returns a delta of one choice; the last one of it if `open_choices` is given."""
    parts = (Part(PartKind.CONTENT, text),)
    if open_choices is None:
        return Delta("u", parts, 1, choice=choice)
    usage = None if open_choices else USAGE
    return Delta(
        *("u", parts, 1, FinishReason.STOP, usage), choice=choice, open_choices=open_choices
    )


TWO_CHOICES = (
    [choice_delta(0, "a"), choice_delta(1, "x")],
    [choice_delta(1, "y", open_choices=1)],
    [choice_delta(0, "b", open_choices=0)],
)


async def test_a_stream_ends_with_the_last_of_its_choices() -> None:
    wire = await stream(*TWO_CHOICES, n=2)
    assert [message["more_body"] for message in wire.messages[1:]] == [True, True, False]
    chunks = data_of(b"".join(wire.bodies).decode())
    assert chunks.pop() == "[DONE]"
    texts = {0: "", 1: ""}
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        texts[choice["index"]] += choice["delta"].get("content", "")
    assert texts == {0: "ab", 1: "xy"}


async def test_collect_joins_each_choice_in_its_place() -> None:
    body, _ = await collect(batches(*TWO_CHOICES), answer(n=2))
    whole = json.loads(body)
    assert [choice["message"]["content"] for choice in whole["choices"]] == ["ab", "xy"]
    assert whole["usage"]["completion_tokens"] == 2
    with pytest.raises(EngineFault):
        await collect(batches(*TWO_CHOICES[:2]), answer(n=2))


async def test_the_head_waits_for_the_first_content() -> None:
    wire = await stream([delta()], [delta("a")], [delta(finish=FinishReason.LENGTH)])
    assert [message["type"] for message in wire.messages] == [
        "http.response.start",
        "http.response.body",
        "http.response.body",
    ]
    assert [message["more_body"] for message in wire.messages[1:]] == [True, False]


async def test_an_answer_without_text_still_has_its_role() -> None:
    wire = await stream([delta(finish=FinishReason.STOP)])
    chunks = data_of(wire.bodies[0].decode())
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[1]["choices"][0]["finish_reason"] == "stop"


async def test_silence_becomes_comments_and_the_role_waits_for_content() -> None:
    ending = delta("a", finish=FinishReason.STOP)
    wire = await stream([], [], [ending], idle_interval_s=0.0)
    assert wire.bodies[:2] == [b": keep-alive\n\n"] * 2
    assert data_of(wire.bodies[2].decode())[0]["choices"][0]["delta"]["role"] == "assistant"


async def test_the_keep_alives_of_a_prefill_report_its_progress() -> None:
    ending = delta("a", finish=FinishReason.STOP)
    wire = await stream(
        [], Progress("u", 650, 2000), Progress("u", 0, 0), [ending], idle_interval_s=0.0
    )
    assert wire.bodies[:3] == [b": keep-alive\n\n", b": prefill 32 %\n\n", b": prefill 0 %\n\n"]
    wire = await stream(Progress("u", 650, 2000), [ending])
    assert len(wire.bodies) == 1


async def test_the_keep_alives_of_a_load_report_its_progress_or_what_it_waits_for() -> None:
    ending = delta("a", finish=FinishReason.STOP)
    steps = (
        ModelAwaited("org/m", 0.0, ANOTHER_IN_USE),
        ModelAwaited("org/m", 0.0, BEING_UNLOADED),
        ModelAwaited("org/m", 0.424),
        ModelAwaited("a\nb", 0.0),
    )
    wire = await stream(*steps, [ending], idle_interval_s=0.0)
    assert wire.bodies[:4] == [
        b": waiting for org/m, another model is in use\n\n",
        b": waiting for org/m, it is being unloaded\n\n",
        b": loading org/m 42 %\n\n",
        b": loading 'a\\nb' 0 %\n\n",
    ]
    assert len((await stream(*steps, [ending])).bodies) == 1


async def test_a_dialect_whose_keep_alive_is_an_event_has_the_comments_before_it() -> None:
    parsed = read_messages(json.dumps({**chat_body(stream=True), "max_tokens": 9}).encode())
    wire, ping = Wire(), ANTHROPIC_PING
    steps: tuple[Batch, ...] = (
        [],
        ModelAwaited("m", 0.5),
        Progress("u", 1, 2),
        [delta(finish=FinishReason.STOP)],
    )
    writer = EventStream(parsed.writer(ResponseHead("id", "m", 0)), wire.send, [])
    await writer.run(batches(*steps), 0.0)
    assert wire.bodies[:3] == [ping, b": loading m 50 %\n\n" + ping, b": prefill 50 %\n\n" + ping]


async def test_a_dialect_without_comments_has_spaces_before_its_lines() -> None:
    body = json.dumps(chat_body()).encode()
    parsed = read_ollama_chat(body, str)
    assert isinstance(parsed, OllamaRequest)
    steps: tuple[Batch, ...] = (
        [],
        ModelAwaited("m", 0.5),
        Progress("u", 1, 2),
        [delta("a", finish=FinishReason.STOP)],
    )
    wire = Wire()
    writer = EventStream(parsed.writer(ResponseHead("id", "m", 0)), wire.send, [])
    await writer.run(batches(*steps), 0.0)
    assert wire.messages[0]["headers"][0] == (b"content-type", b"application/x-ndjson")
    assert wire.bodies[:3] == [b" "] * 3
    lines = [json.loads(line) for line in b"".join(wire.bodies).splitlines()]
    assert [line["message"]["content"] for line in lines] == ["a", ""]


async def test_tokens_without_text_are_silence() -> None:
    ending = delta(finish=FinishReason.STOP)
    assert len((await stream([delta()], [delta()], [ending], idle_interval_s=0.0)).bodies) == 3
    assert len((await stream([delta()], [], [ending], idle_interval_s=60.0)).bodies) == 1


async def test_a_failure_before_the_head_is_left_to_the_caller() -> None:
    wire = Wire()
    with pytest.raises(EngineDied):
        await EventStream(answer(), wire.send, []).run(batches([delta()], EngineDied()), 60.0)
    assert wire.messages == []


async def test_a_failure_after_the_head_is_one_event_without_done() -> None:
    wire = await stream([delta("a")], EngineDied())
    assert len(wire.bodies) == 2
    assert data_of(wire.bodies[1].decode())[0]["error"]["code"] == "engine_died"
    assert not wire.messages[-1]["more_body"]
    assert b"[DONE]" not in b"".join(wire.bodies)


async def test_cached_tokens_are_in_the_head() -> None:
    wire = await stream(Accepted("u", 9, 7), [delta("a", finish=FinishReason.STOP)])
    assert (b"x-fleet-cached-tokens", b"7") in wire.messages[0]["headers"]
    assert (b"x-fleet-prompt-tokens", b"9") in wire.messages[0]["headers"]
    wire = await stream(
        [], Accepted("u", 9, 7), [delta(finish=FinishReason.STOP)], idle_interval_s=0.0
    )
    assert b"x-fleet-cached-tokens" not in dict(wire.messages[0]["headers"])


async def test_collect_joins_the_same_deltas() -> None:
    body, headers = await collect(
        batches(
            Accepted("u", 1, 0),
            [delta("a")],
            [],
            Progress("u", 1, 2),
            [delta("b", "c", finish=FinishReason.LENGTH)],
        ),
        answer(),
    )
    assert headers == [(b"x-fleet-prompt-tokens", b"1"), (b"x-fleet-cached-tokens", b"0")]
    whole = json.loads(body)
    assert whole["choices"][0]["message"]["content"] == "abc"
    assert whole["choices"][0]["finish_reason"] == "length"
    assert whole["usage"]["prompt_tokens"] == 1


async def test_collect_returns_a_cancelled_response_as_far_as_it_got() -> None:
    parsed = read_responses(b'{"model": "m", "input": "x"}')
    head = ResponseHead("0123456789abcdef-a", "m", 0)
    cancelled = Delta("u", (), 0, FinishReason.CANCELLED)
    body, headers = await collect(batches([delta("a")], [cancelled]), parsed.writer(head))
    assert headers == []
    response = json.loads(body)
    assert response["status"] == "cancelled"
    assert response["output"][0]["content"][0]["text"] == "a"
    with pytest.raises(EngineFault):
        await collect(batches([delta("a")], [cancelled]), answer())


async def test_collect_raises_what_the_sequence_raises() -> None:
    with pytest.raises(EngineDied):
        await collect(batches([delta("a")], EngineDied()), answer())
    with pytest.raises(EngineFault):
        await collect(batches([delta("a")]), answer())
