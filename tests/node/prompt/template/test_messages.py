"""Messages are converted to a form that the template supports."""

import json
from dataclasses import replace
from typing import Any

import pytest

from node.errors import BadRequest
from node.prompt.template.abilities import Abilities
from node.prompt.template.messages import BRIDGE, build_turns
from node.request import MediaPart, Message, TextPart, Tool, ToolCall
from tests.node.prompt.template.samples import ALL, WEATHER

USER, ANSWER = Message("user", "hello"), Message("assistant", "hi")
SYSTEM, LATER = Message("system", "be nice"), Message("user", "more")
CALL = ToolCall("call_0123456789", "weather", '{"city": "Bern"}')
SECOND = ToolCall("call_9876543210", "time", "{}")
CALLING = Message("assistant", tool_calls=(CALL,))
RESULT = Message("tool", "sunny", tool_call_id=CALL.call_id)


def turns(
    *messages: Message, abilities: Abilities = ALL, tools: tuple[Tool, ...] = (), spelled: str = ""
) -> list[dict[str, Any]]:
    return build_turns(messages, tools, abilities, spelled)


def contents(*messages: Message, **lacking: Any) -> list[tuple[str, str]]:
    tools = lacking.pop("tools", ())
    made = turns(*messages, abilities=replace(ALL, **lacking), tools=tools)
    return [(turn["role"], turn["content"]) for turn in made]


def test_what_is_not_there_has_no_key() -> None:
    assert turns(SYSTEM, USER, ANSWER) == [
        {"role": "system", "content": "be nice"},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "hi"},
    ]


def test_calls_and_results_are_openais() -> None:
    calling, result = turns(USER, CALLING, RESULT)[1:]
    function = {"name": "weather", "arguments": {"city": "Bern"}}
    called = {"id": CALL.call_id, "type": "function", "function": function}
    assert calling == {"role": "assistant", "content": "", "tool_calls": [called]}
    expected = {"role": "tool", "content": "sunny", "tool_call_id": CALL.call_id}
    assert result == {**expected, "name": "weather"}


def test_arguments_may_be_wanted_as_text() -> None:
    made = turns(USER, CALLING, RESULT, abilities=replace(ALL, string_arguments=True))
    assert made[1]["tool_calls"][0]["function"]["arguments"] == CALL.arguments
    empty = Message("assistant", tool_calls=(ToolCall("1", "f", ""),))
    made = turns(USER, empty, abilities=replace(ALL, string_arguments=True))
    assert made[1]["tool_calls"][0]["function"]["arguments"] == "{}"


def test_arguments_that_are_no_object_are_an_argument() -> None:
    cut = Message("assistant", tool_calls=(ToolCall("1", "f", '{"city": "Be'),))
    made = turns(USER, cut)
    assert made[1]["tool_calls"][0]["function"]["arguments"] == {"arguments": '{"city": "Be'}
    made = turns(USER, cut, abilities=replace(ALL, string_arguments=True))
    text = made[1]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(text) == {"arguments": '{"city": "Be'}


def test_a_developer_is_a_system_to_a_template_that_knows_none() -> None:
    developer = Message("developer", "be nice")
    assert turns(developer, USER)[0]["role"] == "developer"
    assert contents(developer, USER, developer=False)[0] == ("system", "be nice")


def test_volatile_lines_are_no_part_of_a_system_text() -> None:
    header = "x-anthropic-billing-header: cch=1;"
    parts = (TextPart(header), TextPart("be nice"))
    assert turns(Message("system", header), Message("system", parts), USER) == turns(SYSTEM, USER)
    assert turns(Message("user", header))[0]["content"] == header
    empty = Message("system", (TextPart(header), TextPart("")))
    assert turns(empty, USER) == turns(USER)


def test_several_systems_are_one_where_the_template_accepts_one() -> None:
    second = Message("developer", "and brief")
    messages = (SYSTEM, second, USER)
    assert contents(*messages) == [
        ("system", "be nice"),
        ("developer", "and brief"),
        ("user", "hello"),
    ]
    merged = contents(*messages, several_systems=False)
    assert merged == [("system", "be nice\n\nand brief"), ("user", "hello")]


