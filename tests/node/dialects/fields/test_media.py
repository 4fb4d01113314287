"""Images, audio and files in a session with a model that accepts text only."""

import json
from typing import Any

import pytest

from node.dialects.anthropic.body import read_count_tokens, read_messages
from node.dialects.chat.body import read_chat
from node.dialects.fields.media import text_only
from node.dialects.responses.body import read_responses
from node.dialects.responses.input import History
from node.dialects.responses.items import stored_item
from node.errors import Unsupported
from node.request import MediaPart, Message, TextPart, TextRequest
from tests.node.protocol.bodies import CHAT, MESSAGES, RESPONSES

LINE = "[image left out: this model takes text only]"
PIXELS = "iVBORw0KGgo="
PICTURE: dict[str, dict[str, Any]] = {
    CHAT: {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXELS}"}},
    MESSAGES: {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": PIXELS},
    },
    RESPONSES: {"type": "input_image", "image_url": f"data:image/png;base64,{PIXELS}"},
}
PDF = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf"}}
each_dialect = pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])


def request_of(path: str, turns: list[Any], **fields: Any) -> TextRequest:
    name = "input" if path == RESPONSES else "messages"
    data = json.dumps({"model": "m", "max_tokens": 9, name: turns, **fields})
    if path == CHAT:
        return read_chat(data.encode()).request
    if path == MESSAGES:
        return read_messages(data.encode()).request
    return read_responses(data.replace('"max_tokens"', '"max_output_tokens"').encode()).request


def user(path: str, *parts: Any) -> dict[str, Any]:
    kind = "input_text" if path == RESPONSES else "text"
    content = [{"type": kind, "text": part} if isinstance(part, str) else part for part in parts]
    return {"role": "user", "content": content}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def called(path: str, *result: Any) -> list[dict[str, Any]]:
    """Returns a call, and its result with these parts."""
    parts = user(path, *result)["content"]
    if path == CHAT:
        call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        return [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": parts},
        ]
    if path == MESSAGES:
        call = {"type": "tool_use", "id": "c", "name": "look", "input": {}}
        done = {"type": "tool_result", "tool_use_id": "c", "content": parts}
        return [{"role": "assistant", "content": [call]}, {"role": "user", "content": [done]}]
    call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
    return [call, {"type": "function_call_output", "call_id": "c", "output": parts}]


def texts(request: TextRequest) -> list[str]:
    """Returns the text of each message."""
    contents = []
    for message in request.messages or ():
        content = message.content
        assert isinstance(content, str) or all(isinstance(part, TextPart) for part in content)
        parts = [content] if isinstance(content, str) else [part.text for part in content]
        contents.append("\n".join(filter(None, parts)))
    return contents


@each_dialect
def test_a_picture_in_a_result_becomes_a_line_of_text(path: str) -> None:
    request = request_of(path, [user(path, "look"), *called(path, PICTURE[path])])
    assert texts(request) == ["look", "", LINE]
    assert request.messages is not None
    assert request.messages[-1].role == "tool"
    mixed = called(path, "It shows", PICTURE[path], "twice", PICTURE[path])
    assert texts(request_of(path, [user(path, "look"), *mixed]))[-1] == (
        f"It shows\n{LINE}\ntwice\n{LINE}"
    )


@each_dialect
def test_so_does_one_of_an_earlier_turn(path: str) -> None:
    turns = [user(path, "see", PICTURE[path]), assistant("no"), user(path, "and now?")]
    assert texts(request_of(path, turns)) == [f"see\n{LINE}", "no", "and now?"]
    # One that was refused stays in front of what the user sends next.
    turns = [user(path, PICTURE[path]), user(path, "and now?")]
    assert texts(request_of(path, turns)) == [LINE, "and now?"]


@each_dialect
def test_so_does_one_that_a_client_puts_behind_the_results_of_tools(path: str) -> None:
    turns = [user(path, "look"), *called(path, "Image read."), user(path, "of it:", PICTURE[path])]
    assert texts(request_of(path, turns))[-1] == f"of it:\n{LINE}"
    assert texts(request_of(path, [*turns, user(path, PICTURE[path])]))[-1] == LINE


