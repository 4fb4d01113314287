"""Every field of a body is honoured or refused, and answers are spelled as OpenAI's are."""

import json
from typing import Any

import pytest

from node.errors import BadRequest, NodeError, Unsupported
from node.openai import (
    Answer,
    TextRequest,
    error_body,
    model_body,
    models_body,
    parse_chat,
    parse_completion,
)
from node.protocol.messages import FinishReason
from node.types import RowUsage, SamplingParams

USAGE = RowUsage(7, 3, 5, 0.1, 0.2, 0.3)


def chat(**fields: Any) -> TextRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    return parse_chat(json.dumps(body).encode())


def completion(**fields: Any) -> TextRequest:
    return parse_completion(json.dumps({"model": "m", "prompt": "hi", **fields}).encode())


def test_absent_fields_take_openais_defaults() -> None:
    request = chat()
    assert request.sampling == SamplingParams(temperature=1.0)
    assert request.stops == ()
    assert request.max_tokens is None
    assert not request.stream
    assert not request.include_usage


def test_null_means_absent() -> None:
    sampling = {
        *("temperature", "top_p", "top_k", "min_p", "seed", "repetition_penalty"),
        *("presence_penalty", "frequency_penalty", "logit_bias"),
    }
    length = {"stop", "max_tokens", "max_completion_tokens", "stream", "stream_options"}
    later = {
        *("tools", "tool_choice", "functions", "function_call", "response_format", "n", "best_of"),
        *("logprobs", "top_logprobs", "echo", "suffix", "reasoning_effort", "enable_thinking"),
        *("chat_template_kwargs", "modalities", "audio", "prediction", "store", "service_tier"),
    }
    fields = sampling | length | later
    assert chat(**dict.fromkeys(fields)) == chat()


def test_every_sampling_field_arrives() -> None:
    request = chat(
        temperature=0,
        top_p=0.5,
        top_k=40,
        min_p=0.1,
        seed=-3,
        repetition_penalty=1.1,
        presence_penalty=-2,
        frequency_penalty=2,
        logit_bias={"5": -100, "7": 1.5},
    )
    assert request.sampling == SamplingParams(
        temperature=0,
        top_p=0.5,
        top_k=40,
        min_p=0.1,
        seed=-3,
        repetition_penalty=1.1,
        presence_penalty=-2,
        frequency_penalty=2,
        logit_bias=((5, -100), (7, 1.5)),
    )


@pytest.mark.parametrize("top_k", [-1, 0, 2**31, 10**30])
def test_a_top_k_without_effect_means_no_limit(top_k: int) -> None:
    assert chat(top_k=top_k).sampling.top_k == 0


def test_max_completion_tokens_wins() -> None:
    assert chat(max_tokens=3, max_completion_tokens=5).max_tokens == 5
    assert chat(max_tokens=3).max_tokens == 3
    assert chat(max_tokens=10**30).max_tokens == 2**31 - 1


@pytest.mark.parametrize(
    ("stop", "expected"), [("a", ("a",)), (["a", "b"], ("a", "b")), ([], ()), (None, ())]
)
def test_stop_is_a_string_or_a_list(stop: object, expected: tuple[str, ...]) -> None:
    assert chat(stop=stop).stops == expected


def test_include_usage_comes_from_stream_options() -> None:
    assert chat(stream=True, stream_options={"include_usage": True}).include_usage
    assert not chat(stream=True, stream_options={}).include_usage


