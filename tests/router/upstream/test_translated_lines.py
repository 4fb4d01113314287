"""Responses of OpenAI's dialect, as clients of Ollama get them."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.types import Tokens
from router.upstream.translated_lines import MAX_HELD_BYTES, LineTranslator, TooMuchHeld

TOKENS = Tokens(11, 5, 7)
DONE = b"data: [DONE]\n\n"


def translator(path: str = "/api/chat", *, hides_thinking: bool = False) -> LineTranslator:
    ticks = itertools.count(0, 1000)
    return LineTranslator(
        path, "m:latest", hides_thinking=hides_thinking, clock_ns=lambda: next(ticks)
    )


def event(finish: str | None = None, **delta: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


def call(index: int, text: str, **fields: Any) -> dict[str, Any]:
    function = {"arguments": text, **fields.pop("function", {})}
    return {"index": index, **fields, "function": function}


def read(data: bytes) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in data.splitlines()]
    for line in found:
        if "error" not in line:
            assert line.pop("model") == "m:latest" and line.pop("created_at").endswith("Z")
    return found


def message(**fields: Any) -> dict[str, Any]:
    return {"message": {"role": "assistant", "content": "", **fields}, "done": False}


LAST = {
    "done": True,
    "done_reason": "stop",
    "load_duration": 0,
    "prompt_eval_count": 11,
    "eval_count": 7,
}


def test_a_stream_becomes_lines_with_the_counts_in_the_last_one() -> None:
    stream = translator()
    events = (
        b": hi\n\n"
        + event(role="assistant", content="")
        + event(reasoning_content="hm")
        + event(content="Hello")
        + event("stop")
        + DONE
    )
    # Wherever the bytes are cut.
    pieces = [stream.lines(events[at : at + 7], TOKENS) for at in range(0, len(events), 7)]
    first, second, last = read(b"".join(pieces))
    assert [first, second] == [message(thinking="hm"), message(content="Hello")]
    times = {name: last.pop(name) for name in list(last) if name.endswith("_eval_duration")}
    assert last.pop("total_duration") == 2000 and times.keys() == {"prompt_eval_duration"}
    assert last.pop("eval_duration") == 1000
    assert last == {**message(), **LAST}
    assert stream.end(TOKENS) == b""


def test_calls_come_whole_before_the_last_line() -> None:
    stream = translator()
    started = call(0, "", id="call_1", function={"name": "f", "arguments": ""})
    pieces = [call(0, '{"a":'), call(0, "1}"), call(1, "{}", id="call_2", function={"name": "g"})]
    events = b"".join(event(tool_calls=[each]) for each in [started, *pieces])
    assert stream.lines(events, None) == b""
    calls, last = read(stream.lines(event("tool_calls") + DONE, TOKENS))
    functions = [
        {"index": 0, "name": "f", "arguments": {"a": 1}},
        {"index": 1, "name": "g", "arguments": {}},
    ]
    assert calls == message(
        tool_calls=[
            {"id": "call_1", "function": functions[0]},
            {"id": "call_2", "function": functions[1]},
        ]
    )
    assert (last["done"], last["done_reason"]) == (True, "stop")


def test_a_stream_without_done_ends_with_its_last_line_if_it_was_whole() -> None:
    stream = translator()
    stream.lines(event("length", content="a"), TOKENS)
    (last,) = read(stream.end(TOKENS))
    assert last["done_reason"] == "length"
    cut = translator()
    cut.lines(event(content="a"), TOKENS)
    assert cut.end(TOKENS) == b""


def test_a_server_that_does_not_stream_is_understood() -> None:
    stream = translator()
    whole = b'{"choices":[{"message":{"content":"Hi"},"finish_reason":"stop"}]}'
    assert stream.lines(whole, None) == b""
    (line,) = read(stream.end(TOKENS))
    assert (line["message"]["content"], line["done"]) == ("Hi", True)


def test_an_error_within_a_stream_is_its_last_line() -> None:
    stream = translator()
    events = event(content="a") + b'data: {"error":{"message":"Gone."}}\n\n' + event(content="b")
    assert read(stream.lines(events + DONE, TOKENS))[1:] == [{"error": "Gone."}]
    assert stream.end(TOKENS) == b""


def test_a_completion_has_a_text() -> None:
    stream = translator("/api/generate")
    events = b'data: {"choices":[{"text":"a","finish_reason":"stop"}]}\n\n'
    (line,) = read(stream.lines(events, None))
    assert line == {"response": "a", "done": False}


@pytest.mark.parametrize("hides", [True, False])
def test_a_whole_response_has_all_in_one(hides: bool) -> None:
    answer = {
        "choices": [
            {
                "message": {
                    "content": "Hi",
                    "reasoning": "hm",
                    "tool_calls": [
                        {"id": "c", "function": {"name": "f", "arguments": '{"a": 1}'}},
                        {"id": "d", "function": {"name": "g", "arguments": "{}"}},
                    ],
                },
                "finish_reason": "tool_calls",
                "logprobs": {"content": [{"token": "Hi", "logprob": -1}]},
            }
        ]
    }
    made = translator(hides_thinking=hides).whole(json.dumps(answer).encode(), TOKENS)
    (whole,) = read(made)
    shown = whole["message"]
    assert (shown["content"], shown.get("thinking")) == ("Hi", None if hides else "hm")
    assert [each["function"]["arguments"] for each in shown["tool_calls"]] == [{"a": 1}, {}]
    assert whole["logprobs"] == [{"token": "Hi", "logprob": -1}]
    assert whole["done"] is True and whole["eval_count"] == 7


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"choices":[]}', b"\xff"])
def test_what_is_no_response_stays_as_it_is(body: bytes) -> None:
    assert translator().whole(body, None) == body


def test_events_that_are_not_valid_are_left_out() -> None:
    events = b'data: {"broken": \n\ndata: 7\n\ndata: {"choices":[{"delta":5}]}\n\n'
    assert translator().lines(events, None) == b""


def test_an_event_without_end_is_not_held_back_for_ever() -> None:
    with pytest.raises(TooMuchHeld):
        translator().lines(b"data: " + b"x" * MAX_HELD_BYTES, None)


def test_calls_without_end_are_not_held_back_for_ever() -> None:
    stream = translator()
    piece = event(tool_calls=[call(0, "x" * 1_000_000)])
    with pytest.raises(TooMuchHeld):
        for _ in range(MAX_HELD_BYTES // 1_000_000 + 1):
            stream.lines(piece, None)


@given(st.binary(max_size=60), st.sampled_from(["", "data: ", 'data: {"choices":[{"delta":{']))
def test_any_bytes_of_a_server_are_lines_or_nothing(data: bytes, begin: str) -> None:
    read(translator().lines(begin.encode() + data + b"\n\n" + DONE, TOKENS))
    translator().whole(data, TOKENS)
