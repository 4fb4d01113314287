"""Tools are functions with a name, and a choice of them is auto or none."""

from typing import Any

import pytest

from node.dialects.chat_tools import (
    FunctionBody,
    ToolBody,
    json_without_null,
    read_functions,
    read_tools,
    wants_no_calls,
)
from node.errors import BadRequest, Unsupported

SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}}


def tool(**function: Any) -> ToolBody:
    return ToolBody.model_validate({"type": "function", "function": {"name": "f", **function}})


def test_a_function_keeps_what_the_client_gave_and_nothing_else() -> None:
    (found,) = read_tools([tool(strict=True, parameters=SCHEMA, description="Finds.", x=1)])
    assert found.function == {
        "name": "f",
        "description": "Finds.",
        "parameters": SCHEMA,
        "strict": True,
    }
    assert list(found.function) == ["name", "description", "parameters", "strict"]
    assert found.parameters == SCHEMA
    (bare,) = read_tools([tool(strict=None, parameters=None, description=None)])
    assert bare.function == {"name": "f"}


def test_null_fields_of_a_schema_go_and_nulls_of_a_list_stay() -> None:
    schema = {"type": ["string", "null"], "default": None, "enum": ["a", None], "x": {"y": None}}
    assert json_without_null(schema, "p") == {
        "type": ["string", "null"],
        "enum": ["a", None],
        "x": {},
    }


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, float("inf"), float("nan")])
def test_numbers_that_not_every_reader_of_json_takes_are_refused(number: float) -> None:
    with pytest.raises(BadRequest) as caught:
        read_tools([tool(parameters={"properties": {"a": [{"maximum": number}]}})])
    assert caught.value.param == "tools[0].function.parameters"
    assert json_without_null([2**63, True, -1.5], "p") == [2**63, True, -1.5]


@pytest.mark.parametrize("kind", ["custom", "web_search", "code_interpreter"])
def test_tools_of_another_type_are_refused_by_their_path(kind: str) -> None:
    other = ToolBody.model_validate({"type": kind, kind: {}})
    with pytest.raises(Unsupported) as caught:
        read_tools([tool(), other])
    assert caught.value.param == "tools[1].type"


def test_a_tool_without_its_function_is_not_valid() -> None:
    with pytest.raises(BadRequest, match=r"tools\[0\]\.function is missing"):
        read_tools([ToolBody(type="function")])


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


@pytest.mark.parametrize(("choice", "expected"), [(None, False), ("auto", False), ("none", True)])
def test_a_choice_is_auto_or_none(choice: object, expected: object) -> None:
    assert wants_no_calls(choice, "tool_choice") is expected


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "function", "function": {"name": "f"}},
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}},
        {"name": "f"},
    ],
)
def test_forced_calls_are_refused_by_the_fields_name(choice: object) -> None:
    with pytest.raises(Unsupported) as caught:
        wants_no_calls(choice, "tool_choice")
    assert caught.value.param == "tool_choice"


@pytest.mark.parametrize("choice", ["any", 5, ["auto"], True])
def test_what_is_no_choice_is_not_valid(choice: object) -> None:
    with pytest.raises(BadRequest) as caught:
        wants_no_calls(choice, "function_call")
    assert not isinstance(caught.value, Unsupported)
    assert caught.value.param == "function_call"
