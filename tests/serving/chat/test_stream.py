import json
from typing import Any

import pytest

from serving.chat.stream import Piece, ResponseFailed, StreamedChat, chat_body, summary


def chunk(**delta: Any) -> str:
    return f"data: {json.dumps({'choices': [{'index': 0, 'delta': delta}]})}"


def read(*lines: str) -> tuple[StreamedChat, list[Piece]]:
    """Reads the lines, one each second."""
    streamed = StreamedChat(0.0)
    pieces = [piece for at_s, line in enumerate(lines, 1) for piece in streamed.read(line, at_s)]
    return streamed, pieces


def test_text_and_reasoning_of_every_spelling_are_told_apart() -> None:
    _, pieces = read(
        chunk(role="assistant"),
        chunk(reasoning_content="hm"),
        chunk(reasoning="so", reasoning_content=None),
        "",
        chunk(content="Hi"),
        "event: ping",
    )
    assert pieces == [Piece("reasoning", "hm"), Piece("reasoning", "so"), Piece("text", "Hi")]


def test_times_and_usage_are_counted() -> None:
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    streamed, _ = read(
        chunk(reasoning="hm"),
        chunk(content="Hi"),
        chunk(content=" you"),
        f"data: {json.dumps({'choices': [], 'usage': usage})}",
        "data: [DONE]",
    )
    assert (streamed.prompt_tokens, streamed.cached_tokens, streamed.tokens) == (9, 4, 5)
    assert (streamed.ttft_s, streamed.decode_s, streamed.tokens_per_s) == (1, 2, 2)
    assert (streamed.text, streamed.is_whole) == ("Hi you", True)


def test_chunks_stand_for_tokens_where_a_server_counts_none() -> None:
    streamed, _ = read(chunk(content="a"), chunk(content="b"))
    assert (streamed.completion_tokens, streamed.tokens) == (None, 2)


def test_comments_name_the_node_or_tell_of_progress() -> None:
    streamed, pieces = read(": fleet node=studio model=tiny", ":", ": loading tiny 43 %")
    assert streamed.node == "studio"
    assert pieces == [Piece("comment", "loading tiny 43 %")]


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"error": {"message": "The engine died."}}, "The engine died."),
        ({"error": "no memory"}, "no memory"),
        ({"choices": [3]}, "an invalid chunk"),
        ({"choices": [{"delta": {"content": ["a"]}}]}, "an invalid chunk"),
        ([], "an invalid chunk"),
    ],
)
def test_an_error_and_an_invalid_chunk_are_failures(data: Any, sentence: str) -> None:
    with pytest.raises(ResponseFailed, match=sentence):
        read(f"data: {json.dumps(data)}")


def test_a_stream_without_its_end_is_no_whole_response() -> None:
    streamed, _ = read(chunk(content="a"))
    with pytest.raises(ResponseFailed, match="ended early"):
        streamed.require_whole()


def test_the_summary_names_node_tokens_and_speed() -> None:
    streamed = StreamedChat(0.0, "mini", "x", 10, None, 21, times_s=[0.5, 1.0, 2.5], is_whole=True)
    assert summary(streamed) == "node mini · 10 + 21 tokens · TTFT 0.50 s · 10.0 tokens/s"
    at_once = StreamedChat(0.0, "", "x", 10, None, 2, times_s=[0.5])
    assert summary(at_once) == "10 + 2 tokens · TTFT 0.50 s · 4.0 tokens/s"
    assert summary(StreamedChat(0.0, "mini")) == "node mini"


def test_a_body_has_the_limits_that_are_given() -> None:
    messages = [{"role": "user", "content": "hi"}]
    assert "temperature" not in chat_body("tiny", messages)
    assert chat_body("tiny", messages, temperature=0, max_tokens=5) == {
        "model": "tiny",
        "messages": messages,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        "max_tokens": 5,
    }
