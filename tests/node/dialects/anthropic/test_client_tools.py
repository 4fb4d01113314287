"""Tools that a client of Anthropic's dialect runs and declares by type only."""

import json
from typing import Any

import jsonschema
import pytest

from node.dialects.anthropic.body import read_messages
from node.dialects.anthropic.tools import read_tools
from node.errors import BadRequest
from node.request import LeftOut, Tool

SCREEN: dict[str, Any] = {"display_width_px": 1024, "display_height_px": 768}


def declared(kind: str, name: str = "t", **fields: Any) -> Tool:
    (tool,) = read_tools([{"type": kind, "name": name, **fields}]).tools
    jsonschema.Draft202012Validator.check_schema(tool.parameters)
    return tool


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("bash_20241022", {"command": "ls"}),
        ("bash_20250124", {"restart": True}),
        ("text_editor_20241022", {"command": "undo_edit", "path": "/a"}),
        ("text_editor_20250124", {"command": "view", "path": "/a", "view_range": [1, -1]}),
        (
            "text_editor_20250429",
            {"command": "str_replace", "path": "/a", "old_str": "x", "new_str": "y"},
        ),
        (
            "text_editor_20250728",
            {"command": "insert", "path": "/a", "insert_line": 0, "insert_text": "x"},
        ),
        ("memory_20250818", {"command": "rename", "old_path": "/a", "new_path": "/b"}),
        ("memory_20250818", {"command": "view", "path": "/memories"}),
        ("computer_20241022", {"action": "left_click", "coordinate": [1, 2]}),
        ("computer_20250124", {"action": "wait", "duration": 1.5}),
        ("computer_20251124", {"action": "zoom", "region": [0, 0, 9, 9]}),
    ],
)
def test_it_is_a_function_with_the_schema_of_its_type(kind: str, arguments: dict[str, Any]) -> None:
    fields = {**SCREEN, "enable_zoom": True} if kind.startswith("computer") else {}
    tool = declared(kind, "mine", **fields)
    assert tool.name == "mine"
    assert tool.function["description"]
    jsonschema.validate(arguments, tool.parameters)
    assert arguments.keys() <= tool.parameters["properties"].keys()


def test_later_versions_have_other_commands() -> None:
    def enum_of(kind: str, field: str, **fields: Any) -> Any:
        return declared(kind, **fields).parameters["properties"][field]["enum"]

    assert "undo_edit" in enum_of("text_editor_20250124", "command")
    assert "undo_edit" not in enum_of("text_editor_20250728", "command")
    assert "scroll" not in enum_of("computer_20241022", "action", **SCREEN)
    assert "scroll" in enum_of("computer_20250124", "action", **SCREEN)
    assert "zoom" not in enum_of("computer_20251124", "action", **SCREEN)
    older = declared("text_editor_20250124").parameters["properties"]
    assert "insert_text" not in older
    assert "insert" in older["new_str"]["description"]


def test_the_settings_of_a_tool_are_in_its_description() -> None:
    assert "1024 x 768" in declared("computer_20250124", **SCREEN).function["description"]
    editor = declared("text_editor_20250728", max_characters=10_000)
    assert "10000 characters" in editor.function["description"]


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([{"type": "bash_20250124"}], "tools[0].name"),
        ([{"type": "bash_20250124", "name": "a b"}], "tools[0].name"),
        ([{"type": "bash_20250124", "name": "a"}] * 2, "tools[1].name"),
        ([{"type": "computer_20250124", "name": "c"}], "tools[0].display_width_px"),
    ],
)
def test_what_is_not_valid_is_refused_by_path(tools: list[dict[str, Any]], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        read_tools(tools)
    assert caught.value.param == param


HOSTED = (
    "web_search_20250305",
    "web_fetch_20250910",
    "code_execution_20250825",
    "tool_search_tool_regex_20251119",
    "mcp_toolset",
)


def message(**fields: Any) -> bytes:
    turns = [{"role": "user", "content": "hi"}]
    return json.dumps({"model": "m", "max_tokens": 9, "messages": turns, **fields}).encode()


def test_what_only_a_host_could_run_is_left_out() -> None:
    own = {"name": "look", "input_schema": {"type": "object"}, "defer_loading": True}
    tools = [*({"type": kind, "name": kind[:10]} for kind in HOSTED), own]
    request = read_messages(message(tools=tools)).request
    assert [tool.name for tool in request.tools] == ["look"]
    assert request.left_out == tuple(
        LeftOut(f"tools[{at}]", kind, kind[:10]) for at, kind in enumerate(HOSTED)
    )
    forced = read_messages(message(tools=tools, tool_choice={"type": "any"})).request
    assert forced.must_call


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        ({"type": "any"}, "tool_choice.type"),
        ({"type": "tool", "name": "web_search"}, "tool_choice.name"),
    ],
)
def test_a_forced_tool_of_a_host_is_refused(choice: dict[str, Any], param: str) -> None:
    tools = [{"type": "web_search_20250305", "name": "web_search"}]
    with pytest.raises(BadRequest, match="only a host could run") as caught:
        read_messages(message(tools=tools, tool_choice=choice))
    assert caught.value.param == param


def test_what_a_host_did_before_is_left_out_of_the_history() -> None:
    blocks = [
        {"type": "text", "text": "I search."},
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
        {"type": "text", "text": " Found."},
    ]
    turns = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": blocks},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": [{"type": "compaction", "content": "So far: a."}]},
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "t",
                    "content": [{"type": "tool_reference", "tool_name": "look"}],
                }
            ],
        },
    ]
    messages = read_messages(message(messages=turns)).request.messages or ()
    assert [each.content for each in messages] == [
        "a",
        "I search. Found.",
        "b",
        "So far: a.",
        "look",
    ]
