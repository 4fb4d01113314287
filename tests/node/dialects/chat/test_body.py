"""Every field of a chat body is applied, refused by name, or ignored for a reason."""

import json
from typing import Any

import pytest
from openai.types.chat.completion_create_params import CompletionCreateParamsBase

from node.dialects.base import DialectRequest
from node.dialects.chat.body import CHAT, ChatRequest, read_chat
from node.dialects.chat.response import ChatStyle, ReasoningField
from node.errors import BadRequest, Unsupported
from node.request import TemplateOptions, TextRequest
from tests.node.dialects.openai_stream import HEAD

FUNCTION = {"name": "f", "parameters": {"type": "object"}}
TOOL = {"type": "function", "function": FUNCTION}
TALK = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "He"}]


def parsed(**fields: Any) -> ChatRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    return read_chat(json.dumps(body).encode())


def chat(**fields: Any) -> TextRequest:
    return parsed(**fields).request


def test_every_known_field_is_applied_refused_or_ignored_and_only_one_of_these() -> None:
    applied, refused, ignored = set(CHAT.body.model_fields), set(CHAT.refused), set(CHAT.ignored)
    assert set(CHAT.notes) == applied
    assert not applied & refused | applied & ignored | refused & ignored
    known = {*CompletionCreateParamsBase.__annotations__, "stream"}
    assert known <= applied | refused | ignored


def test_a_chat_request_has_messages() -> None:
    request = chat()
    assert request.messages is not None
    assert request.prompt is None
    assert request.prompt_field == "messages"
    assert (request.tools, request.parallel_tool_calls, request.continue_final) == ((), True, False)
    assert request.template == TemplateOptions()
    assert parsed().style == ChatStyle()


@pytest.mark.parametrize("field", ["model", "messages"])
def test_a_missing_field_is_named(field: str) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    del body[field]
    with pytest.raises(BadRequest, match=f"{field} is missing") as caught:
        read_chat(json.dumps(body).encode())
    assert caught.value.param == field


@pytest.mark.parametrize("messages", [[], "hi", {}])
def test_messages_are_a_list_of_at_least_one(messages: object) -> None:
    with pytest.raises(BadRequest) as caught:
        chat(messages=messages)
    assert caught.value.param == "messages"


# --- tools -----------------------------------------------------------------------------------


def test_tools_arrive_unless_the_choice_is_none() -> None:
    (tool,) = chat(tools=[TOOL], tool_choice="auto").tools
    assert tool.function == FUNCTION
    assert chat(tools=[TOOL]).tools == (tool,)
    assert chat(tools=[TOOL], tool_choice="none").tools == ()


def test_calls_in_parallel_can_be_turned_off() -> None:
    assert chat(tools=[TOOL], parallel_tool_calls=True).parallel_tool_calls
    assert not chat(tools=[TOOL], parallel_tool_calls=False).parallel_tool_calls


def test_the_legacy_form_requests_one_call_and_is_answered_in_kind() -> None:
    old = parsed(functions=[FUNCTION], function_call="auto")
    assert old.request.tools == chat(tools=[TOOL]).tools
    assert not old.request.parallel_tool_calls
    assert old.style.is_legacy
    assert parsed(functions=[FUNCTION], function_call="none").request.tools == ()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"function": FUNCTION}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]},
            "tools[0].function.parameters",
        ),
        *(
            ({"tools": [TOOL, {"type": "function", "function": {"name": name}}]}, path)
            for name in ("", "a b", "f\n", "x" * 129, "f")
            for path in ("tools[1].function.name",)
        ),
        ({"tools": {}}, "tools"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"functions": [{"name": "a.b"}]}, "functions[0].name"),
        ({"functions": [FUNCTION], "tools": [TOOL]}, "functions"),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
    ],
)
def test_tools_that_are_not_valid_are_refused_with_their_path(
    fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(BadRequest, match=r"\.$") as caught:
        chat(**fields)
    assert not isinstance(caught.value, Unsupported)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [TOOL], "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"audio": {}}, "audio"),
        ({"prediction": {}}, "prediction"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"moderation": {"model": "x"}}, "moderation"),
        ({"documents": []}, "documents"),
        ({"chat_template": "x"}, "chat_template"),
        ({"add_special_tokens": True}, "add_special_tokens"),
        ({"reasoning_format": "raw"}, "reasoning_format"),
        ({"add_generation_prompt": False}, "add_generation_prompt"),
    ],
)
def test_what_cannot_be_honoured_is_refused_and_not_ignored(
    fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(Unsupported, match=r"\.$") as caught:
        chat(**fields)
    assert caught.value.param == param


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [], "tool_choice": "none", "functions": [], "function_call": "none"},
        {"tool_choice": "auto", "function_call": "auto", "parallel_tool_calls": True},
        {"chat_template_kwargs": {}, "modalities": ["text"], "verbosity": "low"},
        {"reasoning_format": "auto", "include_reasoning": True, "add_special_tokens": False},
        {"continue_final_message": False, "add_generation_prompt": True},
    ],
)
def test_values_without_effect_pass(fields: dict[str, Any]) -> None:
    assert parsed(**fields) == parsed()


