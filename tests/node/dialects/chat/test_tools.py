"""Tools are functions with a name; a choice sets which of them may or must be called."""

from typing import Any

import pytest

from node.dialects.chat.tools import (
    FunctionBody,
    read_choice,
    read_function_call,
    read_functions,
    read_tools,
)
from node.dialects.fields.tool_choice import AUTO, NO_CALLS, DeclaredTools, ToolChoice
from node.errors import BadRequest, Unsupported

SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}}


def tool(**function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **function}}


def test_a_function_keeps_what_the_client_gave_and_nothing_else() -> None:
    (found,) = read_tools([tool(strict=True, parameters=SCHEMA, description="Finds.", x=1)]).tools
    assert found.function == {
        "name": "f",
        "description": "Finds.",
        "parameters": SCHEMA,
        "strict": True,
    }
    assert list(found.function) == ["name", "description", "parameters", "strict"]
    assert found.parameters == SCHEMA
    (bare,) = read_tools([tool(strict=None, parameters=None, description=None)]).tools
    assert bare.function == {"name": "f"}


@pytest.mark.parametrize("fields", [{"function": {"name": "g"}}, {"parameters": SCHEMA}])
def test_a_tool_of_the_client_s_of_another_type_is_refused_by_its_path(
    fields: dict[str, Any],
) -> None:
    with pytest.raises(Unsupported) as caught:
        read_tools([tool(), {"type": "fucntion", **fields}])
    assert caught.value.param == "tools[1].type"


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"type": "function"}, "tools[0].function"),
        ({"type": "custom"}, "tools[0].custom"),
        ({"type": "custom", "function": {"name": "f"}}, "tools[0].custom"),
        ({"function": {"name": "f"}}, "tools[0].type"),
        ({"type": "function", "function": {"name": "a b"}}, "tools[0].function.name"),
        ({"type": "custom", "custom": {"name": "a b"}}, "tools[0].custom.name"),
    ],
)
def test_a_tool_that_is_not_valid_is_refused_by_its_path(given: dict[str, Any], path: str) -> None:
    with pytest.raises(BadRequest) as caught:
        read_tools([given])
    assert not isinstance(caught.value, Unsupported)
    assert caught.value.param == path


def test_two_tools_of_one_name_are_not_valid() -> None:
    with pytest.raises(BadRequest) as caught:
        read_tools([tool(), tool(description="Another.")])
    assert caught.value.param == "tools[1].function.name"
    with pytest.raises(BadRequest) as caught:
        read_functions([FunctionBody(name="f"), FunctionBody(name="f")])
    assert caught.value.param == "functions[1].name"


def test_the_older_form_gives_the_same_tools() -> None:
    assert read_functions([FunctionBody(name="f", parameters=SCHEMA)]) == read_tools(
        [tool(parameters=SCHEMA)]
    )


# --- the choice ------------------------------------------------------------------------------

TOOLS = read_tools([tool(), tool(name="g"), tool(name="h")])


def function(name: object) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def of_tools(mode: str, *names: object) -> dict[str, Any]:
    allowed = {"mode": mode, "tools": [function(name) for name in names]}
    return {"type": "allowed_tools", "allowed_tools": allowed}


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, AUTO),
        ("auto", AUTO),
        ("none", NO_CALLS),
        ("required", ToolChoice(must_call=True)),
        (function("g"), ToolChoice(must_call=True, callable_tools=("g",), is_single=True)),
        (of_tools("auto", "h", "f", "h"), ToolChoice(callable_tools=("h", "f"))),
        (of_tools("required", "g"), ToolChoice(must_call=True, callable_tools=("g",))),
    ],
)
def test_a_choice_sets_what_may_be_called_and_whether_it_must(
    choice: object, expected: ToolChoice
) -> None:
    assert read_choice(choice, TOOLS) == expected


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        ("any", "tool_choice"),
        (5, "tool_choice"),
        (True, "tool_choice"),
        (["auto"], "tool_choice"),
        ({"name": "f"}, "tool_choice.type"),
        ({"type": "function"}, "tool_choice.function"),
        ({"type": "function", "name": "f"}, "tool_choice.function"),
        (function(None), "tool_choice.function.name"),
        (function("missing"), "tool_choice.function.name"),
        ({"type": "allowed_tools"}, "tool_choice.allowed_tools"),
        (of_tools("any", "f"), "tool_choice.allowed_tools.mode"),
        (of_tools("auto"), "tool_choice.allowed_tools.tools"),
        (of_tools("auto", "f", "missing"), "tool_choice.allowed_tools.tools"),
        (of_tools("auto", "f", 5), "tool_choice.allowed_tools.tools[1].function.name"),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": {}}},
            "tool_choice.allowed_tools.tools",
        ),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": ["f"]}},
            "tool_choice.allowed_tools.tools[0]",
        ),
    ],
)
def test_a_choice_that_is_not_valid_is_refused_with_its_path(choice: object, param: str) -> None:
    with pytest.raises(BadRequest, match=r"\.$") as caught:
        read_choice(choice, TOOLS)
    assert not isinstance(caught.value, Unsupported)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        ({"type": "web_search"}, "tool_choice.type"),
        ({"type": "fucntion", "function": {"name": "f"}}, "tool_choice.type"),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "required", "tools": [{"type": "mcp"}]},
            },
            "tool_choice.allowed_tools.tools",
        ),
    ],
)
def test_choices_of_what_is_no_function_are_not_supported(choice: object, param: str) -> None:
    with pytest.raises(Unsupported) as caught:
        read_choice(choice, TOOLS)
    assert caught.value.param == param


@pytest.mark.parametrize("choice", ["required", function("f"), of_tools("auto", "f")])
def test_without_tools_no_call_can_be_demanded(choice: object) -> None:
    with pytest.raises(BadRequest):
        read_choice(choice, DeclaredTools())


def test_the_older_form_names_a_function() -> None:
    assert read_function_call("none", TOOLS) == NO_CALLS
    assert read_function_call(None, DeclaredTools()) == read_function_call("auto", TOOLS) == AUTO
    assert read_function_call({"name": "f"}, TOOLS) == read_choice(function("f"), TOOLS)


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        ("required", "function_call"),
        (5, "function_call"),
        ({}, "function_call.name"),
        ({"name": "missing"}, "function_call.name"),
    ],
)
def test_an_older_choice_that_is_not_valid_is_refused(choice: object, param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        read_function_call(choice, TOOLS)
    assert caught.value.param == param
