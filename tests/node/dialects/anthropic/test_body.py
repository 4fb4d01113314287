"""Every field of a body is applied, refused by name, or ignored for a reason."""

import json
import typing
from typing import Any

import pytest
from anthropic.types import MessageTokensCount, message_count_tokens_params, message_create_params
from anthropic.types.beta import message_count_tokens_params as beta_count_params
from anthropic.types.beta import message_create_params as beta_create_params

from node.defaults import Defaults
from node.dialects.anthropic.body import (
    MessagesRequest,
    count_tokens_body,
    read_count_tokens,
    read_messages,
)
from node.dialects.anthropic.fields import COUNT_TOKENS, MESSAGES
from node.dialects.anthropic.response import ThinkingShown
from node.dialects.fields.field_table import FieldTable
from node.errors import BadRequest, Unsupported
from node.ipc.generate import Constraint, ConstraintKind, SamplingParams
from node.request import Message, TemplateOptions, TextRequest

TOOL = {"name": "look", "input_schema": {"type": "object"}}
SCHEMA = {"type": "object", "properties": {"at": {"enum": ["here", None]}}}
FORMAT = {"type": "json_schema", "schema": SCHEMA}


def body(**fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "hi"}]
    return {"model": "m", "max_tokens": 64, "messages": messages, **fields}


def parsed(**fields: Any) -> MessagesRequest:
    return read_messages(json.dumps(body(**fields)).encode())


def read(**fields: Any) -> TextRequest:
    return parsed(**fields).request


def count(**fields: Any) -> TextRequest:
    given = body(**fields)
    del given["max_tokens"]
    return read_count_tokens(json.dumps(given).encode())


def test_absent_fields_take_the_defaults() -> None:
    assert read() == TextRequest(
        model="m",
        sampling=SamplingParams(),
        stops=(),
        max_tokens=64,
        stream=False,
        messages=(Message("user", "hi"),),
    )
    assert parsed().thinking is ThinkingShown.SHOWN


def test_all_fields_about_sampling_are_applied() -> None:
    request = read(
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.1,
        seed=7,
        repetition_penalty=1.1,
        presence_penalty=0.2,
        frequency_penalty=0.3,
        logit_bias={"5": -1.0},
        stop_sequences=["END", "\n\nHuman:"],
        stream=True,
    )
    assert request.sampling == SamplingParams(0.5, 0.9, 40, 0.1, 7, 1.1, 0.2, 0.3, ((5, -1.0),))
    assert request.stops == ("END", "\n\nHuman:")
    assert request.stream


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"model": ""}, "model"),
        ({"messages": []}, "messages"),
        ({"temperature": 1.5}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"stop_sequences": "END"}, "stop_sequences"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"stop_sequences": ["x"] * 17}, "stop_sequences"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort"),
        ({"thinking": {}}, "thinking.type"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs.tools"),
        ({"chat_template_kwargs": {"conversations": []}}, "chat_template_kwargs.conversations"),
        ({"tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "any"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "tool", "name": "fly"}, "tools": [TOOL]}, "tool_choice.name"),
        ({"thinking": {"type": "enabled", "budget_tokens": -2}}, "thinking.budget_tokens"),
        ({"output_config": {"format": []}}, "output_config.format"),
        ({"output_config": {"format": {}}}, "output_config.format.type"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format"),
        ({"output_format": {"type": "json_schema", "schema": 1}}, "output_format.schema"),
        ({"output_format": {"type": "text"}, "output_config": {"format": FORMAT}}, "output_format"),
    ],
)
def test_an_invalid_value_is_refused_by_its_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        read(**fields)
    assert caught.value.param == param
    assert not isinstance(caught.value, Unsupported)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"thinking": {"type": "between_tools"}}, "thinking.type"),
        ({"thinking": {"type": "adaptive", "display": "updates"}}, "thinking.display"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
        ({"output_config": {"task_budget": {"type": "tokens"}}}, "output_config.task_budget"),
        ({"container": "c"}, "container"),
        ({"context_management": {"edits": [{"type": "x"}]}}, "context_management"),
        ({"mcp_servers": [{"url": "u"}]}, "mcp_servers"),
        ({"inference_geo": "us"}, "inference_geo"),
        ({"speed": "fast"}, "speed"),
        ({"thread": {"type": "create"}}, "thread"),
        ({"compaction": {"type": "summarize"}}, "compaction"),
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"max_thinking_tokens": 0}, "max_thinking_tokens"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"guided_json": SCHEMA}, "guided_json"),
        ({"guided_regex": "a+"}, "guided_regex"),
        ({"structured_outputs": {"regex": "a+"}}, "structured_outputs"),
    ],
)
def test_what_this_version_cannot_do_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(Unsupported) as caught:
        read(**fields)
    assert caught.value.param == param


