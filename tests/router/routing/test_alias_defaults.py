"""Tests the defaults that an alias's target adds to requests."""

from __future__ import annotations

import json
from typing import Any

import pytest

from node.protocol.chain.prefix import read_fields
from node.protocol.paths import PATH_COUNT_TOKENS
from router.api.bodies import with_model
from router.routing.alias_defaults import with_defaults

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"


def added(body: dict[str, Any], defaults: dict[str, Any], path: str = CHAT) -> dict[str, Any]:
    """Returns the fields that a body has more, or otherwise, with the defaults."""
    fields = with_defaults(read_fields(json.dumps(body).encode()), defaults, path)
    made = json.loads(with_model(fields, "m"))
    made.pop("model")
    return {name: value for name, value in made.items() if body.get(name, ...) != value}


def test_what_the_caller_sends_wins() -> None:
    defaults = {"temperature": 0.2, "top_p": 0.9}
    assert added({"temperature": 1}, defaults) == {"top_p": 0.9}
    assert added({"temperature": None}, defaults) == defaults


def test_every_value_of_the_caller_keeps_its_bytes() -> None:
    body = b'{"model":"x","a":1.50,"c":"\\u00e9","chat_template_kwargs":{"k":1.0 }}'
    fields = read_fields(body)
    made = with_model(with_defaults(fields, {"temperature": 0.2}, CHAT), "m")
    assert made == (
        b'{"model":"m","a":1.50,"c":"\\u00e9","chat_template_kwargs":{"k":1.0 },"temperature":0.2}'
    )


def test_template_variables_are_merged_where_they_are_missing() -> None:
    defaults = {"chat_template_kwargs": {"enable_thinking": False, "style": "short"}}
    own = {"chat_template_kwargs": {"enable_thinking": True}}
    merged = {"chat_template_kwargs": {"enable_thinking": True, "style": "short"}}
    for path in (CHAT, RESPONSES, MESSAGES, PATH_COUNT_TOKENS):
        assert added({}, defaults, path) == defaults
        assert added(own, defaults, path) == merged
    assert added({}, defaults, COMPLETIONS) == {}


def test_a_value_that_is_no_object_is_left_for_the_node_to_refuse() -> None:
    assert added({"chat_template_kwargs": 5}, {"chat_template_kwargs": {"a": 1}}) == {}
    assert added({"reasoning": "high"}, {"reasoning_effort": "low"}, RESPONSES) == {}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (CHAT, {"reasoning_effort": "minimal"}),
        (RESPONSES, {"reasoning": {"effort": "minimal"}}),
        (MESSAGES, {"output_config": {"effort": "low"}}),
        (PATH_COUNT_TOKENS, {"output_config": {"effort": "low"}}),
        (COMPLETIONS, {}),
    ],
)
def test_an_effort_is_spelled_as_the_path_does(path: str, expected: dict[str, Any]) -> None:
    assert added({}, {"reasoning_effort": "minimal"}, path) == expected


def test_no_effort_at_all_is_a_switch_where_the_dialect_has_no_word_for_it() -> None:
    off = {"reasoning_effort": "none"}
    assert added({}, off, MESSAGES) == {"enable_thinking": False}
    assert added({"thinking": {"type": "adaptive"}}, off, MESSAGES) == {}
    assert added({}, off) == off
    assert added({"enable_thinking": True}, off) == {}


def test_an_effort_is_added_to_what_else_the_caller_sends_of_reasoning() -> None:
    own = {"reasoning": {"summary": "auto"}}
    expected = {"reasoning": {"summary": "auto", "effort": "low"}}
    assert added(own, {"reasoning_effort": "low"}, RESPONSES) == expected
    sent = {"reasoning": {"effort": "high"}}
    assert added(sent, {"reasoning_effort": "low"}, RESPONSES) == {}
    assert added(sent, {"reasoning_effort": "low"}) == {}


@pytest.mark.parametrize(
    "own",
    [
        {"thinking": {"type": "enabled", "budget_tokens": 9}},
        {"reasoning_effort": "high"},
        {"enable_thinking": True},
        {"chat_template_kwargs": {"enable_thinking": True}},
    ],
)
def test_nothing_is_added_that_would_contradict_the_caller(own: dict[str, Any]) -> None:
    assert added(own, {"enable_thinking": False}) == {}
    assert added(own, {"enable_thinking": False}, MESSAGES) == {}


def test_limits_go_by_their_names_on_each_path() -> None:
    defaults = {"max_tokens": 50, "stop": "END", "max_thinking_tokens": 9}
    budget = {"max_thinking_tokens": 9}
    assert added({}, defaults) == defaults
    assert added({"max_completion_tokens": 7, "thinking_budget": 3}, defaults) == {"stop": "END"}
    assert added({}, defaults, COMPLETIONS) == {"max_tokens": 50, "stop": "END"}
    assert added({}, defaults, RESPONSES) == {"max_output_tokens": 50, "stop": "END", **budget}
    assert added({"max_tokens": 8}, defaults, MESSAGES) == {
        "stop_sequences": ["END"],
        "thinking": {"type": "enabled", "budget_tokens": 9},
    }
    assert added({}, defaults, PATH_COUNT_TOKENS) == {
        "thinking": {"type": "enabled", "budget_tokens": 9}
    }


def test_defaults_for_ollama_s_clients_are_options() -> None:
    defaults = {
        "temperature": 0.2,
        "repetition_penalty": 1.1,
        "max_tokens": 50,
        "stop": "END",
        "max_thinking_tokens": 9,
    }
    options = {"temperature": 0.2, "repeat_penalty": 1.1, "num_predict": 50, "stop": "END"}
    for path in ("/api/chat", "/api/generate"):
        made = {"options": options, "max_thinking_tokens": 9}
        assert added({}, defaults, path) == made
        own = {"options": {"num_predict": 7, "temperature": None}}
        merged = {**options, "num_predict": 7}
        assert added(own, defaults, path) == {**made, "options": merged}
        assert added({}, {"reasoning_effort": "none"}, path) == {"think": False}
        assert added({}, {"reasoning_effort": "low"}, path) == {"think": "low"}
        assert added({}, {"enable_thinking": True}, path) == {"think": True}
        assert added({"think": False}, {"reasoning_effort": "low"}, path) == {}
    kwargs = {"chat_template_kwargs": {"a": 1}}
    assert added({}, kwargs, "/api/chat") == kwargs
    assert added({}, kwargs, "/api/generate") == {}


def test_anthropic_s_temperature_ends_at_one() -> None:
    assert added({}, {"temperature": 1.5}, MESSAGES) == {"temperature": 1}
    assert added({}, {"temperature": 1.5}) == {"temperature": 1.5}
    assert added({}, {"temperature": 0.5}, PATH_COUNT_TOKENS) == {}
