"""Messages of every role are parsed, with their calls, results and reasoning."""

import json
from typing import Any

import pytest

from node.dialects.chat.body import read_chat
from node.errors import BadRequest, Unsupported
from node.request import Message, TextPart, ToolCall

PARTS = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
USER = {"role": "user", "content": "hi"}


def messages(*bodies: object) -> tuple[Message, ...]:
    body = json.dumps({"model": "m", "messages": bodies}).encode()
    found = read_chat(body).request.messages
    assert found is not None
    return found


def assistant(**fields: Any) -> Message:
    return messages(USER, {"role": "assistant", **fields})[1]


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant"])
def test_the_content_of_every_role_is_a_string_or_parts(role: str) -> None:
    text, parts, one = messages(
        {"role": role, "content": "x", "name": "me"},
        {"role": role, "content": PARTS},
        {"role": role, "content": PARTS[:1]},
    )
    assert text == Message(role, "x", name="me")  # type: ignore[arg-type]
    assert parts.content == (TextPart("a"), TextPart("b"))
    assert one.content == "a"


def test_system_and_developer_messages_may_stand_anywhere() -> None:
    found = messages(
        {"role": "developer", "content": "d"}, USER, {"role": "system", "content": "s"}
    )
    assert [message.role for message in found] == ["developer", "user", "system"]


def test_null_beside_a_text_is_no_matter() -> None:
    part = {"type": "text", "text": "a", "image_url": None, "cache_control": {"type": "x"}}
    (found,) = messages({"role": "user", "content": [part], "name": None, "tool_calls": None})
    assert found == Message("user", "a")


@pytest.mark.parametrize("content", [None, [], ""])
def test_the_content_of_every_role_may_be_empty(content: object) -> None:
    call = {"role": "assistant", "content": content, "tool_calls": [CALL]}
    answer = {"role": "tool", "content": content, "tool_call_id": "c1"}
    speakers = [{"role": role, "content": content} for role in ("system", "developer", "user")]
    assert [message.content for message in messages(*speakers, call, answer)] == [""] * 5


def test_assistants_and_tools_need_no_content() -> None:
    call = {"role": "assistant", "tool_calls": [CALL]}
    found = messages(USER, call, {"role": "tool", "tool_call_id": "c1"})
    assert [message.content for message in found] == ["hi", "", ""]


@pytest.mark.parametrize("empty", [{"id": None}, {"id": ""}, {"type": None}])
def test_calls_may_lack_an_id_and_a_type(empty: dict[str, object]) -> None:
    calls = {"role": "assistant", "tool_calls": [{**CALL, **empty}, {**CALL, "id": "c2"}]}
    own_id = "c1" if "type" in empty else "call_1_0"
    nameless = {"role": "tool", "content": "x", "tool_call_id": empty.get("id")}
    talk = [USER, calls, nameless, nameless]
    found = messages(*talk, USER)
    assert [call.call_id for call in found[1].tool_calls] == [own_id, "c2"]
    # Results without an id answer the calls in their order.
    assert [message.tool_call_id for message in found[2:4]] == [own_id, "c2"]
    assert messages(*talk) == found[:4]
    with pytest.raises(BadRequest) as caught:
        messages(*talk, nameless)
    assert caught.value.param == "messages[4].tool_call_id"


def test_calls_keep_their_ids_and_their_json() -> None:
    assert assistant(content=None, tool_calls=[CALL]) == Message(
        "assistant", tool_calls=(ToolCall("c1", "f", '{"a": 1}'),)
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"a" : [1, null]}', '{"a" : [1, null]}'),
        ({"a": [1, None], "é": 10**30}, '{"a": [1, null], "é": 1000000000000000000000000000000}'),
        ("", ""),
        (None, ""),
        ({}, "{}"),
        # What another server cut off, or spelled in a way of its own, ends no session.
        ('{"a":', '{"a":'),
        ("[]", "[]"),
        ([1], "[1]"),
        (5, "5"),
        ({"a": float("nan")}, '{"a": NaN}'),
    ],
)
def test_arguments_are_any_text_or_json(arguments: object, expected: str) -> None:
    function = {"name": "f", "arguments": arguments}
    (call,) = assistant(tool_calls=[{**CALL, "function": function}]).tool_calls
    assert call.arguments == expected
    (call,) = assistant(function_call=function).tool_calls
    assert call.arguments == expected


