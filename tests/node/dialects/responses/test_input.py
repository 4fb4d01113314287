"""Items become messages."""

import contextlib
import itertools
import json
from typing import Any

import pytest

from node.dialects.responses.input import (
    AddedTools,
    added_tools,
    left_out_items,
    messages_of,
)
from node.dialects.responses.items import sealed, stored_item
from node.errors import BadRequest
from node.request import LeftOut, Message, TextPart, ToolCall

USER = {"role": "user", "content": "hi"}


def call(call_id: str, **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}", **more}


def output(call_id: str, value: Any = "ok", **more: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": value, **more}


def thought(text: str, **more: Any) -> dict[str, Any]:
    content = [{"type": "reasoning_text", "text": text}]
    return {"type": "reasoning", "summary": [], "content": content, **more}


def text_item(text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "role": "assistant", "content": content, "status": "completed"}


def test_reasoning_text_and_calls_in_a_row_are_one_answer() -> None:
    items = [
        USER,
        thought("Hm."),
        text_item("I look."),
        call("a"),
        call("b"),
        output("a"),
        output("b"),
    ]
    assert messages_of(items) == (
        Message("user", "hi"),
        Message(
            "assistant", "I look.", "Hm.", (ToolCall("a", "f", "{}"), ToolCall("b", "f", "{}"))
        ),
        Message("tool", "ok", tool_call_id="a", name="f"),
        Message("tool", "ok", tool_call_id="b", name="f"),
    )


def test_a_call_after_a_result_is_an_answer_of_its_own() -> None:
    items = [call("a"), output("a"), call("b"), output("b")]
    roles = [message.role for message in messages_of(items)]
    assert roles == ["assistant", "tool", "assistant", "tool"]


def test_the_items_of_one_answer_are_one_message_in_any_order() -> None:
    items = [
        thought("A."),
        text_item("Before."),
        call("a"),
        thought("B."),
        call("b"),
        text_item("After."),
    ]
    assert messages_of([USER, *items, output("a"), output("b")])[1] == Message(
        "assistant",
        "Before.After.",
        "A.\nB.",
        (ToolCall("a", "f", "{}"), ToolCall("b", "f", "{}")),
    )


def test_two_texts_in_a_row_are_two_answers() -> None:
    messages = messages_of(
        [call("a"), text_item("x"), text_item("y"), text_item(""), thought("z"), text_item("w")]
    )
    assert [(m.content, m.reasoning, len(m.tool_calls)) for m in messages] == [
        ("x", "", 1),
        ("yw", "z", 0),
    ]


def test_items_of_two_responses_are_two_answers() -> None:
    head = "0123456789abcdef"
    items = [
        thought("A.", id=f"rs_{head}-one-0"),
        {**text_item("x"), "id": f"msg_{head}-one-1"},
        thought("B.", id=f"rs_{head}-two-0"),
        {**text_item("y"), "id": f"msg_{head}-two-1"},
        call("a", id="fc_of_another_server"),
        {**text_item("z"), "id": f"msg_{head}-two-i0"},
    ]
    assert [(m.content, m.reasoning, len(m.tool_calls)) for m in messages_of(items)] == [
        ("x", "A.", 0),
        ("y", "B.", 1),
        ("z", "", 0),
    ]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("{}", "{}"),
        ({"b": [1, None]}, '{"b": [1, null]}'),
        (None, ""),
        ("", ""),
        ('{"a": "cut o', '{"a": "cut o'),
        ([1], "[1]"),
        ({"a": float("nan")}, '{"a": NaN}'),
    ],
)
def test_arguments_of_a_call_are_text_whatever_they_are(given: object, text: str) -> None:
    (message,) = messages_of([call("a", arguments=given)])
    assert message.tool_calls == (ToolCall("a", "f", text),)
    assert stored_item(call("a", arguments=given), "fc_1")["arguments"] == text


