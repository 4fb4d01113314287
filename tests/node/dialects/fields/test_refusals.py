"""A field that changes the response on one path is known on every other path."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from node.dialects.anthropic.body import read_count_tokens, read_messages
from node.dialects.anthropic.fields import COUNT_TOKENS, MESSAGES
from node.dialects.chat.body import CHAT, read_chat
from node.dialects.completions.completions import COMPLETIONS, read_completion
from node.dialects.fields.field_table import FieldTable
from node.dialects.fields.refusals import IGNORED, REFUSED_BY_ALL
from node.dialects.responses.body import read_responses
from node.dialects.responses.fields import RESPONSES
from node.errors import BadRequest, Unsupported

TABLES: dict[str, FieldTable[Any]] = {
    "chat": CHAT,
    "completions": COMPLETIONS,
    "responses": RESPONSES,
    "messages": MESSAGES,
    "count_tokens": COUNT_TOKENS,
}
HI = [{"role": "user", "content": "hi"}]
READERS: dict[str, tuple[Callable[[bytes], object], dict[str, Any]]] = {
    "chat": (read_chat, {"messages": HI}),
    "completions": (read_completion, {"prompt": "hi"}),
    "responses": (read_responses, {"input": "hi"}),
    "messages": (read_messages, {"messages": HI, "max_tokens": 9}),
    "count_tokens": (read_count_tokens, {"messages": HI}),
}
KNOWN_TO_ONE = {
    "diagnostics": "It requests a field that only Anthropic's answers have.",
}
"""Fields that other paths need not know, with the reason."""


def read(path: str, **fields: Any) -> object:
    reader, body = READERS[path]
    return reader(json.dumps({"model": "m", **body, **fields}).encode())


def known(table: FieldTable[Any]) -> set[str]:
    return {*table.body.model_fields, *table.refused, *table.ignored}


def steering() -> set[str]:
    """Returns the fields that any path applies or refuses."""
    every = TABLES.values()
    names = {name for table in every for name in (*table.body.model_fields, *table.refused)}
    return names - set(KNOWN_TO_ONE)


REFUSED = [(path, name) for path, table in TABLES.items() for name in sorted(table.refused)]


@pytest.mark.parametrize("path", TABLES)
def test_a_field_that_steers_the_answer_somewhere_is_known_everywhere(path: str) -> None:
    assert steering() - known(TABLES[path]) == set()


@pytest.mark.parametrize("path", TABLES)
def test_what_no_path_can_do_is_refused_by_each(path: str) -> None:
    assert set(REFUSED_BY_ALL) <= set(TABLES[path].refused)
    assert set(IGNORED) <= known(TABLES[path])


@pytest.mark.parametrize(("path", "name"), REFUSED)
def test_a_refused_field_accepts_null_and_refuses_an_object_by_its_name(
    path: str, name: str
) -> None:
    assert read(path, **{name: None}) == read(path)
    with pytest.raises(Unsupported, match=r"\.$") as caught:
        read(path, **{name: {"edits": [{"type": "a"}]}})
    assert caught.value.param == name


@pytest.mark.parametrize(
    ("path", "fields", "here"),
    [
        ("chat", {"stop_sequences": ["a"]}, "stop"),
        ("chat", {"json_schema": {}}, "guided_json"),
        ("completions", {"top_logprobs": 2}, "logprobs"),
        ("chat", {"max_output_tokens": 5}, "max_completion_tokens"),
        ("responses", {"system": "s"}, "instructions"),
        ("messages", {"stop": "a"}, "stop_sequences"),
        ("messages", {"reasoning_effort": "low"}, "output_config.effort"),
        ("messages", {"parallel_tool_calls": False}, "tool_choice.disable_parallel_tool_use"),
        ("messages", {"include_reasoning": False}, "thinking.display"),
        ("chat", {"thinking_budget_tokens": 5}, "max_thinking_tokens"),
        ("chat", {"reasoning_budget": 0}, "max_thinking_tokens"),
        ("responses", {"max_reasoning_tokens": 5}, "max_thinking_tokens"),
        ("messages", {"thinking_tokens": 5}, "thinking.budget_tokens"),
        ("chat", {"format": "json"}, "response_format or structured_outputs"),
        (
            "completions",
            {"guided_decoding": {"regex": "a"}},
            "response_format or structured_outputs",
        ),
        ("responses", {"response_schema": {"type": "object"}}, "text.format"),
        ("messages", {"json_mode": True}, "output_config.format"),
        ("completions", {"num_return_sequences": 2}, "n"),
    ],
)
def test_a_refusal_names_the_field_to_use(path: str, fields: dict[str, Any], here: str) -> None:
    with pytest.raises(Unsupported) as caught:
        read(path, **fields)
    assert f" called {here} here." in caught.value.message
    assert caught.value.param in fields


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("chat", {"stop_sequences": [], "reasoning": {}, "truncation": "disabled", "text": {}}),
        ("completions", {"messages": [], "verbosity": "high", "include_reasoning": True}),
        ("responses", {"functions": [], "function_call": "auto", "add_generation_prompt": True}),
        ("messages", {"n": 1, "response_format": {"type": "text"}, "stop": [], "min_tokens": 0}),
        ("count_tokens", {"parallel_tool_calls": True, "logprobs": False}),
        ("chat", {"num_return_sequences": 1, "json_mode": False, "separate_reasoning": True}),
    ],
)
def test_values_without_effect_are_accepted(path: str, fields: dict[str, Any]) -> None:
    assert read(path, **fields) == read(path)


@pytest.mark.parametrize("path", ["chat", "responses"])
@pytest.mark.parametrize("field", ["enabled", "exclude"])
def test_what_other_servers_know_of_reasoning_is_refused(path: str, field: str) -> None:
    with pytest.raises(Unsupported) as caught:
        read(path, reasoning={field: 1})
    assert caught.value.param == f"reasoning.{field}"


def test_a_chat_reads_its_effort_from_either_field() -> None:
    assert read("chat", reasoning={"effort": "low"}) == read("chat", reasoning_effort="low")
    both = {"reasoning": {"effort": "low"}, "reasoning_effort": "low"}
    assert read("chat", **both) == read("chat", reasoning_effort="low")
    with pytest.raises(BadRequest) as caught:
        read("chat", **{**both, "reasoning_effort": "high"})
    assert caught.value.param == "reasoning.effort"
    hints = {"summary": "auto", "generate_summary": "concise", "context": "all_turns"}
    assert read("chat", reasoning={"effort": "low", **hints}) == read(
        "chat", reasoning_effort="low"
    )
    with pytest.raises(Unsupported):
        read("chat", reasoning={"mode": "pro"})


@pytest.mark.parametrize("path", ["messages", "count_tokens"])
def test_a_message_may_turn_thinking_on_and_off_by_the_templates_name(path: str) -> None:
    adaptive = {"type": "adaptive"}
    assert read(path, enable_thinking=True) == read(path, thinking=adaptive)
    assert read(path, enable_thinking=True, thinking=adaptive) == read(path, thinking=adaptive)
    assert read(path, enable_thinking=False) != read(path)
    with pytest.raises(BadRequest) as caught:
        read(path, enable_thinking=False, thinking=adaptive)
    assert caught.value.param == "enable_thinking"


def test_a_name_is_allowed_only_with_a_choice_of_a_tool() -> None:
    with pytest.raises(BadRequest) as caught:
        read("messages", tool_choice={"type": "auto", "name": "f"})
    assert caught.value.param == "tool_choice.name"
