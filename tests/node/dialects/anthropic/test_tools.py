"""Tools become functions as chat templates expect them."""

from typing import Any

import pytest

from node.dialects.anthropic.tools import ToolChoiceBody, read_choice, read_tools
from node.dialects.fields.tool_choice import AUTO, NO_CALLS, DeclaredTools, ToolChoice
from node.errors import BadRequest, Unsupported
from node.request import Tool

SCHEMA = {"type": "object", "properties": {"at": {"type": "string"}}}


def tool(**fields: Any) -> dict[str, Any]:
    return {"name": "look", "input_schema": SCHEMA, **fields}


def test_a_tool_is_a_function_without_what_means_nothing_to_a_model() -> None:
    given = tool(
        type="custom",
        description="Looks.",
        cache_control={"type": "ephemeral"},
        eager_input_streaming=True,
        strict=None,
        defer_loading=False,
        allowed_callers=["direct"],
    )
    assert read_tools([given]).tools == (
        Tool({"name": "look", "description": "Looks.", "parameters": SCHEMA}),
    )


@pytest.mark.parametrize("strict", [True, False])
def test_strict_is_shown_as_other_dialects_show_it(strict: bool) -> None:
    (read,) = read_tools([tool(strict=strict)]).tools
    assert read.function == {"name": "look", "parameters": SCHEMA, "strict": strict}


def test_examples_of_the_input_are_added_to_the_description() -> None:
    (read,) = read_tools([tool(description="Looks.", input_examples=[{"at": "Köln"}])]).tools
    assert read.function["description"] == 'Looks.\n\nExamples of its input:\n{"at": "Köln"}'


def test_null_in_a_schema_is_no_key_of_it() -> None:
    schema = {"type": "object", "title": None, "properties": {"a": {"enum": ["x", None]}}}
    (read,) = read_tools([tool(input_schema=schema)]).tools
    assert read.parameters == {"type": "object", "properties": {"a": {"enum": ["x", None]}}}


def test_a_tool_has_the_path_of_its_schema() -> None:
    tools = read_tools([tool(), tool(name="go")]).tools
    assert [each.param for each in tools] == ["tools[0].input_schema", "tools[1].input_schema"]


TOOLS = read_tools([tool(), tool(name="go")])
NONE = DeclaredTools()


@pytest.mark.parametrize(
    ("choice", "meant"),
    [
        (None, AUTO),
        ({"type": "auto"}, AUTO),
        ({"type": "none"}, NO_CALLS),
        ({"type": "any"}, ToolChoice(must_call=True)),
        (
            {"type": "tool", "name": "go"},
            ToolChoice(must_call=True, callable_tools=("go",), is_single=True),
        ),
    ],
)
def test_a_choice_sets_what_may_and_what_must_be_called(
    choice: dict[str, Any] | None, meant: ToolChoice
) -> None:
    given = None if choice is None else ToolChoiceBody.model_validate(choice)
    assert read_choice(given, TOOLS) == meant


def test_without_tools_there_is_nothing_to_choose() -> None:
    assert read_tools(None) == NONE
    assert read_choice(ToolChoiceBody(type="auto"), NONE) == AUTO
    assert read_choice(ToolChoiceBody(type="none"), NONE) == NO_CALLS


@pytest.mark.parametrize(
    ("choice", "tools", "param"),
    [
        ({"type": "some"}, TOOLS, "tool_choice.type"),
        ({"type": "any"}, NONE, "tool_choice.type"),
        ({"type": "tool"}, TOOLS, "tool_choice.name"),
        ({"type": "tool", "name": "fly"}, TOOLS, "tool_choice.name"),
        ({"type": "tool", "name": "look"}, NONE, "tool_choice.name"),
        ({"type": "any", "name": "look"}, TOOLS, "tool_choice.name"),
    ],
)
def test_a_choice_of_what_is_not_there_is_refused_by_path(
    choice: dict[str, Any], tools: DeclaredTools, param: str
) -> None:
    with pytest.raises(BadRequest) as caught:
        read_choice(ToolChoiceBody.model_validate(choice), tools)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (tool(type="bash"), "tools[0].type"),
        ({"type": "computer_20250124", "name": "computer"}, "tools[0].display_width_px"),
        (tool(allowed_callers=["code_execution_20250825"]), "tools[0].allowed_callers"),
    ],
)
def test_tools_that_this_version_cannot_honour_are_refused_by_path(
    fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(Unsupported) as caught:
        read_tools([fields])
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([{"name": "look"}], "tools[0].input_schema"),
        ([tool(name="two words")], "tools[0].name"),
        ([tool(input_schema=[])], "tools[0].input_schema"),
        ([tool(), tool()], "tools[1].name"),
    ],
)
def test_what_is_no_tool_is_refused_by_path(tools: list[dict[str, Any]], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        read_tools(tools)
    assert caught.value.param == param