# --- the template ----------------------------------------------------------------------------


@pytest.mark.parametrize("effort", ["minimal", "low", "medium", "high", "xhigh", "max"])
def test_an_effort_is_passed_to_the_template(effort: str) -> None:
    assert chat(reasoning_effort=effort).template == TemplateOptions(reasoning_effort=effort)


def test_an_effort_of_none_turns_thinking_off() -> None:
    off = TemplateOptions(enable_thinking=False)
    assert chat(reasoning_effort="none").template == off
    assert chat(reasoning_effort="none", enable_thinking=False).template == off
    with pytest.raises(BadRequest) as caught:
        chat(reasoning_effort="none", enable_thinking=True)
    assert caught.value.param == "enable_thinking"


def test_variables_of_the_client_are_passed_to_the_template_without_null() -> None:
    template = chat(
        enable_thinking=True, chat_template_kwargs={"a": {"b": [1]}, "c": None}
    ).template
    assert template == TemplateOptions(enable_thinking=True, kwargs={"a": {"b": [1]}})


@pytest.mark.parametrize(
    "name", ["messages", "tools", "add_generation_prompt", "continue_final_message", "tokenize"]
)
def test_reserved_template_variables_are_not_the_clients_to_set(name: str) -> None:
    with pytest.raises(BadRequest) as caught:
        chat(chat_template_kwargs={name: None})
    assert caught.value.param == f"chat_template_kwargs.{name}"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"reasoning_effort": "huge"}, "reasoning_effort"),
        ({"enable_thinking": "no"}, "enable_thinking"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs"),
        ({"include_reasoning": 0}, "include_reasoning"),
        ({"continue_final_message": 1}, "continue_final_message"),
    ],
)
def test_options_of_another_type_are_not_valid(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        chat(**fields)
    assert caught.value.param == param


# --- the last message ------------------------------------------------------------------------


def test_an_assistants_last_message_is_continued_only_when_the_client_requests_it() -> None:
    assert not chat(messages=TALK).continue_final
    assert chat(messages=TALK, continue_final_message=True).continue_final
    both = {"continue_final_message": True, "add_generation_prompt": False}
    assert chat(messages=TALK, **both).continue_final


def test_going_on_and_a_new_turn_contradict_each_other() -> None:
    both = {"continue_final_message": True, "add_generation_prompt": True}
    with pytest.raises(BadRequest) as caught:
        chat(messages=TALK, **both)
    assert caught.value.param == "add_generation_prompt"


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": [{"type": "text", "text": ""}] * 2},
        {
            "role": "assistant",
            "content": "a",
            "tool_calls": [{"id": "c", "function": {"name": "f"}}],
        },
    ],
)
def test_only_an_assistants_text_can_be_continued(message: dict[str, Any]) -> None:
    with pytest.raises(BadRequest) as caught:
        chat(messages=[*TALK, message], continue_final_message=True)
    assert caught.value.param == "continue_final_message"


# --- the answer ------------------------------------------------------------------------------


def test_the_answers_style_is_read_from_the_body() -> None:
    assert parsed(stream=True, stream_options={"include_usage": True}).style.include_usage
    assert parsed(include_reasoning=False).style.reasoning is None


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "both"])
def test_the_server_sets_in_which_field_reasoning_is_sent(field: ReasoningField) -> None:
    body = json.dumps({"model": "m", "messages": TALK}).encode()
    assert read_chat(body, field).style.reasoning == field


def test_a_parsed_request_makes_the_writer_of_its_answer() -> None:
    read: DialectRequest = parsed()
    assert read.writer(HEAD).keep_alive.startswith(b":")
