"""Tools become functions as templates know them."""

from typing import Any

import pytest

from node.dialects.anthropic_tools import ToolChoice, read_tools
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
    assert read_tools([given], None) == (
        Tool({"name": "look", "description": "Looks.", "parameters": SCHEMA}),
    )


@pytest.mark.parametrize("strict", [True, False])
def test_strict_is_shown_as_other_dialects_show_it(strict: bool) -> None:
    (read,) = read_tools([tool(strict=strict)], None)
    assert read.function == {"name": "look", "parameters": SCHEMA, "strict": strict}


def test_examples_of_the_input_go_into_the_description() -> None:
    (read,) = read_tools([tool(description="Looks.", input_examples=[{"at": "Köln"}])], None)
    assert read.function["description"] == 'Looks.\n\nExamples of its input:\n{"at": "Köln"}'


def test_null_in_a_schema_is_no_key_of_it() -> None:
    schema = {"type": "object", "title": None, "properties": {"a": {"enum": ["x", None]}}}
    (read,) = read_tools([tool(input_schema=schema)], None)
    assert read.parameters == {"type": "object", "properties": {"a": {"enum": ["x", None]}}}


def test_without_tools_a_choice_changes_nothing() -> None:
    assert read_tools(None, ToolChoice(type="auto")) == ()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"type": "web_search_20250305", "name": "web_search"}, "tools[0].type"),
        ({"type": "bash_20250124", "name": "bash"}, "tools[0].type"),
        (tool(defer_loading=True), "tools[0].defer_loading"),
        (tool(allowed_callers=["code_execution_20250825"]), "tools[0].allowed_callers"),
    ],
)
def test_tools_that_this_version_cannot_honour_are_refused_by_path(
    fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(Unsupported) as caught:
        read_tools([fields], None)
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
        read_tools(tools, None)
    assert caught.value.param == param