def test_so_does_one_beside_a_result_in_one_message() -> None:
    first, turn = called(MESSAGES, "PDF read.")
    turn["content"] += [PDF, PICTURE[MESSAGES]]
    request = request_of(MESSAGES, [user(MESSAGES, "look"), first, turn])
    document = "[document left out: this model takes text only]"
    assert texts(request)[-2:] == ["PDF read.", f"{document}\n{LINE}"]


@each_dialect
@pytest.mark.parametrize("is_late", [False, True])
def test_what_the_user_shows_now_is_refused(path: str, *, is_late: bool) -> None:
    now = user(path, "see", PICTURE[path])
    before = [*called(path, PICTURE[path]), assistant("done")] if is_late else []
    with pytest.raises(
        Unsupported, match=r"^This model takes text only; leave the image out\.$"
    ) as caught:
        request_of(path, [user(path, "go"), *before, now] if is_late else [now])
    name = "input" if path == RESPONSES else "messages"
    number = 1 + len(before) if is_late else 0
    assert caught.value.param == f"{name}[{number}].content[1].type"


@each_dialect
def test_what_was_refused_once_does_not_stay_in_the_way(path: str) -> None:
    """Claude Code joins consecutive user texts into one message."""
    picture = PICTURE[path]
    for sent, expected in (
        ([picture, "what is it?", "never mind"], f"{LINE}\nwhat is it?\nnever mind"),
        (["what is it?", picture, "never mind"], f"what is it?\n{LINE}\nnever mind"),
        (["see", picture, picture, "what?", "so?"], f"see\n{LINE}\n{LINE}\nwhat?\nso?"),
    ):
        assert texts(request_of(path, [user(path, *sent)])) == [expected]
    for now in (
        [picture, "what is it?"],
        [picture, picture, "what are they?"],
        ["what are they?", picture, picture],
        [picture, "what is it?", "never mind, but this?", picture],
        ["<system-reminder>\nA</system-reminder>", picture, "what is it?"],
        [picture, "what is it?", "<system-reminder>B</system-reminder>"],
        ["<image name=[Image #1]>", picture, "</image>", "what is it?"],
    ):
        with pytest.raises(Unsupported):
            request_of(path, [user(path, *now)])


def test_a_system_message_behind_it_changes_nothing() -> None:
    for role, path in (("system", CHAT), ("developer", CHAT), ("system", MESSAGES)):
        late = {"role": role, "content": "be brief"}
        with pytest.raises(Unsupported):
            request_of(path, [user(path, PICTURE[path]), late])
        turns = [user(path, "a"), *called(path, "b"), late, user(path, PICTURE[path])]
        assert texts(request_of(path, turns))[-1] == LINE


def test_tokens_are_counted_of_the_line() -> None:
    turns = [user(MESSAGES, "look"), *called(MESSAGES, PICTURE[MESSAGES])]
    body = json.dumps({"model": "m", "messages": turns}).encode()
    assert texts(read_count_tokens(body))[-1] == LINE


@pytest.mark.parametrize(
    ("path", "kind", "noun"),
    [
        (CHAT, "image_url", "image"),
        (CHAT, "input_audio", "audio"),
        (CHAT, "audio_url", "audio"),
        (CHAT, "video_url", "video"),
        (CHAT, "video", "video"),
        (CHAT, "file", "file"),
        (MESSAGES, "image", "image"),
        (MESSAGES, "document", "document"),
        (MESSAGES, "container_upload", "file"),
        (RESPONSES, "input_file", "file"),
        (RESPONSES, "input_audio", "audio"),
        (RESPONSES, "computer_screenshot", "image"),
    ],
)
def test_each_kind_of_media_has_its_noun(path: str, kind: str, noun: str) -> None:
    part = {"type": kind, "source": {"type": "url", "url": "x"}}
    turns = [user(path, "look"), *called(path, part)]
    assert texts(request_of(path, turns))[-1] == f"[{noun} left out: this model takes text only]"


