"""Fields of a chat body that constrain its response or limit its length."""

import json
from typing import Any

import pytest

from node.dialects.chat.body import ChatRequest, read_chat
from node.dialects.chat.response import ChatStyle
from node.errors import BadRequest, Unsupported
from node.ipc.generate import Constraint, ConstraintKind
from node.request import TextRequest

FUNCTION = {"name": "f", "parameters": {"type": "object"}}
TOOLS = [
    {"type": "function", "function": FUNCTION},
    {"type": "function", "function": {"name": "g"}},
]
TALK = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "He"}]


def parsed(**fields: Any) -> ChatRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    return read_chat(json.dumps(body).encode())


def chat(**fields: Any) -> TextRequest:
    return parsed(**fields).request


# --- forced calls ----------------------------------------------------------------------------


def test_by_default_calls_are_free() -> None:
    request = chat(tools=TOOLS)
    assert (request.must_call, request.callable_tools) == (False, None)


def test_a_required_call_may_be_several_of_any_tool() -> None:
    request = chat(tools=TOOLS, tool_choice="required")
    assert request.must_call
    assert request.callable_tools is None
    assert request.parallel_tool_calls
    assert not chat(
        tools=TOOLS, tool_choice="required", parallel_tool_calls=False
    ).parallel_tool_calls


def test_a_named_tool_is_one_call_and_the_model_is_shown_all() -> None:
    choice = {"type": "function", "function": {"name": "g"}}
    request = chat(tools=TOOLS, tool_choice=choice)
    assert request.must_call
    assert request.callable_tools == ("g",)
    assert not request.parallel_tool_calls
    assert request.tools == chat(tools=TOOLS).tools
    assert request.must_call_param == "tool_choice"


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_allowed_tools_keep_the_prompt_and_narrow_what_is_called(mode: str) -> None:
    of = {"mode": mode, "tools": [{"type": "function", "function": {"name": "g"}}]}
    request = chat(tools=TOOLS, tool_choice={"type": "allowed_tools", "allowed_tools": of})
    assert request.must_call == (mode == "required")
    assert request.callable_tools == ("g",)
    assert request.tools == chat(tools=TOOLS).tools
    assert request.parallel_tool_calls


def test_a_function_of_the_older_form_can_be_demanded() -> None:
    request = chat(functions=[FUNCTION], function_call={"name": "f"})
    assert request.must_call
    assert request.callable_tools == ("f",)
    assert request.must_call_param == "function_call"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"functions": [FUNCTION], "tool_choice": "required"}, "tool_choice"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice.function.name",
        ),
        ({"functions": [FUNCTION], "function_call": {"name": "x"}}, "function_call.name"),
        ({"tools": TOOLS, "function_call": {"name": "f"}}, "function_call.name"),
        ({"tools": TOOLS, "function_call": "none"}, "function_call"),
        ({"tools": TOOLS, "tool_choice": "none", "function_call": "none"}, "function_call"),
        ({"functions": [FUNCTION], "tool_choice": "none"}, "tool_choice"),
        (
            {
                "functions": [{"name": "s", "parameters": {"type": "string"}}],
                "function_call": {"name": "s"},
            },
            "functions[0].parameters",
        ),
        (
            {
                "tools": [
                    {
                        "type": "function",
                        "function": {"name": "s", "parameters": {"type": "string"}},
                    }
                ],
                "tool_choice": "required",
            },
            "tools[0].function.parameters",
        ),
        (
            {
                "tools": TOOLS,
                "tool_choice": "required",
                "messages": TALK,
                "continue_final_message": True,
            },
            "continue_final_message",
        ),
    ],
)
def test_a_call_that_cannot_be_demanded_is_not_valid(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest, match=r"\.$") as caught:
        chat(**fields)
    assert not isinstance(caught.value, Unsupported)
    assert caught.value.param == param


def test_a_choice_of_the_other_form_without_effect_is_accepted() -> None:
    assert chat(tools=TOOLS, function_call="auto") == chat(tools=TOOLS)
    assert chat(functions=[FUNCTION], tool_choice="auto") == chat(functions=[FUNCTION])
    assert chat(function_call="none") == chat(tool_choice="none") == chat()