def test_unknown_fields_are_ignored() -> None:
    messages = [{"role": "user", "content": "hi", "name": "me"}]
    assert chat(user="u", metadata={}, store=False, messages=messages) == chat()
    assert chat(parallel_tool_calls=True) == chat()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"min_p": -1}, "min_p"),
        ({"min_p": 2}, "min_p"),
        ({"seed": "x"}, "seed"),
        ({"seed": 2**63}, "seed"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"repetition_penalty": 11}, "repetition_penalty"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"frequency_penalty": -2.5}, "frequency_penalty"),
        ({"logit_bias": {"a": 1}}, "logit_bias.a"),
        ({"logit_bias": {"-1": 1}}, "logit_bias.-1"),
        ({"logit_bias": {"1": 101}}, "logit_bias.1"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"stop": ""}, "stop"),
        ({"stop": 5}, "stop"),
        ({"stop": ["a", ""]}, "stop"),
        ({"stop": ["a", 5]}, "stop"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": []}, "stream_options"),
        ({"model": ""}, "model"),
        ({"model": 5}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "wizard", "content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": ["hi"]}]}, "messages[0].content[0]"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "smell"}]}]},
            "messages[0].content[0].type",
        ),
    ],
)
def test_a_value_that_is_not_valid_is_refused_with_its_field(
    fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(BadRequest) as caught:
        chat(**fields)
    assert not isinstance(caught.value, Unsupported)
    assert caught.value.param == param
    assert caught.value.status == 400
    assert caught.value.message.endswith(".")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"functions": [{}]}, "functions"),
        ({"function_call": "auto"}, "function_call"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"n": 2}, "n"),
        ({"n": True}, "n"),
        ({"best_of": 2}, "best_of"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": 0}, "logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"echo": True}, "echo"),
        ({"suffix": "x"}, "suffix"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"chat_template_kwargs": {"a": 1}}, "chat_template_kwargs"),
        ({"enable_thinking": False}, "enable_thinking"),
        ({"max_thinking_tokens": 5}, "max_thinking_tokens"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"audio": {}}, "audio"),
        ({"prediction": {}}, "prediction"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"store": True}, "store"),
        ({"service_tier": "flex"}, "service_tier"),
        (
            {"messages": [{"role": "assistant", "content": "x", "audio": {"id": "a"}}]},
            "messages[0].audio",
        ),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{}]}]},
            "messages[0].tool_calls",
        ),
        *(
            ({"messages": [{"role": "user", "content": [{"type": kind}]}]}, path)
            for kind in ("image_url", "input_audio", "video_url", "file")
            for path in ("messages[0].content[0].type",)
        ),
    ],
)
def test_what_later_versions_bring_is_refused_and_not_ignored(
    fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(Unsupported) as caught:
        chat(**fields)
    assert caught.value.param == param


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [], "tool_choice": "none", "functions": [], "function_call": "none"},
        {"response_format": {"type": "text"}, "n": 1, "best_of": 1},
        {"logprobs": False, "top_logprobs": 0, "echo": False, "suffix": ""},
        {"chat_template_kwargs": {}, "modalities": ["text"]},
        {"store": False, "service_tier": "auto", "parallel_tool_calls": True},
        {"service_tier": "default", "user": "me", "metadata": {"a": "b"}},
    ],
)
def test_values_that_ask_for_nothing_pass(fields: dict[str, Any]) -> None:
    assert chat(**fields) == chat()


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff", b"[]", b"5", b"null", b"[" * 5000, b'{"model": "\\ud800"}']
)
def test_a_body_that_is_no_json_object_is_refused_with_a_sentence(body: bytes) -> None:
    with pytest.raises(BadRequest, match=r"\.$"):
        parse_chat(body)


@pytest.mark.parametrize("field", ["model", "messages"])
def test_a_missing_field_is_named(field: str) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    del body[field]
    with pytest.raises(BadRequest, match=f"{field} is missing") as caught:
        parse_chat(json.dumps(body).encode())
    assert caught.value.param == field


def test_text_parts_are_joined_and_assistants_may_be_empty() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    request = chat(
        messages=[
            {"role": "developer", "content": "d"},
            {"role": "assistant", "content": None},
            {"role": "user", "content": parts},
        ]
    )
    assert request.messages is not None
    assert [message.content for message in request.messages] == ["d", "", "ab"]
    assert request.prompt_field == "messages"


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [("hi", "hi"), (["hi"], "hi"), ([1, 2], (1, 2)), ([[1, 2]], (1, 2)), ("", "")],
)
def test_a_prompt_is_text_or_token_ids(prompt: object, expected: object) -> None:
    request = completion(prompt=prompt)
    assert request.prompt == expected
    assert request.prompt_field == "prompt"