def test_what_an_assistant_showed_is_a_line_too() -> None:
    for path in (CHAT, MESSAGES, RESPONSES):
        shown = {"role": "assistant", "content": user(path, "Here: ", PICTURE[path])["content"]}
        text = texts(request_of(path, [user(path, "a"), shown, user(path, "b")]))[1]
        assert text.replace("\n", "") == f"Here: {LINE}"
    audio = {"role": "assistant", "content": None, "audio": {"id": "audio_1"}}
    line = "[audio left out: this model takes text only]"
    turns = [user(CHAT, "a"), audio, user(CHAT, "b")]
    assert texts(request_of(CHAT, turns))[1] == line
    assert texts(request_of(CHAT, [*turns[:1], {**audio, "content": "Hi."}, turns[2]]))[1] == (
        f"Hi.\n{line}"
    )


def document(source: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "document", "source": source, **more}


FOUND = {
    "type": "search_result",
    "source": "https://x",
    "title": "Found",
    "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}],
}


@pytest.mark.parametrize(
    ("block", "text"),
    [
        (document({"type": "text", "data": "abc"}), "abc"),
        (document({"type": "text", "data": "abc"}, title="T", context="C"), "T\nC\nabc"),
        (document({"type": "content", "content": "abc"}), "abc"),
        (document({"type": "content", "content": [{"type": "text", "text": "abc"}]}), "abc"),
        (FOUND, "Found\nhttps://x\none\ntwo"),
    ],
)
def test_a_document_of_text_is_text_wherever_it_is(block: dict[str, Any], text: str) -> None:
    assert texts(request_of(MESSAGES, [user(MESSAGES, block)])) == [text]
    turns = [user(MESSAGES, "look"), *called(MESSAGES, block)]
    assert texts(request_of(MESSAGES, turns))[-1] == text


def test_of_other_documents_title_and_context_are_left() -> None:
    pictured = document({"type": "content", "content": [PICTURE[MESSAGES]]}, title="T")
    turns = [user(MESSAGES, pictured), assistant("no"), user(MESSAGES, "and?")]
    assert texts(request_of(MESSAGES, turns))[0] == (
        "T\n[document left out: this model takes text only]"
    )
    with pytest.raises(Unsupported) as caught:
        request_of(MESSAGES, turns[:1])
    assert caught.value.param == "messages[0].content[0].source.type"


def test_a_response_that_is_continued_is_read_with_its_history() -> None:
    before = [user(RESPONSES, "look"), called(RESPONSES)[0]]
    shown = user(RESPONSES, PICTURE[RESPONSES])
    for items in ([called(RESPONSES, PICTURE[RESPONSES])[1]], [called(RESPONSES)[1], shown]):
        body = {"model": "m", "previous_response_id": "resp_1", "input": items}
        parsed = read_responses(json.dumps(body).encode()).with_history(History(before))
        assert texts(parsed.request)[-1] == LINE
    body = {"model": "m", "previous_response_id": "resp_1", "input": [shown]}
    with pytest.raises(Unsupported) as caught:
        read_responses(json.dumps(body).encode()).with_history(History(before[:1]))
    assert caught.value.param == "input[0].content[0].type"


def test_a_stored_item_keeps_the_line_and_not_the_picture() -> None:
    for item in (
        user(RESPONSES, "see", PICTURE[RESPONSES]),
        called(RESPONSES, PICTURE[RESPONSES])[1],
    ):
        stored = stored_item(item, "msg_1")
        parts = stored["content" if "content" in stored else "output"]
        assert parts[-1] == {"type": "input_text", "text": LINE}
        assert PIXELS not in json.dumps(stored)


def test_messages_without_media_are_the_same_objects() -> None:
    messages = [Message("user", "a"), Message("user", (TextPart("a"), TextPart("b")))]
    assert all(one is two for one, two in zip(text_only(messages), messages, strict=True))
    lone = Message("tool", (MediaPart("image", LINE),))
    assert text_only([lone]) == [Message("tool", LINE)]
    assert text_only([]) == []
    assert text_only([Message("system", "a")]) == [Message("system", "a")]
