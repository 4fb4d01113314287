"""A chat's answer is spelled as OpenAI spells it, streamed and whole."""

import json
from typing import Any, cast

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from node.dialects.base import Collected
from node.dialects.chat_answer import ChatAnswer, ChatStyle
from node.errors import EngineFault
from node.protocol.messages import FinishReason
from node.types import Part
from tests.node.dialects.openai_stream import (
    HEAD,
    call,
    chunks,
    content,
    last,
    reasoning,
    streamed,
    whole,
    with_client,
)

LEGACY = ChatStyle(is_legacy=True)
WITH_USAGE = ChatStyle(include_usage=True)
TWO_CALLS = [
    reasoning("Let me "),
    reasoning("see."),
    content("I call.\n\n"),
    *call(0, "find", '{"q": "', 'é \\"x\\"', '"}'),
    *call(1, "stop", "{}"),
]


def answer(style: ChatStyle | None = None) -> ChatAnswer:
    return ChatAnswer(HEAD, style or ChatStyle())


def deltas(parts: list[Part], style: ChatStyle | None = None) -> list[Any]:
    return [each["choices"][0]["delta"] for each in chunks(streamed(answer(style), parts))]


def final(parts: list[Part], style: ChatStyle | None = None) -> Any:
    """The completion that OpenAI's client puts together from the stream."""

    def use(client: openai.OpenAI) -> Any:
        stream = client.chat.completions.stream(
            model="m", messages=[{"role": "user", "content": "hi"}]
        )
        with stream as events:
            for _ in events:
                pass
            return events.get_final_completion()

    return with_client(streamed(answer(style), parts), use)


def test_chunks_are_what_openai_sends() -> None:
    text = 'a "quoted"\nline é 🙂'
    common = {
        "id": "chatcmpl-0123456789abcdef-r1",
        "object": "chat.completion.chunk",
        "created": 99,
        "model": "alias",
    }
    choice = {"index": 0, "logprobs": None, "finish_reason": None}
    assert chunks(streamed(answer(), [content(text), content(text)])) == [
        {**common, "choices": [{**choice, "delta": {"role": "assistant", "content": text}}]},
        {**common, "choices": [{**choice, "delta": {"content": text}}]},
        {**common, "choices": [{**choice, "delta": {}, "finish_reason": "stop"}]},
    ]


@pytest.mark.parametrize("style", [ChatStyle(), WITH_USAGE, LEGACY, ChatStyle(reasoning="both")])
def test_every_chunk_is_valid_and_no_delta_holds_null(style: ChatStyle) -> None:
    parts = TWO_CALLS if style is not LEGACY else TWO_CALLS[:7]
    for chunk in chunks(streamed(answer(style), parts)):
        ChatCompletionChunk.model_validate(chunk, strict=True)
        for choice in chunk["choices"]:
            assert b"null" not in json.dumps(choice["delta"]).encode()


def test_the_role_comes_once_with_whatever_comes_first() -> None:
    firsts = ([content("a")], [reasoning("a")], call(0, "f", "{}"))
    for parts in firsts:
        first, *others = deltas([*parts, content("b")])
        assert first["role"] == "assistant"
        assert not any("role" in delta for delta in others)


def test_parts_of_one_step_are_one_write_of_several_events() -> None:
    together = answer()
    body = together.parts(TWO_CALLS) + together.ending(last())
    assert body == streamed(answer(), TWO_CALLS)


def test_an_answer_of_nothing_has_the_role_an_empty_content_and_an_end() -> None:
    assert deltas([]) == [{"role": "assistant", "content": ""}, {}]


def test_blank_pieces_are_kept() -> None:
    assert [delta.get("content") for delta in deltas([content("a"), content("\n\n")])] == [
        "a",
        "\n\n",
        None,
    ]


def test_calls_are_told_by_index_with_their_id_and_name_once() -> None:
    told = [delta["tool_calls"] for delta in deltas(TWO_CALLS) if "tool_calls" in delta]
    assert told[0] == [
        {
            "index": 0,
            "id": "call_0",
            "type": "function",
            "function": {"name": "find", "arguments": ""},
        }
    ]
    assert told[1] == [{"index": 0, "function": {"arguments": '{"q": "'}}]
    assert [each["index"] for (each,) in told] == [0, 0, 0, 0, 1, 1]
    assert [each["id"] for (each,) in told if "id" in each] == ["call_0", "call_1"]


def test_the_pieces_of_the_arguments_are_exactly_their_json() -> None:
    told = [delta["tool_calls"][0] for delta in deltas(TWO_CALLS) if "tool_calls" in delta]
    text = "".join(each["function"]["arguments"] for each in told if each["index"] == 0)
    assert text == '{"q": "é \\"x\\""}'


def test_openais_client_puts_the_whole_message_together() -> None:
    completion = final(TWO_CALLS)
    message = completion.choices[0].message
    assert message.content == "I call.\n\n"
    assert message.reasoning_content == "Let me see."
    assert [
        (each.id, each.function.name, each.function.arguments) for each in message.tool_calls
    ] == [
        ("call_0", "find", '{"q": "é \\"x\\""}'),
        ("call_1", "stop", "{}"),
    ]
    assert completion.choices[0].finish_reason == "tool_calls"


