import json
from typing import Any

import httpx
import pytest

from router.commands import chat
from router.commands.chat_request import Chat
from router.commands.client import CommandFailed, RouterAccess
from serving.chat.stream import Piece, ResponseFailed


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


def read(talk: Chat) -> list[Piece]:
    return list(talk.stream("tiny", [{"role": "user", "content": "hi"}]))


def test_a_response_streams_and_is_counted() -> None:
    seen: list[dict[str, Any]] = []
    *pieces, last = read(talking(HI, seen))
    assert [piece.text for piece in pieces if piece.kind == "text"] == ["Hel", "lo"]
    assert last.kind == "summary" and last.text.startswith("node mini · 3 + 2 tokens · TTFT ")
    assert seen[0]["stream"] is True
    assert seen[0]["stream_options"] == {"include_usage": True}


def test_the_node_may_be_named_in_a_comment() -> None:
    pieces = read(talking([": fleet node=studio model=tiny\n\n", *HI], node=None))
    assert pieces[-1].text.startswith("node studio")


def test_the_progress_of_a_load_arrives_in_comments_before_the_response() -> None:
    loading = [": loading tiny\n\n", ": loading tiny 43 %\n\n", ":\n\n"]
    comments = [piece.text for piece in read(talking([*loading, *HI])) if piece.kind == "comment"]
    assert comments == ["loading tiny", "loading tiny 43 %", "keep-alive"]


def test_a_stream_that_ends_early_is_a_failure() -> None:
    with pytest.raises(ResponseFailed, match="ended early"):
        read(talking(HI[:3]))
    with pytest.raises(CommandFailed, match="ended early"):
        chat.run(talking(HI[:3]), "tiny", "hi", None)


def test_a_refused_request_is_the_routers_sentence() -> None:
    def handler(_request: httpx.Request) -> httpx.Response:
        return httpx.Response(404, json={"error": {"message": "No node has it."}})

    with pytest.raises(ResponseFailed, match="No node has it"):
        read(Chat(RouterAccess(key="k"), httpx.MockTransport(handler)))


def test_a_router_that_is_not_there_is_a_sentence_that_says_what_to_do() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    with pytest.raises(ResponseFailed, match="start it with `router serve`"):
        read(Chat(RouterAccess(key="k"), httpx.MockTransport(handler)))


def test_a_prompt_gets_one_response(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[dict[str, Any]] = []
    chat.run(talking(HI, seen), "tiny", "hi", "Be kind.")
    assert [message["role"] for message in seen[0]["messages"]] == ["system", "user"]
    text, figures = capsys.readouterr().out.splitlines()
    assert text == "Hello"
    assert "node mini" in figures


def test_in_a_terminal_a_chat_without_a_prompt_is_a_conversation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[dict[str, Any]] = []
    typed = iter(["one", "two", "/bye"])
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda _prompt: next(typed))
    chat.run(talking(HI, seen), "tiny", None, "Be kind.")
    assert [message["content"] for message in seen[1]["messages"]] == [
        *("Be kind.", "one", "Hello", "two"),
    ]
