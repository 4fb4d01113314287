"""Items become messages."""

from typing import Any

import pytest

from node.dialects.responses_input import messages_of, sealed, stored_item
from node.errors import BadRequest, Unsupported
from node.request import Message, TextPart, ToolCall

USER = {"role": "user", "content": "hi"}


def call(call_id: str, **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}", **more}


def output(call_id: str, value: Any = "ok", **more: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": value, **more}


def thought(text: str, **more: Any) -> dict[str, Any]:
    content = [{"type": "reasoning_text", "text": text}]
    return {"type": "reasoning", "summary": [], "content": content, **more}


def said(text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "role": "assistant", "content": content, "status": "completed"}


def test_reasoning_text_and_calls_in_a_row_are_one_answer() -> None:
    items = [USER, thought("Hm."), said("I look."), call("a"), call("b"), output("a"), output("b")]
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


def test_what_comes_after_calls_or_text_begins_a_new_message() -> None:
    messages = messages_of([call("a"), said("x"), said("y"), thought("z"), said("w")])
    assert [(m.content, m.reasoning, len(m.tool_calls)) for m in messages] == [
        ("", "", 1),
        ("x", "", 0),
        ("y", "", 0),
        ("w", "z", 0),
    ]


def test_reasoning_without_text_stays_an_answer() -> None:
    assert messages_of([USER, thought("Hm."), USER])[1] == Message("assistant", "", "Hm.")


def test_developer_and_several_system_messages_keep_role_and_place() -> None:
    items: list[dict[str, Any]] = [
        {"role": "system", "content": "a"},
        {"role": "developer", "content": [{"type": "input_text", "text": "b"}]},
        USER,
        {"role": "system", "content": "x-anthropic-billing-header: 1\nc"},
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


def test_reasoning_comes_back_out_of_what_was_sealed() -> None:
    bare: list[dict[str, Any]] = [{}, {"summary": [], "content": None}, {"content": []}]
    for more in bare:
        item = {"type": "reasoning", **more}
        (message,) = messages_of([{**item, "encrypted_content": sealed("Grüße")}, said("x")])
        assert message.reasoning == "Grüße"


def test_what_others_encrypted_leaves_its_summary() -> None:
    item = {"type": "reasoning", "encrypted_content": "gAAAAB"}
    summary = [{"type": "summary_text", "text": "In short."}]
    (message,) = messages_of([{**item, "summary": summary}, said("x")])
    assert message.reasoning == "In short."
    assert messages_of([{**item, "summary": []}, said("x")]) == (Message("assistant", "x"),)


@pytest.mark.parametrize(
    ("item", "path"),
    [
        ({"role": "user", "content": [{"type": "input_image"}]}, "content[0].type"),
        ({"role": "user", "content": [{"type": "input_file"}]}, "content[0].type"),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "content[0].type"),
        (output("a", [{"type": "input_image"}]), "output[0].type"),
        ({"type": "custom_tool_call", "call_id": "a"}, "type"),
        ({"type": "web_search_call"}, "type"),
        ({"type": "compaction", "encrypted_content": "x"}, "type"),
    ],
)
def test_what_is_no_text_is_unsupported_by_path(item: dict[str, Any], path: str) -> None:
    with pytest.raises(Unsupported) as caught:
        messages_of([USER, item])
    assert caught.value.param == f"input[1].{path}"


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
        (output("a", None), "output"),
        (call("a", arguments={}), "arguments"),
        (call("a", name=None), "name"),
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


def test_stored_items_hold_only_what_has_a_meaning() -> None:
    item = {**USER, "phase": "commentary", "huge": 10**40, "odd": {"a": 1}}
    assert set(stored_item(item, "msg_1")) == {"id", "type", "role", "phase", "status", "content"}
    refusal = {"role": "assistant", "content": [{"type": "refusal", "refusal": "no", "x": 1}]}
    assert stored_item(refusal, "msg_1")["content"] == [{"type": "refusal", "refusal": "no"}]


def test_stored_items_stand_for_the_same_messages() -> None:
    items = [USER, thought("Hm."), said("I look."), call("a"), output("a")]
    items += [output("b", [{"type": "text", "text": "5"}]), said("Done.")]
    items += [{"type": "reasoning", "content": "Hm."}, {"role": "assistant", "content": "x"}]
    stored = [stored_item(item, f"msg_{at}") for at, item in enumerate(items)]
    assert messages_of(stored) == messages_of(items)