@pytest.mark.parametrize(
    "fields",
    [
        {"container": None},
        {"context_management": {}},
        {"context_management": {"edits": []}},
        {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}},
        {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
        {"context_management": {"edits": [{"type": "compact_20260112", "trigger": {}}]}},
        {"mcp_servers": []},
        {"inference_geo": "global"},
        {"speed": "standard"},
        {"service_tier": "auto"},
        {"metadata": {"user_id": "u"}},
        {"cache_control": {"type": "ephemeral"}},
        {"betas": ["x"], "fallbacks": "default", "unheard_of": [1]},
        {"tool_choice": {"type": "auto"}, "tools": None},
        {"output_config": {"effort": None, "format": None}},
        {"chat_template_kwargs": {"x": None}},
    ],
)
def test_values_without_effect_are_accepted(fields: dict[str, Any]) -> None:
    assert read(**fields) == read()


# --- thinking --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("thinking", "enabled", "shown"),
    [
        (None, None, ThinkingShown.SHOWN),
        ({"type": "disabled"}, False, ThinkingShown.NONE),
        ({"type": "adaptive"}, True, ThinkingShown.SHOWN),
        ({"type": "adaptive", "display": "summarized"}, True, ThinkingShown.SHOWN),
        ({"type": "adaptive", "display": "omitted"}, True, ThinkingShown.OMITTED),
    ],
)
def test_thinking_is_passed_to_the_template_and_to_the_writer(
    thinking: object, enabled: bool | None, shown: ThinkingShown
) -> None:
    given = parsed(thinking=thinking)
    assert given.request.template.enable_thinking is enabled
    assert given.thinking is shown


@pytest.mark.parametrize("budget", [0, 1, 17, 63, 64, 32000])
def test_a_budget_is_the_most_that_is_thought(budget: int) -> None:
    request = read(thinking={"type": "enabled", "budget_tokens": budget})
    assert request.template.enable_thinking is True
    assert request.thinking_tokens == budget


@pytest.mark.parametrize(
    "thinking", [None, {"type": "adaptive"}, {"type": "disabled", "budget_tokens": 5}]
)
def test_without_a_budget_thinking_has_no_limit_of_the_bodys(thinking: object) -> None:
    assert read(thinking=thinking).thinking_tokens is None
    assert read(thinking={"type": "adaptive", "budget_tokens": 2**40}).thinking_tokens == 2**31 - 1


@pytest.mark.parametrize("kind", ["enabled", "adaptive"])
def test_a_budget_of_minus_one_lifts_the_models_own(kind: str) -> None:
    request = read(thinking={"type": kind, "budget_tokens": -1})
    assert request.template.enable_thinking is True
    assert Defaults(thinking_tokens=9).of(request, reasons=True).thinking_tokens == 2**31 - 1


def test_a_tool_that_must_be_called_has_an_object_for_input() -> None:
    tools = [TOOL, {**TOOL, "name": "other", "input_schema": {"type": "string"}}]
    assert len(read(tools=tools).tools) == 2
    for constrained in (
        {"tools": tools, "tool_choice": {"type": "any"}},
        {"tools": [TOOL, {**tools[1], "strict": True}]},
    ):
        with pytest.raises(BadRequest, match=r"\.$") as caught:
            read(**constrained)
        assert caught.value.param == "tools[1].input_schema"


def test_effort_and_kwargs_are_passed_to_the_template() -> None:
    request = read(output_config={"effort": "max"}, chat_template_kwargs={"deep": True})
    assert request.template == TemplateOptions(reasoning_effort="max", kwargs={"deep": True})
    request = read(chat_template_kwargs={"a": {"b": None, "c": [None]}})
    assert request.template.kwargs == {"a": {"c": [None]}}


# --- prefill ---------------------------------------------------------------------------------


def turn(content: object) -> list[dict[str, object]]:
    return [{"role": "user", "content": "hi"}, {"role": "assistant", "content": content}]


def test_a_last_assistant_message_is_continued() -> None:
    request = read(messages=turn("The answer is ("))
    assert request.continue_final
    assert request.messages == (Message("user", "hi"), Message("assistant", "The answer is ("))


@pytest.mark.parametrize("content", ["", []])
def test_an_empty_last_assistant_message_is_no_prefill(content: object) -> None:
    request = read(messages=turn(content))
    assert not request.continue_final
    assert request.messages == (Message("user", "hi"),)


@pytest.mark.parametrize(
    ("messages", "thinking", "param"),
    [
        (turn("x"), {"type": "adaptive"}, "thinking"),
        (
            turn([{"type": "tool_use", "id": "t", "name": "n", "input": {}}]),
            None,
            "messages[1].content",
        ),
        (
            turn([{"type": "thinking", "thinking": "x", "signature": ""}]),
            None,
            "messages[1].content",
        ),
        (turn("")[1:], None, "messages"),
    ],
)
def test_what_cannot_be_continued_is_refused(
    messages: object, thinking: object, param: str
) -> None:
    with pytest.raises(BadRequest) as caught:
        read(messages=messages, thinking=thinking)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [TOOL], "tool_choice": {"type": "any"}}, "tool_choice"),
        ({"output_config": {"format": FORMAT}}, "output_config.format.schema"),
    ],
)
def test_what_constrains_a_whole_answer_does_not_continue_one(
    fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(BadRequest) as caught:
        read(messages=turn("{"), **fields)
    assert caught.value.param == param
    assert read(messages=turn(""), **fields) == read(**fields)


# --- the answer's form -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"output_config": {"format": FORMAT, "effort": "low"}}, "output_config.format.schema"),
        ({"output_format": FORMAT}, "output_format.schema"),
        (
            {"output_format": FORMAT, "output_config": {"format": FORMAT}},
            "output_config.format.schema",
        ),
    ],
)
def test_a_format_constrains_the_answer_by_either_name(fields: dict[str, Any], param: str) -> None:
    constraint = Constraint(ConstraintKind.JSON_SCHEMA, param, json.dumps(SCHEMA))
    assert read(**fields).constraint == constraint
    assert count(**fields).constraint == constraint