def test_an_answer_or_a_result_may_have_no_content() -> None:
    items = [{"role": "assistant", "content": None}, call("a", id=None), output("a", None)]
    assert [(m.role, m.content) for m in messages_of(items)] == [("assistant", ""), ("tool", "")]
    assert stored_item(items[0], "msg_1")["content"] == []
    assert stored_item(items[2], "msg_2")["output"] == []


def test_whatever_is_accepted_can_be_stored() -> None:
    odd: tuple[Any, ...] = (None, "", "x", [], [{"type": "text", "text": "x"}], ["x"], 7, {}, [{}])
    kinds = {"message": ("content",), "reasoning": ("content", "summary")}
    kinds |= {"function_call": ("arguments", "namespace"), "function_call_output": ("output",)}
    kinds |= {"custom_tool_call": ("input",), "custom_tool_call_output": ("output",)}
    kinds |= {"shell_call": ("action",), "shell_call_output": ("output",)}
    accepted = 0
    for kind, fields in kinds.items():
        for values in itertools.product(odd, repeat=len(fields)):
            item = {"type": kind, "role": "assistant", "call_id": "a", "name": "f"}
            item |= dict(zip(fields, values, strict=True))
            with contextlib.suppress(BadRequest):
                messages_of([item])
                accepted += 1
                json.dumps(stored_item(item, "msg_1"))
    assert accepted == 5 + 5 * 5 + 9 * 9 + 8 + 2 + 8 + 9 + 8


def test_reasoning_without_text_stays_an_answer() -> None:
    assert messages_of([USER, thought("Hm."), USER])[1] == Message("assistant", "", "Hm.")


def test_developer_and_several_system_messages_keep_role_and_place() -> None:
    items: list[dict[str, Any]] = [
        {"role": "system", "content": "a"},
        {"role": "developer", "content": [{"type": "input_text", "text": "b"}]},
        USER,
        {"role": "system", "content": "c"},
    ]
    assert messages_of(items) == (
        Message("system", "a"),
        Message("developer", "b"),
        Message("user", "hi"),
        Message("system", "c"),
    )


def test_parts_are_texts_a_refusal_among_them() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "refusal", "refusal": "no"}]
    (message,) = messages_of([{"role": "user", "content": parts}])
    assert message.content == (TextPart("a"), TextPart("no"))
    (answer,) = messages_of([{"role": "assistant", "content": parts}])
    assert answer.content == "ano"


def test_a_result_may_be_parts_and_may_name_its_function() -> None:
    parts = [{"type": "input_text", "text": "5"}]
    (message,) = messages_of([output("z", parts, name="g", namespace="n")])
    assert message == Message("tool", "5", tool_call_id="z", name="n__g")


def test_calls_of_a_namespace_have_the_name_that_the_model_knows() -> None:
    (message,) = messages_of([call("a", namespace="mcp__files")])
    assert message.tool_calls == (ToolCall("a", "mcp__files__f", "{}"),)


def test_reasoning_is_restored_from_what_was_sealed() -> None:
    bare: list[dict[str, Any]] = [{}, {"summary": [], "content": None}, {"content": []}]
    for more in bare:
        item = {"type": "reasoning", **more}
        (message,) = messages_of([{**item, "encrypted_content": sealed("Grüße")}, text_item("x")])
        assert message.reasoning == "Grüße"


def test_of_what_others_encrypted_the_summary_is_read() -> None:
    item = {"type": "reasoning", "encrypted_content": "gAAAAB"}
    summary = [{"type": "summary_text", "text": "In short."}]
    (message,) = messages_of([{**item, "summary": summary}, text_item("x")])
    assert message.reasoning == "In short."
    assert messages_of([{**item, "summary": []}, text_item("x")]) == (Message("assistant", "x"),)


def test_a_summary_alone_is_the_reasoning() -> None:
    summary = [{"type": "summary_text", "text": "Hm.", "index": 0}]
    bare: list[dict[str, Any]] = [{}, {"content": None}, {"content": [], "encrypted_content": None}]
    for more in bare:
        item = {"type": "reasoning", "id": "rs_1", "summary": summary, **more}
        for each in (item, stored_item(item, "rs_1")):
            assert messages_of([each, text_item("x")]) == (Message("assistant", "x", "Hm."),)


