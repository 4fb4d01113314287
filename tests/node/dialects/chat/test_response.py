"""Chat responses are serialized as in OpenAI's API, streamed and whole."""

import json
from typing import Any, cast

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

from node.dialects.base import Collected
from node.dialects.chat.body import read_chat
from node.dialects.chat.response import ChatStyle, ChatWriter
from node.errors import EngineFault
from node.ipc.messages import Part
from node.protocol.messages import FinishReason
from tests.node.dialects.openai_stream import (
    HEAD,
    call,
    chunks,
    content,
    content_of,
    end,
    last,
    reasoning,
    serving,
    streamed,
    token,
    whole,
    whole_of,
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


def answer(style: ChatStyle | None = None) -> ChatWriter:
    return ChatWriter(HEAD, style or ChatStyle())


def deltas(parts: list[Part], style: ChatStyle | None = None) -> list[Any]:
    return [each["choices"][0]["delta"] for each in chunks(streamed(answer(style), parts))]


def final(parts: list[Part], style: ChatStyle | None = None) -> Any:
    """Returns the completion that OpenAI's client builds from the stream."""

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
def test_every_chunk_is_valid_and_no_delta_contains_null(style: ChatStyle) -> None:
    parts = TWO_CALLS if style is not LEGACY else TWO_CALLS[:7]
    for chunk in chunks(streamed(answer(style), parts)):
        ChatCompletionChunk.model_validate(chunk, strict=True)
        for choice in chunk["choices"]:
            assert b"null" not in json.dumps(choice["delta"]).encode()


def test_the_role_is_sent_once_with_the_first_part() -> None:
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


def test_calls_are_streamed_by_index_with_their_id_and_name_once() -> None:
    sent = [delta["tool_calls"] for delta in deltas(TWO_CALLS) if "tool_calls" in delta]
    assert sent[0] == [
        {
            "index": 0,
            "id": "call_0",
            "type": "function",
            "function": {"name": "find", "arguments": ""},
        }
    ]
    assert sent[1] == [{"index": 0, "function": {"arguments": '{"q": "'}}]
    assert [each["index"] for (each,) in sent] == [0, 0, 0, 0, 1, 1]
    assert [each["id"] for (each,) in sent if "id" in each] == ["call_0", "call_1"]


def test_the_pieces_of_the_arguments_are_exactly_their_json() -> None:
    sent = [delta["tool_calls"][0] for delta in deltas(TWO_CALLS) if "tool_calls" in delta]
    text = "".join(each["function"]["arguments"] for each in sent if each["index"] == 0)
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


def test_streamed_and_whole_answers_are_the_same() -> None:
    collected = whole(answer(), TWO_CALLS)
    accumulated = final(TWO_CALLS).choices[0]
    message = collected["choices"][0]["message"]
    assert message["content"] == accumulated.message.content
    assert message["reasoning_content"] == accumulated.message.reasoning_content
    functions = [each.function for each in accumulated.message.tool_calls]
    assert [call["function"] for call in message["tool_calls"]] == [
        {"name": each.name, "arguments": each.arguments} for each in functions
    ]
    assert collected["choices"][0]["finish_reason"] == accumulated.finish_reason


def test_a_call_of_the_older_form_is_a_function_call() -> None:
    parts = [content("So. "), *call(0, "find", '{"q":', "1}")]
    sent = deltas(parts, LEGACY)
    assert sent[1:] == [
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
def test_the_finish_reason_is_reported(
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
def test_reasoning_is_sent_in_the_fields_of_the_option(style: ChatStyle, fields: set[str]) -> None:
    parts = [reasoning("hm"), content("a")]
    message = whole(answer(style), parts)["choices"][0]["message"]
    assert {field for field in message if "reasoning" in field} == fields
    sent = [delta for delta in deltas(parts, style) if set(delta) - {"role", "content"}]
    assert [set(delta) - {"role"} for delta in sent] == ([fields] if fields else [])
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
    assert answer().keep_alive.startswith(b": ")
    assert answer().keep_alive.endswith(b"\n\n")


# --- choices and logprobs --------------------------------------------------------------------

THREE = ChatStyle(include_usage=True, choices=3, has_logprobs=True)
HE, Y = token("he", -0.5, ("he", -0.5), ("ha", -1.5)), token("y", -0.25)


def three() -> bytes:
    """Returns a stream of three choices that end one after another: text, a call, and no
    content."""
    writer = answer(THREE)
    return b"".join(
        (
            writer.parts([content_of(HE)], 1),
            writer.parts([reasoning("hm"), content("a")], 0),
            writer.ending(end(2, 2)),
            writer.parts([content_of(Y)], 1),
            writer.parts(call(0, "f", "{}"), 0),
            writer.ending(end(0, 1)),
            writer.ending(end(1, 0)),
        )
    )


def test_each_choice_has_its_role_its_end_and_its_index_and_they_begin_in_order() -> None:
    sent = [each["choices"][0] for each in chunks(three()) if each["choices"]]
    assert [each["index"] for each in sent] == [0, 1, 2, 1, 0, 0, 2, 1, 0, 0, 0, 1]
    for index, reason in ((0, "tool_calls"), (1, "stop"), (2, "stop")):
        mine = [each for each in sent if each["index"] == index]
        assert [each["delta"].get("role") for each in mine] == [
            "assistant",
            *[None] * (len(mine) - 1),
        ]
        assert [each["finish_reason"] for each in mine] == [*[None] * (len(mine) - 1), reason]


def test_choices_without_visible_output_have_their_roles_and_ends() -> None:
    writer = answer(ChatStyle(choices=2, reasoning=None))
    assert writer.parts([reasoning("hm")], 1) == b""
    sent = [
        each["choices"][0] for each in chunks(writer.ending(end(1, 1)) + writer.ending(end(0, 0)))
    ]
    assert [(each["index"], each["finish_reason"]) for each in sent] == [
        (0, None),
        (1, None),
        (1, "stop"),
        (0, "stop"),
    ]


def test_usage_and_done_are_sent_once_after_the_last_choice() -> None:
    *others, usage = chunks(three())
    assert three().count(b"[DONE]") == 1
    assert usage["usage"]["total_tokens"] == 12
    assert all(each["usage"] is None and each["choices"] for each in others)


def test_chunks_of_choices_and_logprobs_are_valid() -> None:
    for chunk in chunks(three()):
        ChatCompletionChunk.model_validate(chunk, strict=True)


def test_a_chunk_has_the_logprobs_of_its_own_tokens() -> None:
    sent = [
        each["choices"][0]["logprobs"]["content"]
        for each in chunks(three())
        if each["choices"] and each["choices"][0]["logprobs"]
    ]
    assert [[each["token"] for each in tokens] for tokens in sent] == [["he"], ["y"]]
    assert sent[0][0]["top_logprobs"][1] == {"token": "ha", "logprob": -1.5, "bytes": [104, 97]}


def test_openais_client_puts_choices_and_logprobs_together() -> None:
    def use(client: openai.OpenAI) -> Any:
        with client.chat.completions.stream(
            model="m", messages=[{"role": "user", "content": "hi"}], n=3, logprobs=True
        ) as events:
            for _ in events:
                pass
            return events.get_final_completion()

    choices = {each.index: each for each in with_client(three(), use).choices}
    assert choices[1].message.content == "hey"
    assert [each.logprob for each in choices[1].logprobs.content] == [-0.5, -0.25]
    assert choices[0].message.tool_calls[0].function.name == "f"
    assert choices[2].message.content == ""


def test_a_whole_answer_has_all_choices() -> None:
    body = whole_of(answer(THREE), [call(0, "f", "{}"), [content_of(HE), content_of(Y)], []])
    ChatCompletion.model_validate(body, strict=True)
    first, second, third = body["choices"]
    assert [each["index"] for each in body["choices"]] == [0, 1, 2]
    assert (first["finish_reason"], second["finish_reason"]) == ("tool_calls", "stop")
    assert [each["token"] for each in second["logprobs"]["content"]] == ["he", "y"]
    assert third["logprobs"] == {"content": [], "refusal": None}
    assert body["usage"]["completion_tokens"] == 5


class _Weather(BaseModel):
    city: str
    is_warm: bool


def test_openais_client_parses_an_answer_of_a_models_schema() -> None:
    requests: list[bytes] = []
    text = '{"city": "Bern", "is_warm": false}'
    collected = Collected(usage=last().usage)
    collected.add([content(text)])
    body = answer().whole([collected])

    with serving(body, "application/json", requests) as url:
        client = openai.OpenAI(api_key="k", base_url=url, max_retries=0)
        completion = client.chat.completions.parse(
            model="m", messages=[{"role": "user", "content": "hi"}], response_format=_Weather
        )
        client.close()
    assert completion.choices[0].message.parsed == _Weather(city="Bern", is_warm=False)
    constraint = read_chat(requests[0]).request.constraint
    assert constraint is not None
    assert constraint.param == "response_format.json_schema.schema"
    assert json.loads(constraint.text)["required"] == ["city", "is_warm"]
