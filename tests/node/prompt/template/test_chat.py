"""Texts of prompts and of next turns."""

from dataclasses import replace

import pytest

from node.errors import BadRequest
from node.prompt.template.chat import (
    MARKERS,
    TAIL_LENGTH,
    Chat,
    ChatRenderer,
    NextTurn,
    returns_reasoning,
)
from node.prompt.template.chat_template import ChatTemplate
from node.request import Message, TextPart, TextRequest, ToolCall
from tests.node.prompt.template.samples import (
    LAST_USER,
    LISTED,
    OPEN,
    POOR,
    STRICT,
    WEATHER,
    asking,
)

USER, ANSWER = Message("user", "hello"), Message("assistant", "hi")
CALL = ToolCall("call_0123456789", "weather", '{"city": "Bern"}')
CALLING = Message("assistant", tool_calls=(CALL,))
RESULT = Message("tool", "sunny", tool_call_id=CALL.call_id)
OPENED = "<|begin|>assistant\n"


def renderer_of(text: str) -> ChatRenderer:
    return ChatRenderer(ChatTemplate(text, {}), "hermes")


def parts_of(chat: Chat) -> list[str]:
    """Returns the shared text, cut at the ends of messages."""
    assert chat.following is not None
    cuts = [0, *(end for end in chat.following.ends if end <= chat.shared), chat.shared]
    return [chat.text[begin:end] for begin, end in zip(cuts, cuts[1:], strict=False)]


def test_the_tail_is_what_stands_behind_the_last_message() -> None:
    chat = renderer_of(OPEN).render(asking(USER))
    assert chat.text == "<|begin|>user\nhello<|end|>\n<|begin|>assistant\n"
    assert chat.tail == "<|end|>\n<|begin|>assistant\n"


def test_the_tail_has_a_limit() -> None:
    long = OPEN.replace("<|begin|>assistant\n{% endif", "y" * 2 * TAIL_LENGTH + "<think>{% endif")
    tail = renderer_of(long).render(asking(USER)).tail
    assert len(tail) == TAIL_LENGTH
    assert tail.endswith("y<think>")


def test_the_tail_is_found_where_the_next_turn_does_not_show_it() -> None:
    # The next turn's text parts from this one's before the last message.
    wandering = "{{ messages | length }}" + OPEN
    request = asking(USER, ANSWER, Message("user", "<think>"))
    assert renderer_of(wandering).render(request).tail == OPENED
    only = "{% if messages | length > 1 %}{{ raise_exception('One.') }}{% endif %}" + OPEN
    chat = renderer_of(only).render(asking(Message("user", "<think>")))
    assert chat.following is None
    assert chat.tail == OPENED


def test_messages_end_where_their_contents_do() -> None:
    chat = renderer_of(OPEN).render(asking(Message("system", "be nice"), USER, ANSWER, USER))
    assert parts_of(chat) == [
        "<|begin|>system\nbe nice",
        "<|end|>\n<|begin|>user\nhello",
        "<|end|>\n<|begin|>assistant\nhi",
        "<|end|>\n<|begin|>user\nhello",
        "<|end|>\n<|begin|>assistant\n",
    ]


@pytest.mark.parametrize("text", [OPEN, LAST_USER, STRICT])
def test_calls_end_where_their_result_begins(text: str) -> None:
    chat = renderer_of(text).render(asking(USER, CALLING, RESULT, tools=(WEATHER,)))
    parts = parts_of(chat)
    assert len(parts) == 4
    assert parts[1].endswith("</tool_call><|end|>\n<|begin|>tool\n")
    assert parts[2:] == ["sunny", "<|end|>\n<|begin|>assistant\n"]
    assert chat.shared == len(chat.text)


def test_calls_that_are_text_end_there_too() -> None:
    request = asking(USER, CALLING, RESULT, tools=(WEATHER,))
    chat = renderer_of(POOR).render(request)
    _, calls, result, *_ = parts_of(chat)
    assert calls.endswith("</tool_call><|end|>\n<|begin|>user\n<tool_response>\n")
    assert result == "sunny"


def test_several_parts_end_once() -> None:
    parts = (TextPart("a"), TextPart("b "))
    chat = renderer_of(OPEN).render(asking(Message("user", parts), ANSWER, USER))
    assert parts_of(chat)[0] == "<|begin|>user\na\nb"
    chat = renderer_of(LISTED).render(asking(Message("user", parts), ANSWER, USER))
    assert parts_of(chat)[0] == "<|begin|>user\nab"