@pytest.mark.parametrize("prompt", [None, 5, [], [[]], [-1], [True], [1.5], [2**31], [1, "a"], {}])
def test_any_other_prompt_is_refused(prompt: object) -> None:
    with pytest.raises(BadRequest) as caught:
        completion(prompt=prompt)
    assert caught.value.param == "prompt"


@pytest.mark.parametrize("prompt", [["a", "b"], [[1], [2]]])
def test_more_than_one_prompt_is_not_supported(prompt: object) -> None:
    with pytest.raises(Unsupported) as caught:
        completion(prompt=prompt)
    assert caught.value.param == "prompt"


def test_chat_chunks_are_what_openai_sends() -> None:
    answer = Answer(chat(stream=True), "id1", "alias", 99)
    text = 'a "quoted"\nline é 🙂'
    spelled = json.dumps(text).encode()
    first = json.loads(answer.first_head + spelled + answer.content_tail)
    second = json.loads(answer.content_head + spelled + answer.content_tail)
    common = {
        "id": "chatcmpl-id1",
        "object": "chat.completion.chunk",
        "created": 99,
        "model": "alias",
    }
    choice = {"index": 0, "logprobs": None, "finish_reason": None}
    delta = {"role": "assistant", "content": text}
    assert first == {**common, "choices": [{**choice, "delta": delta}]}
    assert second == {**common, "choices": [{**choice, "delta": {"content": text}}]}
    last = json.loads(answer.finish(FinishReason.LENGTH))
    assert last["choices"] == [{**choice, "delta": {}, "finish_reason": "length"}]
    role = answer.role()
    assert role is not None
    assert json.loads(role)["choices"][0]["delta"] == {"role": "assistant", "content": ""}


def test_completion_chunks_have_text_and_no_role() -> None:
    answer = Answer(completion(stream=True), "id1", "alias", 99)
    chunk = json.loads(answer.first_head + b'"x"' + answer.content_tail)
    assert chunk["id"] == "cmpl-id1"
    assert chunk["object"] == "text_completion"
    choice = {"index": 0, "text": "x", "logprobs": None, "finish_reason": None}
    assert chunk["choices"] == [choice]
    assert answer.first_head == answer.content_head
    assert answer.role() is None
    last = json.loads(answer.finish(FinishReason.STOP))
    assert last["choices"] == [{**choice, "text": "", "finish_reason": "stop"}]


def test_usage_is_null_on_all_chunks_but_its_own() -> None:
    answer = Answer(chat(stream=True, stream_options={"include_usage": True}), "i", "m", 0)
    assert json.loads(answer.content_head + b'""' + answer.content_tail)["usage"] is None
    assert json.loads(answer.finish(FinishReason.STOP))["usage"] is None
    chunk = json.loads(answer.usage(USAGE))
    assert chunk["choices"] == []
    assert chunk["usage"] == {
        "prompt_tokens": 7,
        "completion_tokens": 5,
        "total_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 3},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def test_whole_answers_carry_text_reason_and_usage() -> None:
    whole = json.loads(Answer(chat(), "i", "m", 0).whole("hey", FinishReason.STOP, USAGE))
    assert whole["object"] == "chat.completion"
    assert whole["choices"][0]["message"]["content"] == "hey"
    assert whole["choices"][0]["finish_reason"] == "stop"
    assert whole["usage"]["total_tokens"] == 12
    whole = json.loads(Answer(completion(), "i", "m", 0).whole("hey", FinishReason.STOP, USAGE))
    assert whole["object"] == "text_completion"
    assert whole["choices"][0]["text"] == "hey"


def test_errors_and_models_have_openais_shape() -> None:
    error = json.loads(error_body(BadRequest("No.", param="n")))
    assert error == {
        "error": {
            "message": "No.",
            "type": "invalid_request_error",
            "param": "n",
            "code": "invalid_value",
        }
    }
    assert json.loads(error_body(NodeError()))["error"]["type"] == "server_error"
    model = {"id": "m", "object": "model", "created": 5, "owned_by": "mlx-fleet"}
    assert json.loads(model_body("m", 5)) == model
    assert json.loads(models_body(["m"], 5)) == {"object": "list", "data": [model]}