def test_what_a_host_did_is_left_out_and_reported() -> None:
    hosted: list[dict[str, Any]] = [
        {"type": "web_search_call", "status": "completed", "action": {"type": "search"}},
        {"type": "compaction", "encrypted_content": "x"},
        {"type": "mcp_list_tools", "tools": []},
    ]
    items = [USER, hosted[0], text_item("Found."), *hosted[1:], USER]
    assert messages_of(items) == messages_of([USER, text_item("Found."), USER])
    assert left_out_items(items) == (
        LeftOut("input[1]", "web_search_call"),
        LeftOut("input[3]", "compaction"),
        LeftOut("input[4]", "mcp_list_tools"),
    )


def test_what_a_client_ran_for_another_model_is_a_call_and_its_result() -> None:
    action = {"type": "exec", "command": ["ls"]}
    outcome = [{"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]
    items: list[dict[str, Any]] = [
        {"type": "local_shell_call", "call_id": "a", "action": action},
        {"type": "local_shell_call_output", "call_id": "a", "output": "pic.png"},
        {"type": "shell_call", "call_id": "b", "action": {"commands": ["ls"]}},
        {"type": "shell_call_output", "call_id": "b", "output": outcome},
        {"type": "apply_patch_call", "call_id": "c", "operation": {"type": "delete_file"}},
        {"type": "apply_patch_call_output", "call_id": "c", "output": "done"},
    ]
    found = messages_of(items)
    assert [each.role for each in found] == ["assistant", "tool"] * 3
    assert found[0].tool_calls == (ToolCall("a", "local_shell", json.dumps(action)),)
    assert (found[1].content, found[1].name) == ("pic.png", "local_shell")
    assert found[2].tool_calls[0].name == "shell"
    assert json.loads(str(found[3].content)) == outcome
    assert found[4].tool_calls[0].arguments == '{"type": "delete_file"}'
    assert messages_of([stored_item(item, "msg_1") for item in items]) == found


def test_tools_that_an_item_adds_are_found_and_are_no_message() -> None:
    tools = [{"type": "function", "name": "f"}]
    item = {"type": "additional_tools", "role": "developer", "tools": tools}
    assert messages_of([item, USER]) == messages_of([USER])
    first, third = (tools, "input[0].tools"), (tools, "input[2].tools")
    assert added_tools([item, USER, item]) == AddedTools([first], [third])
    assert added_tools([USER, USER, item], earlier=2) == AddedTools([], [first])
    assert added_tools([stored_item(item, "msg_1")]) == added_tools([item])
    assert added_tools([USER]) == added_tools([]) == AddedTools([], [])


def test_tools_that_are_added_later_are_listed_where_they_are_added() -> None:
    tools = [
        {"type": "function", "name": "f", "description": "F.", "strict": True, "x": None},
        {"type": "namespace", "name": "n", "tools": [{"type": "custom", "name": "g"}]},
        {"type": "web_search"},
    ]
    item = {"type": "additional_tools", "role": "developer", "tools": tools}
    first, late = messages_of([USER, item])
    assert (first.role, late.role) == ("user", "developer")
    head, *lines = str(late.content).split("\n")
    assert "can be called" in head
    custom = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
    assert [json.loads(line) for line in lines] == [
        {"name": "f", "description": "F."},
        {"name": "n__g", "parameters": custom},
    ]
    assert messages_of([USER, {**item, "tools": []}]) == (first,)
    assert messages_of([USER, stored_item(item, "msg_1")]) == (first, late)


SEARCHED: list[dict[str, Any]] = [
    {
        "type": "tool_search_call",
        "call_id": "c",
        "execution": "client",
        "arguments": {"query": "mail"},
    },
    {
        "type": "tool_search_output",
        "call_id": "c",
        "execution": "client",
        "tools": [{"type": "function", "name": "send"}],
    },
]


def test_a_search_of_the_client_s_is_a_call_and_its_result_lists_the_tools() -> None:
    calling, result = messages_of(SEARCHED)
    assert calling.tool_calls == (ToolCall("c", "tool_search", '{"query": "mail"}'),)
    assert (result.role, result.tool_call_id, result.name) == ("tool", "c", "tool_search")
    assert '{"name":"send"}' in str(result.content)
    assert added_tools(SEARCHED).late == [(SEARCHED[1]["tools"], "input[1].tools")]
    nothing = {**SEARCHED[1], "tools": []}
    assert messages_of([SEARCHED[0], nothing])[1].content == "No tools were found."
    assert messages_of([stored_item(item, "msg_1") for item in SEARCHED]) == (calling, result)


def test_a_search_of_a_host_s_is_left_out() -> None:
    hosted = [{**item, "call_id": None, "execution": "server"} for item in SEARCHED]
    assert messages_of([USER, *hosted]) == messages_of([USER])
    assert added_tools([USER, *hosted]) == AddedTools([], [])
    assert [each.path for each in left_out_items([USER, *hosted])] == ["input[1]", "input[2]"]


@pytest.mark.parametrize(
    ("item", "path"),
    [
        ({"type": "nothing"}, "type"),
        ({}, "type"),
        ({"role": "robot", "content": "x"}, "role"),
        ({"role": "user"}, "content"),
        ({"role": "user", "content": ["x"]}, "content[0]"),
        ({"role": "user", "content": [{"type": "x"}]}, "content[0].type"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "content[0].text"),
        (output(""), "call_id"),
        (output("a", 7), "output"),
        (call("a", name=None), "name"),
        (thought("x") | {"summary": ["s"]}, "summary[0]"),
        (thought("x") | {"summary": [{"type": "summary_text"}]}, "summary[0].text"),
        ({"type": "reasoning", "content": {"a": 1}}, "content"),
        ({"type": "reasoning", "encrypted_content": "mlx-fleet.1.eA==", "summary": 7}, "summary"),
        ({"type": "reasoning", "encrypted_content": "mlx-fleet.1.%%"}, "encrypted_content"),
    ],
)
def test_bad_items_are_refused_by_path(item: dict[str, Any], path: str) -> None:
    with pytest.raises(BadRequest) as caught:
        messages_of([item])
    assert caught.value.param == f"input[0].{path}"


def test_stored_items_have_an_id_and_all_that_clients_look_for() -> None:
    assert stored_item(USER, "msg_1") == {
        "id": "msg_1",
        "type": "message",
        "role": "user",
        "status": "completed",
        "content": [{"type": "input_text", "text": "hi"}],
    }
    assistant = stored_item({"role": "assistant", "content": "yo", "id": "msg_own"}, "msg_2")
    assert assistant["id"] == "msg_own"
    assert assistant["content"] == [
        {"type": "output_text", "text": "yo", "annotations": [], "logprobs": []}
    ]
    assert stored_item(call("a"), "msg_3") == {**call("a"), "id": "msg_3", "status": "completed"}


def test_stored_items_contain_only_what_has_a_meaning() -> None:
    item = {**USER, "phase": "commentary", "huge": 10**40, "odd": {"a": 1}}
    assert set(stored_item(item, "msg_1")) == {"id", "type", "role", "phase", "status", "content"}
    refusal = {"role": "assistant", "content": [{"type": "refusal", "refusal": "no", "x": 1}]}
    assert stored_item(refusal, "msg_1")["content"] == [{"type": "refusal", "refusal": "no"}]


def test_stored_items_stand_for_the_same_messages() -> None:
    items = [USER, thought("Hm."), text_item("I look."), call("a"), output("a")]
    items += [output("b", [{"type": "text", "text": "5"}]), text_item("Done.")]
    items += [{"type": "reasoning", "content": "Hm."}, {"role": "assistant", "content": "x"}]
    stored = [stored_item(item, f"msg_{at}") for at, item in enumerate(items)]
    assert messages_of(stored) == messages_of(items)