# --- formats ---------------------------------------------------------------------------------


def test_a_format_may_be_combined_with_tools_forced_or_free() -> None:
    constraint = Constraint(ConstraintKind.JSON_OBJECT, "response_format")
    json_object = {"type": "json_object"}
    assert chat(tools=TOOLS, response_format=json_object).constraint == constraint
    both = chat(tools=TOOLS, tool_choice="required", response_format=json_object)
    assert both.constraint == constraint
    assert both.must_call


# --- thinking --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"max_thinking_tokens": 17},
        {"thinking_token_budget": 17},
        {"thinking_budget": 17},
        {"reasoning_max_tokens": 17},
        {"reasoning": {"max_tokens": 17}},
        {"reasoning": {"max_tokens": 17}, "max_thinking_tokens": 17},
    ],
)
def test_a_limit_of_thinking_has_many_names(fields: dict[str, Any]) -> None:
    assert chat(**fields) == chat(max_thinking_tokens=17)
    assert chat(**fields).thinking_tokens == 17


@pytest.mark.parametrize("kind", ["enabled", "adaptive"])
def test_other_vendors_turn_thinking_on_with_an_object(kind: str) -> None:
    assert chat(thinking={"type": kind}) == chat(enable_thinking=True)
    both = chat(enable_thinking=True, max_thinking_tokens=9)
    assert chat(thinking={"type": kind, "budget_tokens": 9}) == both


def test_other_vendors_turn_thinking_off_whatever_the_budget() -> None:
    assert chat(thinking={"type": "disabled"}) == chat(enable_thinking=False)
    off = {"type": "disabled", "budget_tokens": 9}
    assert chat(thinking=off, enable_thinking=False) == chat(enable_thinking=False)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_thinking_tokens": -2}, "max_thinking_tokens"),
        ({"thinking_budget": "a"}, "thinking_budget"),
        ({"max_thinking_tokens": 5, "thinking_budget": 6}, "thinking_budget"),
        ({"max_thinking_tokens": 5, "reasoning": {"max_tokens": 6}}, "reasoning.max_tokens"),
        (
            {"thinking_budget": 5, "thinking": {"type": "enabled", "budget_tokens": 6}},
            "thinking.budget_tokens",
        ),
        ({"thinking": {"type": "enabled"}, "enable_thinking": False}, "thinking"),
        ({"thinking": {"type": "adaptive"}, "reasoning_effort": "none"}, "thinking"),
        ({"thinking": {}}, "thinking.type"),
        ({"thinking": True}, "thinking"),
    ],
)
def test_limits_that_contradict_or_are_none_are_not_valid(
    fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(BadRequest) as caught:
        chat(**fields)
    assert not isinstance(caught.value, Unsupported)
    assert caught.value.param == param


def test_another_type_of_thinking_is_not_supported() -> None:
    with pytest.raises(Unsupported) as caught:
        chat(thinking={"type": "auto"})
    assert caught.value.param == "thinking.type"


# --- logprobs and choices --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "likeliest"),
    [
        ({}, None),
        ({"logprobs": False}, None),
        ({"top_logprobs": 0}, None),
        ({"logprobs": False, "top_logprobs": 0}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 0}, 0),
        ({"logprobs": True, "top_logprobs": 1}, 1),
        ({"logprobs": True, "top_logprobs": 20}, 20),
    ],
)
def test_logprobs_may_be_returned_with_the_likeliest_tokens(
    fields: dict[str, Any], likeliest: int | None
) -> None:
    assert chat(**fields).logprobs == likeliest
    assert parsed(**fields).style.has_logprobs is (likeliest is not None)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": False, "top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"logprobs": 5}, "logprobs"),
    ],
)
def test_logprobs_that_cannot_be_returned_are_not_valid(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        chat(**fields)
    assert not isinstance(caught.value, Unsupported)
    assert caught.value.param == param


def test_the_answers_style_has_choices_and_logprobs() -> None:
    style = parsed(n=3, logprobs=True).style
    assert style == ChatStyle(choices=3, has_logprobs=True)