def test_a_late_system_becomes_a_user_and_stays_where_it_is() -> None:
    messages = (USER, ANSWER, SYSTEM, LATER)
    assert contents(*messages)[2] == ("system", "be nice")
    wrapped = "<system>\nbe nice\n</system>"
    assert contents(*messages, late_system=False)[2:] == [("user", wrapped), ("user", "more")]
    merged = contents(*messages, late_system=False, user_twice=False)
    assert merged[2:] == [("user", f"{wrapped}\n\nmore")]


def test_a_system_is_the_users_begin_where_there_is_no_system() -> None:
    assert contents(SYSTEM, USER, system=False) == [("user", "be nice\n\nhello")]
    assert contents(SYSTEM, system=False) == [("user", "be nice")]
    assert contents(SYSTEM, ANSWER, system=False) == [("user", "be nice"), ("assistant", "hi")]


def test_repeated_roles_are_one_where_the_template_wants_turns() -> None:
    messages = (USER, LATER, ANSWER, Message("assistant", "", "why", (CALL,)), RESULT)
    made = turns(*messages, abilities=replace(ALL, user_twice=False, assistant_twice=False))
    assert [turn["role"] for turn in made] == ["user", "assistant", "tool"]
    assert made[0]["content"] == "hello\n\nmore"
    assert made[1]["content"] == "hi"
    assert made[1]["reasoning_content"] == "why"
    assert made[1]["tool_calls"]


def test_an_assistant_does_not_begin_where_the_template_wants_a_user() -> None:
    expected = [("system", "be nice"), ("user", ""), ("assistant", "hi"), ("user", "hello")]
    assert contents(SYSTEM, ANSWER, USER, assistant_first=False) == expected


def test_an_empty_answer_is_left_out_where_the_template_refuses_it() -> None:
    empty = Message("assistant", "")
    assert contents(USER, empty, LATER)[1] == ("assistant", "")
    merged = contents(USER, empty, LATER, empty_assistant=False, user_twice=False)
    assert merged == [("user", "hello\n\nmore")]


@pytest.mark.parametrize("before", [(CALLING, RESULT), (CALLING,)])
def test_an_assistant_message_stands_between_a_result_and_a_user(
    before: tuple[Message, ...],
) -> None:
    made = contents(USER, *before, LATER, user_after_result=False)
    assert made[-2:] == [("assistant", BRIDGE), ("user", "more")]


def test_calls_in_parallel_follow_one_by_one_where_the_template_accepts_one() -> None:
    both = Message("assistant", "both", "why", (CALL, SECOND))
    late = Message("tool", "noon", tool_call_id=SECOND.call_id)
    abilities = replace(ALL, parallel_calls=False)
    made = turns(USER, both, late, RESULT, LATER, abilities=abilities)
    assert [turn["role"] for turn in made[1:]] == ["assistant", "tool", "assistant", "tool", "user"]
    assert [turn["content"] for turn in made[1:5]] == ["both", "sunny", "", "noon"]
    assert "reasoning_content" in made[1]
    assert "reasoning_content" not in made[3]
    stray = Message("tool", "stray", tool_call_id="other")
    made = turns(USER, both, stray, abilities=abilities)
    assert [turn["content"] for turn in made[1:]] == ["both", "", "stray"]


SAYING = Message("assistant", "I look.", "why", (CALL,))


def test_text_stands_before_calls_that_it_would_hide() -> None:
    assert turns(USER, SAYING, RESULT)[1]["content"] == "I look."
    made = turns(USER, SAYING, RESULT, abilities=replace(ALL, text_with_calls=False))
    assert [turn["role"] for turn in made] == ["user", "assistant", "assistant", "tool"]
    assert made[1] == {"role": "assistant", "content": "I look.", "reasoning_content": "why"}
    assert made[2]["content"] == ""
    assert made[2]["tool_calls"][0]["function"]["name"] == "weather"
    assert "reasoning_content" not in made[2]
    assert made == turns(
        *(USER, replace(SAYING, tool_calls=()), CALLING, RESULT),
        abilities=replace(ALL, text_with_calls=False, assistant_twice=False),
    )


