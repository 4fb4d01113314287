"""Content blocks become messages that are independent of the dialect, in order."""

from typing import Any

import pytest

from node.dialects.anthropic.messages import MessageFields, read_conversation, read_system
from node.dialects.anthropic.signature import carrying_signature, hashed_signature
from node.errors import BadRequest, Unsupported
from node.request import Message, ToolCall


def read(*messages: dict[str, Any]) -> list[Message]:
    return read_conversation([MessageFields.model_validate(each) for each in messages])


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def text(content: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": content, **fields}


def result(call_id: str, **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, **fields}


# --- system ----------------------------------------------------------------------------------


def test_a_system_prompt_is_a_string_or_blocks() -> None:
    assert read_system("Be brief.") == "Be brief."
    cached = text("Be kind.", cache_control={"type": "ephemeral"})
    assert read_system([text("Be brief."), cached]) == "Be brief.\nBe kind."


def test_billing_headers_are_not_part_of_a_system_prompt() -> None:
    first, second = (text(f"x-anthropic-billing-header: v=1; cch={n};") for n in ("1a", "2b"))
    prompt = text("You are an agent.")
    assert read_system([first, prompt]) == read_system([second, prompt]) == "You are an agent."
    assert read_system("x-anthropic-billing-header: a\nHello") == "Hello"


def test_a_system_message_may_stand_anywhere() -> None:
    later = {"role": "system", "content": "x-anthropic-billing-header: a\nNow in German."}
    assert read(user(text("a")), later, user(text("b"))) == [
        Message("user", "a"),
        Message("system", "Now in German."),
        Message("user", "b"),
    ]


def test_a_system_message_for_one_turn_is_removed_after_it() -> None:
    passing = {"role": "system", "content": "Soon.", "clear_at": "next_user_message"}
    assert read(user(text("a")), passing)[1:] == [Message("system", "Soon.")]
    assert read(user(text("a")), passing, user(text("b"))) == [
        Message("user", "a"),
        Message("user", "b"),
    ]


# --- users and results -----------------------------------------------------------------------


def test_a_users_content_is_a_string_or_blocks() -> None:
    assert read({"role": "user", "content": "a"}) == [Message("user", "a")]
    assert read(user(text("a"), text("b"))) == [Message("user", "a\nb")]


def test_an_empty_text_adds_no_line() -> None:
    assert read(user(text(""), text("a"), text(""), text("b"))) == [Message("user", "a\nb")]
    assert read(user(text(""))) == [Message("user", "")]
    assert read(user(result("t", content=[text(""), text("one")]), text(""))) == [
        Message("tool", "one", tool_call_id="t")
    ]


def test_results_are_in_order_and_before_the_text_of_their_turn() -> None:
    turn = user(
        result("t1", content="one", cache_control=None),
        result("t2", content=[text("two"), text("lines")]),
        text("go on"),
    )
    assert read(turn) == [
        Message("tool", "one", tool_call_id="t1"),
        Message("tool", "two\nlines", tool_call_id="t2"),
        Message("user", "go on"),
    ]


def test_results_alone_make_no_users_message() -> None:
    assert read(user(result("t1"))) == [Message("tool", "", tool_call_id="t1")]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("no such file", "Error: no such file"),
        ("Error: exit 1", "Error: exit 1"),
        (None, "Error"),
    ],
)
def test_the_text_of_an_error_is_marked_as_one(content: str | None, expected: str) -> None:
    assert read(user(result("t", content=content, is_error=True)))[0].content == expected
    assert read(user(result("t", content="fine", is_error=False)))[0].content == "fine"


def test_a_document_of_plain_text_is_text() -> None:
    source = {"type": "text", "media_type": "text/plain", "data": "Once upon a time."}
    document = {"type": "document", "source": source, "title": "A tale", "context": None}
    assert read(user(document, text("Who?"))) == [
        Message("user", "A tale\nOnce upon a time.\nWho?")
    ]


# --- assistants ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"a": None}, '{"a": null}'),
        ('{"a": "cut o', '{"a": "cut o'),
        (None, ""),
        ([1], "[1]"),
        ({"a": float("nan")}, '{"a": NaN}'),
    ],
)
def test_the_input_of_a_call_is_text_whatever_it_is(given: object, text: str) -> None:
    (answer,) = read(assistant({"type": "tool_use", "id": "t", "name": "n", "input": given}))
    assert answer.tool_calls == (ToolCall("t", "n", text),)


def test_an_answer_is_read_back_with_its_thinking_and_calls() -> None:
    turn = assistant(
        {"type": "thinking", "thinking": "hm", "signature": hashed_signature("hm")},
        {"type": "redacted_thinking", "data": "zzz"},
        text("Let me "),
        text("look."),
        {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": "Größe", "n": [1, 2.5]}},
        {"type": "tool_use", "id": "t2", "name": "wait", "input": {}},
    )
    assert read(turn) == [
        Message(
            "assistant",
            "Let me look.",
            "hm",
            (
                ToolCall("t1", "look", '{"at": "Größe", "n": [1, 2.5]}'),
                ToolCall("t2", "wait", "{}"),
            ),
        )
    ]


def test_thinking_that_was_not_shown_is_restored_from_its_signature() -> None:
    block = {"type": "thinking", "thinking": "", "signature": carrying_signature("hm ü")}
    assert read(assistant(block)) == [Message("assistant", "", "hm ü")]


def test_the_signature_of_another_server_restores_nothing() -> None:
    block = {"type": "thinking", "thinking": "", "signature": "EqQBCgIYAhIM"}
    assert read(assistant(block, text("a"))) == [Message("assistant", "a")]


# --- refusals --------------------------------------------------------------------------------

IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
PDF = {"type": "document", "source": {"type": "base64", "data": "AA=="}}
CITED = {
    "type": "document",
    "source": {"type": "text", "data": "x"},
    "citations": {"enabled": True},
}


@pytest.mark.parametrize(
    ("message", "param"),
    [
        (user(text("a"), IMAGE), "messages[0].content[1].type"),
        (user(PDF), "messages[0].content[0].source.type"),
        (user(CITED), "messages[0].content[0].citations"),
        (user({"type": "smell"}), "messages[0].content[0].type"),
        (assistant({"type": "smell"}), "messages[0].content[0].type"),
        ({"role": "system", "content": [IMAGE]}, "messages[0].content[0].type"),
        (
            {"role": "system", "content": "a", "output_config": {"effort": "low"}},
            "messages[0].output_config.effort",
        ),
    ],
)
def test_blocks_that_this_version_cannot_read_are_refused_by_path(
    message: dict[str, Any], param: str
) -> None:
    with pytest.raises(Unsupported) as caught:
        read(message)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "tool", "content": "a"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": [3]}, "messages[0].content[0]"),
        (user({"type": 3}), "messages[0].content[0]"),
        (user({"type": "text"}), "messages[0].content[0].text"),
        (user({"type": "tool_result"}), "messages[0].content[0].tool_use_id"),
        (user(result("t", content=5)), "messages[0].content[0].content"),
        (
            user({"type": "document", "source": {"type": "text"}}),
            "messages[0].content[0].source.data",
        ),
        (
            assistant({"type": "thinking", "thinking": "", "signature": "text.!"}),
            "messages[0].content[0].signature",
        ),
        ({"role": "system", "content": "a", "clear_at": "noon"}, "messages[0].clear_at"),
    ],
)
def test_what_is_no_message_is_refused_by_path(message: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        read(message)
    assert caught.value.param == param