def test_streamed_and_whole_tell_the_same() -> None:
    collected = whole(answer(), TWO_CALLS)
    told = final(TWO_CALLS).choices[0]
    message = collected["choices"][0]["message"]
    assert message["content"] == told.message.content
    assert message["reasoning_content"] == told.message.reasoning_content
    functions = [each.function for each in told.message.tool_calls]
    assert [call["function"] for call in message["tool_calls"]] == [
        {"name": each.name, "arguments": each.arguments} for each in functions
    ]
    assert collected["choices"][0]["finish_reason"] == told.finish_reason


def test_a_call_of_the_older_form_is_a_function_call() -> None:
    parts = [content("So. "), *call(0, "find", '{"q":', "1}")]
    told = deltas(parts, LEGACY)
    assert told[1:] == [
        {"function_call": {"name": "find", "arguments": ""}},
        {"function_call": {"arguments": '{"q":'}},
        {"function_call": {"arguments": "1}"}},
        {},
    ]
    assert chunks(streamed(answer(LEGACY), parts))[-1]["choices"][0]["finish_reason"] == (
        "function_call"
    )
    choice = ChatCompletion.model_validate(whole(answer(LEGACY), parts)).choices[0]
    assert choice.finish_reason == "function_call"
    assert choice.message.function_call is not None
    assert choice.message.function_call.arguments == '{"q":1}'
    assert choice.message.tool_calls is None


@pytest.mark.parametrize(
    ("parts", "finish", "reason"),
    [
        ([content("a")], FinishReason.STOP, "stop"),
        ([content("a")], FinishReason.LENGTH, "length"),
        (call(0, "f", "{}"), FinishReason.STOP, "tool_calls"),
        ([*call(0, "f", "{}"), content("a")], FinishReason.LENGTH, "length"),
    ],
)
def test_the_reason_of_the_end_is_told(
    parts: list[Part], finish: FinishReason, reason: str
) -> None:
    end = chunks(streamed(answer(), parts, last(finish)))[-1]
    assert end["choices"][0]["finish_reason"] == reason
    assert end["choices"][0]["delta"] == {}
    assert whole(answer(), parts, finish)["choices"][0]["finish_reason"] == reason


def test_usage_is_null_on_all_chunks_but_its_own() -> None:
    *others, usage = chunks(streamed(answer(WITH_USAGE), TWO_CALLS))
    assert all(chunk["usage"] is None for chunk in others)
    assert usage["choices"] == []
    assert usage["usage"] == {
        "prompt_tokens": 7,
        "completion_tokens": 5,
        "total_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 3},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    assert whole(answer(), TWO_CALLS)["usage"] == usage["usage"]


def test_without_the_option_no_chunk_has_usage() -> None:
    assert not any("usage" in chunk for chunk in chunks(streamed(answer(), [content("a")])))


@pytest.mark.parametrize(
    ("style", "fields"),
    [
        (ChatStyle(), {"reasoning_content"}),
        (ChatStyle(reasoning="reasoning"), {"reasoning"}),
        (ChatStyle(reasoning="both"), {"reasoning_content", "reasoning"}),
        (ChatStyle(reasoning=None), set()),
    ],
)
def test_reasoning_is_told_in_the_fields_of_the_option(style: ChatStyle, fields: set[str]) -> None:
    parts = [reasoning("hm"), content("a")]
    message = whole(answer(style), parts)["choices"][0]["message"]
    assert {field for field in message if "reasoning" in field} == fields
    told = [delta for delta in deltas(parts, style) if set(delta) - {"role", "content"}]
    assert [set(delta) - {"role"} for delta in told] == ([fields] if fields else [])
    assert all(message[field] == "hm" for field in fields)


def test_reasoning_that_is_not_sent_does_not_open_the_stream() -> None:
    writer = answer(ChatStyle(reasoning=None))
    assert writer.parts([reasoning("hm")]) == b""
    assert chunks(writer.ending(last()))[0]["choices"][0]["delta"] == {
        "role": "assistant",
        "content": "",
    }


def test_a_whole_answer_of_text_is_valid_and_has_no_fields_of_other_answers() -> None:
    body = whole(answer(), [content("he"), content("y")])
    assert ChatCompletion.model_validate(body).choices[0].message.content == "hey"
    message = {"role": "assistant", "content": "hey", "refusal": None}
    assert body["choices"] == [
        {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    ]
    assert body["id"] == "chatcmpl-0123456789abcdef-r1"
    assert body["object"] == "chat.completion"


def test_content_is_null_beside_calls_only() -> None:
    message = whole(answer(), call(0, "f", "{}"))["choices"][0]["message"]
    assert message["content"] is None
    cut = whole(answer(), [reasoning("hm")], FinishReason.LENGTH)["choices"][0]
    assert cut["message"]["content"] == ""
    assert cut["message"]["reasoning_content"] == "hm"
    assert cut["finish_reason"] == "length"


def test_a_failure_is_one_event_that_openais_client_raises() -> None:
    writer = answer()
    body = writer.parts([content("a")]) + writer.error(EngineFault("It broke."))
    assert b"[DONE]" not in body

    def use(client: openai.OpenAI) -> list[str]:
        stream = client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hi"}], stream=True
        )
        return [cast(str, chunk.choices[0].delta.content) for chunk in stream]

    with pytest.raises(openai.APIError, match="It broke"):
        with_client(body, use)


def test_an_answer_without_usage_is_a_fault_of_the_engine() -> None:
    with pytest.raises(EngineFault):
        answer().whole([Collected()])


def test_silence_is_a_comment() -> None:
    assert answer().silence.startswith(b": ")
    assert answer().silence.endswith(b"\n\n")