def test_text_that_hides_calls_and_cannot_stand_before_them_is_left_out() -> None:
    abilities = replace(ALL, text_with_calls=False, text_before_calls=False, assistant_twice=False)
    expected = turns(USER, replace(SAYING, content=""), RESULT, abilities=abilities)
    assert expected[1]["reasoning_content"] == "why"
    assert expected[1]["tool_calls"]
    assert turns(USER, SAYING, RESULT, abilities=abilities) == expected
    apart = (replace(SAYING, tool_calls=()), CALLING)
    assert turns(USER, *apart, RESULT, abilities=abilities) == expected


def test_text_before_calls_that_follow_one_by_one() -> None:
    both = Message("assistant", "both", tool_calls=(CALL, SECOND))
    noon = Message("tool", "noon", tool_call_id=SECOND.call_id)
    lacking = {"text_with_calls": False, "parallel_calls": False}
    made = contents(USER, both, RESULT, noon, **lacking)[1:]
    assert made == [
        ("assistant", "both"),
        ("assistant", ""),
        ("tool", "sunny"),
        ("assistant", ""),
        ("tool", "noon"),
    ]


def test_ids_are_nine_letters_and_digits_where_the_template_wants_that() -> None:
    made = turns(USER, CALLING, RESULT, abilities=replace(ALL, long_ids=False))
    short = made[1]["tool_calls"][0]["id"]
    assert len(short) == 9
    assert short.isalnum()
    assert made[2]["tool_call_id"] == short
    assert made == turns(USER, CALLING, RESULT, abilities=replace(ALL, long_ids=False))
    kept = Message("assistant", tool_calls=(ToolCall("abcDEF123", "f", "{}"),))
    made = turns(USER, kept, abilities=replace(ALL, long_ids=False))
    assert made[1]["tool_calls"][0]["id"] == "abcDEF123"


def test_a_result_without_its_call_is_a_user_message() -> None:
    assert turns(USER, ANSWER, RESULT)[-1] == {
        "role": "user",
        "content": "<tool_response>\nsunny\n</tool_response>",
    }


def test_text_beside_reasoning_joins_it_where_the_template_accepts_one_of_them() -> None:
    message = Message("assistant", "I look.", "why", (CALL,))
    made = turns(USER, message, RESULT, abilities=replace(ALL, text_beside_reasoning=False))
    assert made[1]["content"] == ""
    assert made[1]["reasoning_content"] == "why\n\nI look."


def test_reasoning_may_be_a_part_of_the_content() -> None:
    abilities = replace(ALL, reasoning_part=True)
    thought = {"type": "thinking", "thinking": "why"}
    made = turns(USER, Message("assistant", "hi", "why"), abilities=abilities)
    assert made[1]["content"] == [thought, {"type": "text", "text": "hi"}]
    made = turns(USER, Message("assistant", "", "why", (CALL,)), abilities=abilities)
    assert made[1]["content"] == [thought]
    assert "reasoning_content" not in made[1]


# --- without tools in the template -----------------------------------------------------------

NO_TOOLS = replace(ALL, tools=False, calls=False, calls_alone=False, results=False)


def test_tools_are_described_in_the_system_text() -> None:
    made = turns(SYSTEM, USER, abilities=NO_TOOLS, tools=(WEATHER,))
    assert made[0]["content"].startswith("be nice\n\n")
    assert '{"name": "weather", "description": "Tells the weather."}' in made[0]["content"]
    assert '<tool_call>\n{"name": "name_of_the_function", ' in made[0]["content"]
    alone = turns(USER, abilities=NO_TOOLS, tools=(WEATHER,))
    assert alone[0]["role"] == "system"


def test_the_description_requests_calls_as_the_template_spells_them() -> None:
    example = '<f>wordtool{"wordkey": "wordvalue"}</f>'
    abilities = replace(ALL, tools=False, example_call=example)
    made = turns(USER, CALLING, RESULT, abilities=abilities, tools=(WEATHER,))
    assert '<f>name_of_the_function{"name_of_a_parameter": "its value"}</f>' in made[0]["content"]
    assert made[2]["tool_calls"]


def test_calls_and_results_are_text() -> None:
    both = Message("assistant", "Both.", tool_calls=(CALL, SECOND))
    noon = Message("tool", "noon", tool_call_id=SECOND.call_id)
    made = turns(USER, both, RESULT, noon, ANSWER, abilities=NO_TOOLS, tools=(WEATHER,))
    assert [turn["role"] for turn in made] == ["system", "user", "assistant", "user", "assistant"]
    assert made[2]["content"] == (
        'Both.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'
    )
    results = "<tool_response>\nsunny\n</tool_response>\n<tool_response>\nnoon\n</tool_response>"
    assert made[3] == {"role": "user", "content": results}


