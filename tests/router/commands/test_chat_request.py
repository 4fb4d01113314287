import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from router.commands import chat, console
from router.commands.chat_request import Chat, ChatResponse, summary
from router.commands.client import CommandFailed, RouterAccess


def chunk(content: str | None = None, **more: Any) -> str:
    choices = [] if content is None else [{"index": 0, "delta": {"content": content}}]
    return f"data: {json.dumps({'choices': choices, **more})}\n\n"


HI = [
    chunk("Hel"),
    ": keep-alive\n\n",
    chunk("lo"),
    chunk(usage={"prompt_tokens": 3, "completion_tokens": 2}),
    "data: [DONE]\n\n",
]


def talking(
    lines: list[str], seen: list[dict[str, Any]] | None = None, node: str | None = "mini"
) -> Chat:
    def handler(request: httpx.Request) -> httpx.Response:
        if seen is not None:
            seen.append(json.loads(request.content))
        headers = {} if node is None else {"x-fleet-node": node}
        return httpx.Response(200, text="".join(lines), headers=headers)

    return Chat(RouterAccess(key="k"), httpx.MockTransport(handler))


class RecordingReader:
    def __init__(self) -> None:
        self.parts: list[str] = []
        self.comments: list[str] = []

    def text(self, text: str) -> None:
        self.parts.append(text)

    def comment(self, words: str) -> None:
        self.comments.append(words)


def read(talk: Chat) -> tuple[ChatResponse, RecordingReader]:
    reader = RecordingReader()
    return talk.ask("tiny", [{"role": "user", "content": "hi"}], reader), reader


def read_parts(talk: Chat) -> tuple[ChatResponse, list[str]]:
    answer, reader = read(talk)
    return answer, reader.parts


def test_an_answer_streams_and_is_counted() -> None:
    seen: list[dict[str, Any]] = []
    answer, parts = read_parts(talking(HI, seen))
    assert parts == ["Hel", "lo"]
    assert (answer.text, answer.node) == ("Hello", "mini")
    assert (answer.prompt_tokens, answer.completion_tokens) == (3, 2)
    assert answer.ttft_s is not None
    assert seen[0]["stream"] is True
    assert seen[0]["stream_options"] == {"include_usage": True}


def test_the_node_may_be_named_in_a_comment() -> None:
    answer, _ = read_parts(talking([": fleet node=studio model=tiny\n\n", *HI], node=None))
    assert answer.node == "studio"


def test_the_progress_of_a_load_arrives_in_comments_before_the_answer() -> None:
    loading = [": loading tiny\n\n", ": loading tiny 43 %\n\n", ":\n\n"]
    _, reader = read(talking([*loading, *HI]))
    assert reader.comments == ["loading tiny", "loading tiny 43 %", "keep-alive"]


def test_a_person_sees_how_far_the_load_is_until_the_answer_begins(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[str] = []

    @contextmanager
    def progress(what: str) -> Iterator[Callable[[str], None]]:
        shown.append(what)
        yield shown.append
        shown.append("over")

    monkeypatch.setattr(console, "progress", progress)
    chat.run(talking([": loading tiny 43 %\n\n", *HI[:1], *HI[2:]]), "tiny", "hi", None)
    assert shown == ["waiting for tiny", "loading tiny 43 %", "over"]
    assert capsys.readouterr().out.startswith("Hello\n")


def test_an_error_in_the_stream_is_its_sentence() -> None:
    error = f"data: {json.dumps({'error': {'message': 'The engine died.'}})}\n\n"
    with pytest.raises(CommandFailed, match="The engine died"):
        read_parts(talking([*HI[:1], error]))


def test_a_stream_that_ends_early_is_a_failure() -> None:
    with pytest.raises(CommandFailed, match="ended early"):
        read_parts(talking(HI[:3]))


def test_a_chunk_that_is_none_is_a_failure() -> None:
    for wrong in ("{", "[]", '{"choices": [3]}'):
        with pytest.raises(CommandFailed, match="an invalid chunk"):
            read_parts(talking([f"data: {wrong}\n\n"]))


def test_a_refused_request_is_the_routers_sentence() -> None:
    def handler(_request: httpx.Request) -> httpx.Response:
        return httpx.Response(404, json={"error": {"message": "No node has it."}})

    with pytest.raises(CommandFailed, match="No node has it"):
        read_parts(Chat(RouterAccess(key="k"), httpx.MockTransport(handler)))


def test_the_summary_names_node_tokens_and_speed() -> None:
    answer = ChatResponse("x", "mini", 10, 21, 0.5, 2.0)
    assert summary(answer) == "node mini · 10 + 21 tokens · TTFT 0.50 s · 10.0 tokens/s"
    assert summary(ChatResponse("x", "mini", 10, 2, 0.5, 0.0)).endswith("4.0 tokens/s")
    assert summary(ChatResponse("", "mini", None, None, None, 0.0)) == "node mini"


def test_a_model_cannot_steer_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    reader = chat._Reader("m\x1b[2J")
    with reader:
        reader.comment("load\x1b[2J")
        for piece in ("a\x1b", "[2Jb\r", "\n\tc\x9b"):
            reader.text(piece)
    assert capsys.readouterr().out == "a\\x1b[2Jb\\r\n\tc\\x9b\n"


def test_a_prompt_is_answered_once(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[dict[str, Any]] = []
    chat.run(talking(HI, seen), "tiny", "hi", "Be kind.")
    assert [message["role"] for message in seen[0]["messages"]] == ["system", "user"]
    text, figures = capsys.readouterr().out.splitlines()
    assert text == "Hello"
    assert "node mini" in figures


def test_a_conversation_keeps_its_history_and_survives_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bodies: list[dict[str, Any]] = []
    answers = iter([HI, HI[:1], HI])

    def handler(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        return httpx.Response(200, text="".join(next(answers)))

    typed = iter(["one", "", "two", "three", "/exit"])
    monkeypatch.setattr("builtins.input", lambda _prompt: next(typed))
    chat.converse(Chat(RouterAccess(key="k"), httpx.MockTransport(handler)), "tiny", [])
    assert [[m["content"] for m in body["messages"]] for body in bodies] == [
        ["one"],
        ["one", "Hello", "two"],
        ["one", "Hello", "three"],
    ]
    assert "ended early" in capsys.readouterr().err
