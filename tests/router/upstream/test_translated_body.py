"""Requests of Ollama's dialect, as third-party servers get them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.upstream.translated_body import translated

CHAT, GENERATE = "/api/chat", "/api/generate"
USER = {"role": "user", "content": "hi"}


def sent(path: str = CHAT, **fields: Any) -> tuple[str, dict[str, Any]]:
    body = {"model": "m", **fields}
    made = translated(path, json.dumps(body).encode(), stream=True)
    return made.path, json.loads(made.body)


def test_a_chat_becomes_a_chat_with_its_options_as_fields() -> None:
    options = {
        "temperature": 0.5,
        "top_k": 5,
        "num_predict": 9.0,
        "seed": 7,
        "stop": ["x"],
        "num_ctx": 4096,
        "top_p": None,
    }
    path, body = sent(
        messages=[USER], options=options, think="low", keep_alive=5, logprobs=True, format="json"
    )
    assert path == "/v1/chat/completions"
    assert body == {
        "model": "m",
        "stream": True,
        "messages": [USER],
        "temperature": 0.5,
        "top_k": 5,
        "max_tokens": 9,
        "seed": 7,
        "stop": ["x"],
        "reasoning_effort": "low",
        "logprobs": True,
        "response_format": {"type": "json_object"},
    }


def test_no_limit_and_no_seed_are_left_out() -> None:
    _, body = sent(messages=[USER], options={"num_predict": -1, "seed": -1})
    assert body.keys() == {"model", "stream", "messages"}


def test_a_schema_is_a_format_with_a_name() -> None:
    schema = {"type": "object", "properties": {}}
    _, body = sent(messages=[USER], format=schema)
    assert body["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "response", "schema": schema},
    }


def test_calls_and_results_get_ids_and_arguments_as_text() -> None:
    calls = [
        {"function": {"name": "f", "arguments": {"a": 1}}},
        {"id": "own", "function": {"name": "g", "arguments": {}}},
    ]
    messages = [
        USER,
        {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": calls},
        {"role": "tool", "content": "1", "tool_name": "g"},
        {"role": "tool", "content": "2", "tool_name": "f"},
    ]
    _, body = sent(messages=messages)
    assert body["messages"][1:] == [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "f", "arguments": '{"a": 1}'},
                },
                {"id": "own", "type": "function", "function": {"name": "g", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "content": "1", "tool_call_id": "own"},
        {"role": "tool", "content": "2", "tool_call_id": "call_1"},
    ]


@pytest.mark.parametrize(("data", "kind"), [("/9j/4A", "jpeg"), ("iVBORw0", "png"), ("x", "png")])
def test_a_picture_becomes_a_part_with_its_data(data: str, kind: str) -> None:
    _, body = sent(messages=[{**USER, "images": [data]}])
    (message,) = body["messages"]
    assert message["content"] == [
        {"type": "text", "text": "hi"},
        {"type": "image_url", "image_url": {"url": f"data:image/{kind};base64,{data}"}},
    ]


def test_a_prompt_becomes_a_message_or_a_raw_one_a_completion() -> None:
    path, body = sent(GENERATE, prompt="hi", system="Be brief.")
    assert path == "/v1/chat/completions"
    assert body["messages"] == [{"role": "system", "content": "Be brief."}, USER]
    path, body = sent(GENERATE, prompt="hi", raw=True)
    assert (path, body["prompt"]) == ("/v1/completions", "hi")


@pytest.mark.parametrize(
    "fields", [{"messages": 5}, {"messages": [5]}, {"messages": [USER], "options": 7}]
)
def test_a_body_that_is_not_valid_is_left_to_the_server(fields: dict[str, Any]) -> None:
    assert sent(**fields) == ("/v1/chat/completions", {"model": "m", **fields})


def test_only_a_switched_off_thinking_is_hidden() -> None:
    for think, hides in ((False, True), (True, False), (None, False)):
        body = json.dumps({"model": "m", "messages": [USER], "think": think}).encode()
        assert translated(CHAT, body, stream=True).hides_thinking is hides


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)
FIELDS = ("messages", "options", "images", "prompt", "system", "raw", "think", "format", "tools")
MEMBERS = ("role", "content", "images", "tool_calls", "num_predict", "seed", "function", "name")


@given(
    st.sampled_from([CHAT, GENERATE]),
    st.dictionaries(
        st.sampled_from(FIELDS),
        JSON | st.lists(st.dictionaries(st.sampled_from(MEMBERS), JSON, max_size=4), max_size=3),
    ),
)
def test_any_body_is_translated_or_left_as_it_is(path: str, fields: dict[str, Any]) -> None:
    made = translated(path, json.dumps(fields).encode(), stream=True)
    assert isinstance(json.loads(made.body), dict)
