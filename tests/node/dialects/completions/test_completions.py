"""Completions accept one prompt, and return text only."""

import json
from typing import Any

import pytest
from openai.types import Completion
from openai.types.completion_create_params import CompletionCreateParamsBase

from node.dialects.completions.completions import (
    COMPLETIONS,
    CompletionRequest,
    CompletionWriter,
    read_completion,
)
from node.errors import BadRequest, EngineFault, Unsupported
from node.protocol.messages import FinishReason
from node.request import TextRequest
from tests.node.dialects.openai_stream import (
    HEAD,
    chunks,
    content,
    content_of,
    end,
    last,
    streamed,
    token,
    whole,
    whole_of,
)


def completion(**fields: Any) -> TextRequest:
    return parsed(**fields).request


def parsed(**fields: Any) -> CompletionRequest:
    return read_completion(json.dumps({"model": "m", "prompt": "hi", **fields}).encode())


def answer(**fields: Any) -> CompletionWriter:
    return parsed(**fields).writer(HEAD)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [("hi", "hi"), (["hi"], "hi"), ([1, 2], (1, 2)), ([[1, 2]], (1, 2)), ("", "")],
)
def test_a_prompt_is_text_or_token_ids(prompt: object, expected: object) -> None:
    request = completion(prompt=prompt)
    assert request.prompt == expected
    assert request.prompt_field == "prompt"
    assert request.messages is None


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


def test_a_missing_prompt_is_named() -> None:
    with pytest.raises(BadRequest, match="prompt is missing") as caught:
        read_completion(b'{"model": "m"}')
    assert caught.value.param == "prompt"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"functions": [{}]}, "functions"),
        ({"function_call": {"name": "f"}}, "function_call"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"enable_thinking": False}, "enable_thinking"),
        ({"thinking": {"type": "enabled"}}, "thinking"),
        ({"max_thinking_tokens": 0}, "max_thinking_tokens"),
        ({"thinking_budget": 5}, "thinking_budget"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"chat_template_kwargs": {"a": 1}}, "chat_template_kwargs"),
        ({"add_special_tokens": False}, "add_special_tokens"),
    ],
)
def test_what_only_chats_know_is_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(Unsupported) as caught:
        completion(**fields)
    assert caught.value.param == param


def test_every_known_field_is_applied_refused_or_ignored_and_only_one_of_these() -> None:
    applied = set(COMPLETIONS.body.model_fields)
    refused, ignored = set(COMPLETIONS.refused), set(COMPLETIONS.ignored)
    assert set(COMPLETIONS.notes) == applied
    assert not applied & refused | applied & ignored | refused & ignored
    known = {*CompletionCreateParamsBase.__annotations__, "stream"}
    assert known <= applied | refused | ignored


def test_chunks_have_text_and_no_role() -> None:
    common = {
        "id": "cmpl-0123456789abcdef-r1",
        "object": "text_completion",
        "created": 99,
        "model": "alias",
    }
    choice = {"index": 0, "logprobs": None, "finish_reason": None}
    sent = chunks(streamed(answer(), [content("x é"), content('"')]))
    assert sent == [
        {**common, "choices": [{**choice, "text": "x é"}]},
        {**common, "choices": [{**choice, "text": '"'}]},
        {**common, "choices": [{**choice, "text": "", "finish_reason": "stop"}]},
    ]
    assert [Completion.model_construct(**each).choices for each in sent]


def test_usage_is_on_the_last_chunk_alone() -> None:
    writer = answer(stream=True, stream_options={"include_usage": True})
    *others, usage = chunks(streamed(writer, [content("x")], last(FinishReason.LENGTH)))
    assert not any("usage" in chunk for chunk in others)
    assert others[-1]["choices"][0]["finish_reason"] == "length"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2}


def test_a_whole_answer_is_valid() -> None:
    body = whole(answer(), [content("he"), content("y")], FinishReason.LENGTH)
    validated = Completion.model_validate(body)
    assert validated.choices[0].text == "hey"
    assert validated.choices[0].finish_reason == "length"
    assert validated.usage is not None
    assert validated.usage.total_tokens == 12


def test_a_failure_is_one_event_and_the_stream_is_not_done() -> None:
    event = answer().error(EngineFault("It broke."))
    assert json.loads(event.removeprefix(b"data: "))["error"]["message"] == "It broke."
    assert event.endswith(b"\n\n")
    assert b"[DONE]" not in event


# --- choices and logprobs --------------------------------------------------------------------


def test_logprobs_are_a_count_here() -> None:
    assert completion().logprobs is completion(logprobs=False).logprobs is None
    assert completion(logprobs=0).logprobs == 0
    assert completion(logprobs=5).logprobs == 5


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logprobs": 6}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"best_of": 0}, "best_of"),
    ],
)
def test_counts_that_are_not_valid_are_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        completion(**fields)
    assert not isinstance(caught.value, Unsupported)
    assert caught.value.param == param


def test_all_sampled_answers_are_returned() -> None:
    assert completion(n=3, best_of=3) == completion(n=3) == completion(n=3, best_of=1)
    with pytest.raises(Unsupported) as caught:
        completion(n=2, best_of=3)
    assert caught.value.param == "best_of"


def test_choices_are_distinguished_and_each_has_offsets_of_its_own() -> None:
    writer = answer(n=2, logprobs=1, stream=True, stream_options={"include_usage": True})
    he, y = token("hé", -0.5, ("ha", -0.25)), token("y", -1.0, ("y", -1.0))
    body = b"".join(
        (
            writer.parts([content_of(he), content_of(y)], 1),
            writer.parts([content_of(y)], 0),
            writer.ending(end(1, 1)),
            writer.ending(end(0, 0)),
        )
    )
    *sent, usage = chunks(body)
    for chunk in sent:
        # The class is that of a whole answer, where every choice has ended.
        Completion.model_validate(
            {**chunk, "choices": [{**chunk["choices"][0], "finish_reason": "stop"}]}
        )
    choices = [each["choices"][0] for each in sent]
    assert [each["index"] for each in choices] == [1, 1, 0, 1, 0]
    assert [each["finish_reason"] for each in choices] == [None, None, None, "stop", "stop"]
    assert choices[0]["logprobs"] == {
        "tokens": ["hé"],
        "token_logprobs": [-0.5],
        "top_logprobs": [{"ha": -0.25, "hé": -0.5}],
        "text_offset": [0],
    }
    assert [each["logprobs"]["text_offset"] for each in choices[1:3]] == [[2], [0]]
    assert usage["usage"]["total_tokens"] == 12


def test_a_whole_answer_of_choices_and_logprobs_is_valid() -> None:
    he, y = token("he", -0.5), token("y", -1.0)
    writer = answer(n=2, logprobs=0)
    validated = Completion.model_validate(whole_of(writer, [[content_of(he), content_of(y)], []]))
    first, second = validated.choices
    assert (first.index, first.text, second.index, second.text) == (0, "hey", 1, "")
    assert first.logprobs is not None
    assert first.logprobs.top_logprobs == [{"he": -0.5}, {"y": -1.0}]
    assert first.logprobs.text_offset == [0, 2]
    assert second.logprobs is not None
    assert second.logprobs.tokens == []