def test_a_format_of_text_constrains_nothing() -> None:
    assert read(output_config={"format": {"type": "text"}}) == read()


# --- tools and diagnostics -------------------------------------------------------------------


def test_a_choice_of_none_shows_no_tools() -> None:
    assert [tool.name for tool in read(tools=[TOOL]).tools] == ["look"]
    assert read(tools=[TOOL], tool_choice={"type": "none"}).tools == ()


def test_parallel_calls_can_be_turned_off() -> None:
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    assert not read(tools=[TOOL], tool_choice=choice).parallel_tool_calls
    assert read(tools=[TOOL]).parallel_tool_calls


def test_a_call_can_be_forced_of_any_tool_or_of_one() -> None:
    tools = [TOOL, {**TOOL, "name": "go"}]
    request = read(tools=tools, tool_choice={"type": "any"})
    assert (request.must_call, request.callable_tools) == (True, None)
    assert request.parallel_tool_calls
    request = read(tools=tools, tool_choice={"type": "any", "disable_parallel_tool_use": True})
    assert (request.must_call, request.parallel_tool_calls) == (True, False)
    request = read(tools=tools, tool_choice={"type": "tool", "name": "go"})
    assert (request.must_call, request.callable_tools) == (True, ("go",))
    assert not request.parallel_tool_calls
    assert [tool.name for tool in request.tools] == ["look", "go"]


def test_a_forced_call_follows_thinking() -> None:
    thinking = {"type": "enabled", "budget_tokens": 9}
    request = read(tools=[TOOL], tool_choice={"type": "any"}, thinking=thinking)
    assert request.must_call
    assert (request.template.enable_thinking, request.thinking_tokens) == (True, 9)


def test_a_request_for_cache_diagnostics_is_read() -> None:
    assert parsed(diagnostics={"previous_message_id": "msg_1"}).diagnosed
    assert not parsed(diagnostics={"previous_message_id": None}).diagnosed


# --- count_tokens ----------------------------------------------------------------------------


def test_a_count_is_of_the_same_prompt() -> None:
    fields = {"system": "Be brief.", "tools": [TOOL], "thinking": {"type": "adaptive"}}
    counted, answered = count(**fields), read(**fields)
    assert counted.messages == answered.messages
    assert counted.tools == answered.tools
    assert counted.template == answered.template
    assert counted.max_tokens is None


def test_a_count_accepts_any_thinking_budget() -> None:
    thinking = {"type": "enabled", "budget_tokens": 1024}
    assert count(thinking=thinking).template.enable_thinking is True


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "look"}])
def test_a_count_accepts_a_forced_call_which_no_prompt_shows(choice: dict[str, Any]) -> None:
    counted, plain = count(tools=[TOOL], tool_choice=choice), count(tools=[TOOL])
    assert counted.tools == plain.tools
    assert (counted.messages, counted.template) == (plain.messages, plain.template)


def test_a_count_refuses_a_choice_that_an_answer_would_refuse() -> None:
    with pytest.raises(BadRequest) as caught:
        count(tools=[TOOL], tool_choice={"type": "tool", "name": "fly"})
    assert caught.value.param == "tool_choice.name"


def test_a_count_is_spelled_as_the_sdk_reads_it() -> None:
    read_back = MessageTokensCount.model_validate_json(count_tokens_body(17))
    assert read_back.input_tokens == 17


# --- the tables ------------------------------------------------------------------------------


@pytest.mark.parametrize("table", [MESSAGES, COUNT_TOKENS])
def test_each_field_is_in_one_class(table: FieldTable[Any]) -> None:
    applied = set(table.body.model_fields)
    assert set(table.notes) == applied
    assert not applied & set(table.refused)
    assert not applied & set(table.ignored)
    assert not set(table.refused) & set(table.ignored)


@pytest.mark.parametrize(
    ("table", "params"),
    [
        (MESSAGES, message_create_params.MessageCreateParamsStreaming),
        (MESSAGES, beta_create_params.MessageCreateParamsStreaming),
        (COUNT_TOKENS, message_count_tokens_params.MessageCountTokensParams),
        (COUNT_TOKENS, beta_count_params.MessageCountTokensParams),
    ],
)
def test_each_field_of_the_sdk_is_known(table: FieldTable[Any], params: Any) -> None:
    known = {*table.body.model_fields, *table.refused, *table.ignored}
    assert set(typing.cast("dict[str, object]", params.__annotations__)) <= known
