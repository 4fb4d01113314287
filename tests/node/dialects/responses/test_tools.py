"""Tools of `/v1/responses`, including namespaces."""

from typing import Any

import pytest

from node.dialects.fields.tool_choice import AUTO, NO_CALLS, DeclaredTools, ToolChoice
from node.dialects.responses.tools import read_choice, read_tool_set
from node.errors import BadRequest, Unsupported
from node.protocol.chain.canonical import model_name


def function(name: str = "f", **more: Any) -> dict[str, Any]:
    return {"type": "function", "name": name, **more}


def namespace(name: str, *tools: dict[str, Any], about: str = "") -> dict[str, Any]:
    return {"type": "namespace", "name": name, "description": about, "tools": list(tools)}


def test_a_function_reaches_the_template_in_chat_form_without_null() -> None:
    schema = {"type": "object", "properties": {"q": {"type": "string", "title": None}}}
    given = function(description=None, parameters=schema, strict=True)
    tool_set = read_tool_set([given])
    assert tool_set.declared.tools[0].function == {
        "name": "f",
        "parameters": {"type": "object", "properties": {"q": {"type": "string"}}},
        "strict": True,
    }
    assert tool_set.shown == [{**given, "parameters": schema}]


def test_no_tools_are_no_tools() -> None:
    assert read_tool_set(None).declared.tools == read_tool_set([]).declared.tools == ()


def test_functions_of_a_namespace_are_known_by_both_names() -> None:
    given = namespace("mcp__files", function("read"), function("write"), about="Files.")
    tool_set = read_tool_set([function("shell"), given])
    names = [tool.name for tool in tool_set.declared.tools]
    assert names == ["shell", "mcp__files__read", "mcp__files__write"]
    assert tool_set.namespaces == {
        "mcp__files__read": ("mcp__files", "read"),
        "mcp__files__write": ("mcp__files", "write"),
    }
    assert tool_set.shown[1]["name"] == "mcp__files"
    assert [tool["name"] for tool in tool_set.shown[1]["tools"]] == ["read", "write"]


def test_the_first_function_of_a_namespace_has_its_description() -> None:
    given = namespace("mail", function("a", description="A."), function("b"), about="Letters.")
    first, second = read_tool_set([given]).declared.tools
    assert first.function["description"] == "mail: Letters.\n\nA."
    assert "description" not in second.function


def test_the_namespace_of_plain_functions_adds_nothing_to_names() -> None:
    tool_set = read_tool_set([namespace("functions", function("f"))])
    assert tool_set.declared.tools[0].name == "f"
    assert tool_set.namespaces == {"f": ("functions", "f")}


def test_names_are_joined_once() -> None:
    assert model_name("f") == model_name("f", "") == model_name("f", "functions") == "f"
    assert model_name("f", "n") == model_name("f", "n__") == "n__f"


def test_the_schema_of_a_result_is_in_the_description() -> None:
    (tool,) = read_tool_set(
        [function(description="D.", output_schema={"type": "null"})]
    ).declared.tools
    text = 'D.\n\nIt returns JSON of this schema: {"type":"null"}'
    assert tool.function["description"] == text


@pytest.mark.parametrize(
    ("tool", "path"),
    [
        ({"type": "fucntion", "name": "f", "parameters": {"type": "object"}}, "type"),
        (namespace("n", {"type": "fucntion", "function": {"name": "f"}}), "tools[0].type"),
        (function(allowed_callers=["programmatic"]), "allowed_callers"),
        (namespace("n", {**function(), "async": True}), "tools[0].async"),
    ],
)
def test_other_tools_are_unsupported_by_path(tool: dict[str, Any], path: str) -> None:
    with pytest.raises(Unsupported) as caught:
        read_tool_set([function("g"), tool])
    assert caught.value.param == f"tools[1].{path}"


@pytest.mark.parametrize(
    ("tools", "path"),
    [
        ({}, "tools"),
        (["f"], "tools[0]"),
        ([{"name": "f"}], "tools[0].type"),
        ([{"type": "function", "function": {"name": "f"}}], "tools[0].name"),
        ([function("a b")], "tools[0].name"),
        ([function(), function()], "tools[1].name"),
        ([function("n__f"), namespace("n", function())], "tools[1].tools[0].name"),
        ([function(parameters=[])], "tools[0].parameters"),
        ([namespace("n")], "tools[0].tools"),
    ],
)
def test_bad_tools_are_refused_by_path(tools: object, path: str) -> None:
    with pytest.raises(BadRequest) as caught:
        read_tool_set(tools)
    assert caught.value.param == path


SET = read_tool_set([function("f"), namespace("mail", function("send"), function("read"))])


def test_a_function_has_the_path_of_its_schema() -> None:
    params = ["tools[0].parameters", "tools[1].tools[0].parameters", "tools[1].tools[1].parameters"]
    assert [tool.param for tool in SET.declared.tools] == params


def one(name: str) -> ToolChoice:
    return ToolChoice(must_call=True, callable_tools=(name,), is_single=True)


@pytest.mark.parametrize(
    ("choice", "meant"),
    [
        (None, AUTO),
        ("auto", AUTO),
        ("none", NO_CALLS),
        ("required", ToolChoice(must_call=True)),
        (function("f"), one("f")),
        (function("send", namespace="mail"), one("mail__send")),
        (function("mail__send"), one("mail__send")),
        (
            {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [function("f"), function("read", namespace="mail"), function("f")],
            },
            ToolChoice(callable_tools=("f", "mail__read")),
        ),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [function("f")]},
            ToolChoice(must_call=True, callable_tools=("f",)),
        ),
    ],
)
def test_a_choice_sets_what_may_and_what_must_be_called(choice: object, meant: ToolChoice) -> None:
    assert read_choice(choice, SET.declared) == meant


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        ("f", "tool_choice"),
        (1, "tool_choice"),
        ({}, "tool_choice.type"),
        (function("send"), "tool_choice.name"),
        ({"type": "function"}, "tool_choice.name"),
        ({"type": "function", "function": {"name": "f"}}, "tool_choice.name"),
        ({"type": "allowed_tools", "tools": [function("f")]}, "tool_choice.mode"),
        ({"type": "allowed_tools", "mode": "auto"}, "tool_choice.tools"),
        ({"type": "allowed_tools", "mode": "auto", "tools": []}, "tool_choice.tools"),
        ({"type": "allowed_tools", "mode": "auto", "tools": ["f"]}, "tool_choice.tools[0]"),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [function("f"), function("g")]},
            "tool_choice.tools",
        ),
    ],
)
def test_a_choice_of_what_is_not_there_is_refused_by_path(choice: object, param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        read_choice(choice, SET.declared)
    assert caught.value.param == param
    assert not isinstance(caught.value, Unsupported)


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        ({"type": "web_search"}, "tool_choice.type"),
        ({"type": "namespace", "name": "mail"}, "tool_choice.type"),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "mcp"}]},
            "tool_choice.tools",
        ),
    ],
)
def test_a_choice_of_no_function_is_not_supported(choice: object, param: str) -> None:
    with pytest.raises(Unsupported) as caught:
        read_choice(choice, SET.declared)
    assert caught.value.param == param


def test_a_call_cannot_be_forced_without_tools() -> None:
    with pytest.raises(BadRequest) as caught:
        read_choice("required", DeclaredTools())
    assert caught.value.param == "tool_choice"