@pytest.mark.parametrize(
    ("spelled", "text"),
    [
        ("granite", '<|tool_call|>[{"name": "weather", "arguments": {"city": "Bern"}}]'),
        ("lfm2", "<|tool_call_start|>[weather(city='Bern')]<|tool_call_end|>"),
    ],
)
def test_calls_are_spelled_as_the_model_does(spelled: str, text: str) -> None:
    abilities = replace(NO_TOOLS, tools=True, results=True)
    made = turns(USER, CALLING, RESULT, abilities=abilities, tools=(WEATHER,), spelled=spelled)
    assert made[1] == {"role": "assistant", "content": text}
    assert made[2]["role"] == "tool"


# --- tools in the template -------------------------------------------------------------------


def test_a_template_may_show_tools_in_a_system_message_only() -> None:
    abilities = replace(ALL, tools_with_system=True)
    made = turns(USER, abilities=abilities, tools=(WEATHER,))
    assert made[0] == {"role": "system", "content": ""}
    assert turns(SYSTEM, USER, abilities=abilities, tools=(WEATHER,)) == turns(SYSTEM, USER)


# --- contents --------------------------------------------------------------------------------


PARTS = (TextPart("a"), TextPart(""), TextPart("b"))
NO_PARTS: frozenset[str] = frozenset()


@pytest.mark.parametrize("role", ["system", "developer", "user"])
def test_text_in_parts_is_one_text_with_lines_where_the_template_accepts_no_list(role: Any) -> None:
    message = Message(role, PARTS)
    listed = [{"type": "text", "text": part.text} for part in PARTS]
    assert turns(message)[0]["content"] == [
        part for part in listed if part["text"] or role == "user"
    ]
    assert contents(message, parts=NO_PARTS) == [(role, "a\nb")]


def test_results_may_be_lists() -> None:
    result = Message("tool", PARTS[::2], tool_call_id=CALL.call_id)
    listed = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert turns(USER, CALLING, result)[2]["content"] == listed
    assert contents(USER, CALLING, result, parts=frozenset({"user"}))[2] == ("tool", "a\nb")
    stray = "<tool_response>\na\nb\n</tool_response>"
    assert contents(USER, result)[1] == ("user", stray)


def test_the_text_parts_of_an_answer_are_joined_without_a_separator() -> None:
    assert contents(USER, Message("assistant", PARTS))[1] == ("assistant", "ab")


def test_messages_that_become_one_are_one_text() -> None:
    both = (Message("user", PARTS), LATER)
    assert contents(*both, user_twice=False) == [("user", "a\nb\n\nmore")]
    late = Message("system", PARTS)
    wrapped = "<system>\na\nb\n</system>"
    assert contents(USER, ANSWER, late, late_system=False)[2] == ("user", wrapped)


def test_a_template_may_want_parts() -> None:
    made = turns(SYSTEM, USER, abilities=replace(ALL, only_parts=frozenset({"system"})))
    assert made[0]["content"] == [{"type": "text", "text": "be nice"}]
    assert made[1]["content"] == "hello"


def test_media_are_parts() -> None:
    seen = Message("user", (TextPart("see"), MediaPart("image", "data:")))
    parts = [{"type": "text", "text": "see"}, {"type": "image"}]
    assert turns(seen)[0]["content"] == parts
    gap = {"type": "text", "text": "\n\n"}
    joined = turns(USER, seen, abilities=replace(ALL, user_twice=False))
    assert joined[0]["content"] == [{"type": "text", "text": "hello"}, gap, *parts]
    result = Message("tool", seen.content, tool_call_id=CALL.call_id)
    spelled = turns(USER, CALLING, result, abilities=NO_TOOLS)[2]["content"]
    assert [part["type"] for part in spelled] == ["text", "text", "image", "text"]
    with pytest.raises(BadRequest, match="text only") as caught:
        turns(seen, abilities=replace(ALL, parts=NO_PARTS))
    assert caught.value.param == "messages"