@pytest.mark.parametrize(("text", "gap"), [(OPEN, "\n"), (LISTED, "")])
def test_calls_end_where_a_result_of_several_parts_begins(text: str, gap: str) -> None:
    parts = (TextPart(""), TextPart(" a"), TextPart("b"))
    result = replace(RESULT, content=parts)
    chat = renderer_of(text).render(asking(USER, CALLING, result, tools=(WEATHER,)))
    ended = parts_of(chat)
    assert ended[1].endswith("</tool_call><|end|>\n<|begin|>tool\n ")
    assert ended[2:] == [f"a{gap}b", "<|end|>\n<|begin|>assistant\n"]


def test_reasoning_within_a_loop_of_calls_is_shared() -> None:
    thought = replace(CALLING, reasoning="so")
    request = asking(USER, thought, RESULT, tools=(WEATHER,))
    renderer = renderer_of(LAST_USER)
    chat = renderer.render(request)
    assert "<think>\nso\n</think>" in chat.text
    assert chat.shared == len(chat.text)
    more = (replace(thought, tool_calls=(replace(CALL, call_id="call_2"),)),)
    result = replace(RESULT, tool_call_id="call_2")
    longer = renderer.render(asking(USER, thought, RESULT, *more, result, tools=(WEATHER,)))
    assert longer.text.startswith(chat.text)
    # Without tools a user is next, and takes the reasoning away.
    assert renderer.render(replace(request, tools=())).shared < len(chat.text)


def test_whether_reasoning_is_sent_back_is_seen_in_the_chat() -> None:
    thought = replace(ANSWER, reasoning="so")
    assert returns_reasoning([USER])
    assert returns_reasoning([USER, thought])
    assert returns_reasoning([USER, thought, USER, ANSWER])
    assert not returns_reasoning([USER, ANSWER])


# --- answers that go on from the last message ------------------------------------------------


def going_on(*messages: Message) -> TextRequest:
    return asking(*messages, continue_final=True)


@pytest.mark.parametrize("content", ["hi", "hi ", " hi\n", "<think>so</think>hi"])
def test_a_prompt_may_end_with_the_last_message(content: str) -> None:
    chat = renderer_of(OPEN).render(going_on(USER, Message("assistant", content)))
    assert chat.text == f"<|begin|>user\nhello<|end|>\n<|begin|>assistant\n{content}"
    assert chat.tail == f"<|end|>\n<|begin|>assistant\n{content}"
    assert chat.following is not None
    assert chat.following.text.startswith(chat.text + "x<|end|>")


def test_the_tail_then_has_all_of_the_last_message() -> None:
    answer = replace(ANSWER, reasoning="so" * TAIL_LENGTH)
    chat = renderer_of(OPEN).render(going_on(USER, answer))
    assert "<think>\nso" in chat.tail
    assert chat.tail.endswith("</think>\n\nhi")


def test_an_answer_may_go_on_from_reasoning() -> None:
    chat = renderer_of(OPEN).render(going_on(USER, Message("assistant", "", "so")))
    assert chat.tail == "<|end|>\n<|begin|>assistant\n<think>\nso"


def test_a_message_alone_may_go_on() -> None:
    chat = renderer_of(OPEN).render(going_on(Message("assistant", "hi")))
    assert chat.text == chat.tail == "<|begin|>assistant\nhi"


def test_a_template_that_changes_the_last_message_refuses_to_go_on() -> None:
    loud = renderer_of(OPEN.replace("{{ m.content }}", "{{ m.content | upper }}"))
    with pytest.raises(BadRequest, match="cannot continue it") as caught:
        loud.render(going_on(USER, ANSWER))
    assert caught.value.param == "messages"
    with pytest.raises(BadRequest, match="private-use"):
        renderer_of(OPEN).render(going_on(USER, Message("assistant", "".join(MARKERS))))


# --- markers ---------------------------------------------------------------------------------


def test_no_text_of_a_request_is_treated_as_a_marker() -> None:
    odd = MARKERS[:6]
    call = ToolCall("1", "f", f'{{"a": "{odd[0]}"}}')
    tool = replace(WEATHER, function={"name": "f", "description": odd[1]})
    messages = (
        Message("user", (TextPart(odd[2]), TextPart(odd[3]))),
        Message("assistant", odd[4], odd[5], (call,)),
        Message("tool", "sunny", tool_call_id="1"),
    )
    chat = renderer_of(OPEN).render(asking(*messages, tools=(tool,)))
    assert all(mark in chat.text for mark in odd)
    assert chat.shared == len(chat.text)


def test_what_is_shared_ends_with_the_last_message() -> None:
    renderer = renderer_of(OPEN)
    for messages in ([USER], [USER, ANSWER], [USER, CALLING, RESULT]):
        shared = renderer.render_shared(asking(*messages, tools=(WEATHER,)))
        assert isinstance(shared, NextTurn)
        text = shared.text[: shared.ends[-1]]
        assert text.endswith(str(messages[-1].content))
        more = asking(*messages, ANSWER, USER, tools=(WEATHER,))
        assert renderer.render(more).text.startswith(text)