def test_a_tools_message_names_the_call_that_it_answers() -> None:
    answer = {"role": "tool", "tool_call_id": "c1", "content": PARTS, "name": "f"}
    found = messages(USER, {"role": "assistant", "tool_calls": [CALL]}, answer)[2]
    assert found == Message("tool", (TextPart("a"), TextPart("b")), tool_call_id="c1", name="f")


def test_the_older_form_of_calls_gets_the_same_ids_in_every_request() -> None:
    def called(arguments: str) -> dict[str, Any]:
        call = {"name": "f", "arguments": arguments}
        return {"role": "assistant", "content": None, "function_call": call}

    answer = {"role": "function", "name": "f", "content": "4"}
    talk = [USER, called('{"a":1}'), answer, called('{"a":2}'), answer]
    found = messages(*talk)
    assert [message.tool_calls for message in found if message.tool_calls] == [
        (ToolCall("call_1", "f", '{"a":1}'),),
        (ToolCall("call_3", "f", '{"a":2}'),),
    ]
    assert found[2] == Message("tool", "4", tool_call_id="call_1", name="f")
    assert found[4].tool_call_id == "call_3"
    assert messages(*talk[:3]) == found[:3]


def test_a_function_without_a_call_answers_none() -> None:
    found = messages(USER, {"role": "function", "name": "g", "content": None})[1]
    assert found == Message("tool", "", name="g")


def test_reasoning_is_read_back_by_either_name_and_once() -> None:
    assert assistant(content="a", reasoning_content="hm").reasoning == "hm"
    assert assistant(content="a", reasoning="hm").reasoning == "hm"
    assert assistant(content="a", reasoning="hm", reasoning_content="hm").reasoning == "hm"
    assert assistant(content="a", reasoning=None).reasoning == ""
    assert assistant(content="a", thinking="hm").reasoning == ""


def test_a_refusal_is_content_of_the_assistant() -> None:
    assert assistant(refusal="No.").content == "No."
    assert assistant(content="I", refusal="No.").content == (TextPart("I"), TextPart("No."))
    parts = [*PARTS, {"type": "refusal", "refusal": "No."}]
    expected = (TextPart("a"), TextPart("b"), TextPart("No."))
    assert assistant(content=parts).content == expected
    assert assistant(content=parts[:2], refusal="No.").content == expected


def test_other_answers_than_text_and_calls_are_not_supported() -> None:
    with pytest.raises(Unsupported) as caught:
        messages({"role": "assistant", "tool_calls": [{**CALL, "type": "mcp"}]})
    assert caught.value.param == "messages[0].tool_calls[0].type"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ("hi", ""),
        ({"content": "hi"}, ".role"),
        ({"role": 5, "content": "hi"}, ".role"),
        ({"role": "wizard", "content": "hi"}, ".role"),
        ({"role": "user"}, ".content"),
        ({"role": "user", "content": 5}, ".content"),
        ({"role": "assistant", "content": {}}, ".content"),
        ({"role": "user", "content": ["hi"]}, ".content[0]"),
        ({"role": "user", "content": [{"type": "text"}]}, ".content[0].text"),
        ({"role": "user", "content": [{"type": "smell"}]}, ".content[0].type"),
        ({"role": "user", "content": [{"type": "refusal", "refusal": "x"}]}, ".content[0].type"),
        ({"role": "assistant", "content": [{"type": "refusal"}]}, ".content[0].refusal"),
        ({"role": "user", "content": "hi", "name": 5}, ".name"),
        ({"role": "user", "content": "hi", "tool_calls": [CALL]}, ".tool_calls"),
        ({"role": "tool", "content": "x", "reasoning": "hm"}, ".reasoning"),
        ({"role": "user", "content": "hi", "tool_call_id": "c"}, ".tool_call_id"),
        ({"role": "user", "content": "hi", "audio": {"id": "a"}}, ".audio"),
        ({"role": "tool", "content": "x"}, ".tool_call_id"),
        ({"role": "function", "content": "x"}, ".name"),
        ({"role": "assistant", "tool_calls": [{}]}, ".tool_calls[0].function"),
        ({"role": "assistant", "tool_calls": [{"id": "c"}]}, ".tool_calls[0].function"),
        (
            {"role": "assistant", "tool_calls": [{"id": "c", "function": {}}]},
            ".tool_calls[0].function.name",
        ),
        ({"role": "assistant", "function_call": {}}, ".function_call.name"),
    ],
)
def test_a_message_that_is_not_valid_is_refused_with_the_path(body: object, param: str) -> None:
    with pytest.raises(BadRequest, match=r"\.$") as caught:
        messages(body)
    assert not isinstance(caught.value, Unsupported)
    assert caught.value.param == f"messages[0]{param}"
