import itertools
import json
from typing import Any

import pytest

from node.dialects.base import Collected, ResponseHead
from node.dialects.ollama.response import ChatLines, GenerateLines, LineWriter
from node.errors import BrokenCall, EngineDied, EngineFault
from node.ipc.messages import (
    Accepted,
    Alternative,
    Delta,
    Part,
    PartKind,
    RowUsage,
    TokenLogprob,
)
from node.protocol.errors import BROKEN_CALL
from node.protocol.messages import FinishReason

HEAD = ResponseHead("id", "m", 0)
USAGE = RowUsage(10, 4, 3, 0.1, 0.25, 0.5)
TEXT = Part(PartKind.CONTENT, "Hi")
THOUGHT = Part(PartKind.REASONING, "hm")
START = Part(PartKind.TOOL_START, "", 0, "f", "call_1")
ARGUMENTS = (Part(PartKind.TOOL_ARGS, '{"a":'), Part(PartKind.TOOL_ARGS, " 1}"))


def writer(kind: type[LineWriter] = ChatLines, **options: Any) -> LineWriter:
    ticks = itertools.count(0, 1000)
    return kind(HEAD, clock_ns=lambda: next(ticks), **options)


def lines(data: bytes) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in data.splitlines()]
    assert data == b"" or data.endswith(b"\n")
    for line in found:
        assert line.pop("model") == "m" and line.pop("created_at").endswith("Z")
    return found


def last(finish: FinishReason = FinishReason.STOP, stop: str | None = None) -> Delta:
    return Delta("u", (), 3, finish, USAGE, stop=stop)


def message(**fields: Any) -> dict[str, Any]:
    return {"message": {"role": "assistant", "content": "", **fields}, "done": False}


def test_each_part_is_a_line() -> None:
    made = writer().parts([THOUGHT, TEXT])
    assert lines(made) == [message(thinking="hm"), message(content="Hi")]
    made = writer(GenerateLines).parts([THOUGHT, TEXT])
    assert lines(made) == [
        {"response": "", "thinking": "hm", "done": False},
        {"response": "Hi", "done": False},
    ]


def test_a_call_comes_whole_once_it_is_complete() -> None:
    stream = writer()
    assert stream.parts([START]) == stream.parts(ARGUMENTS) == b""
    call = {"id": "call_1", "function": {"index": 0, "name": "f", "arguments": {"a": 1}}}
    second = Part(PartKind.TOOL_START, "", 1, "g", "call_2")
    assert lines(stream.parts([second])) == [message(tool_calls=[call])]
    other = {"id": "call_2", "function": {"index": 1, "name": "g", "arguments": {}}}
    assert lines(stream.parts([TEXT])) == [message(tool_calls=[other]), message(content="Hi")]


def test_the_last_line_has_usage_and_times() -> None:
    stream = writer()
    stream.accepted(Accepted("u", 10, 4))
    (line,) = lines(stream.ending(last(FinishReason.LENGTH)))
    assert line == {
        **message(),
        "done": True,
        "done_reason": "length",
        "total_duration": 2000,
        "load_duration": 1000,
        "prompt_eval_count": 10,
        "prompt_eval_duration": 250_000_000,
        "eval_count": 3,
        "eval_duration": 500_000_000,
    }


@pytest.mark.parametrize(
    ("finish", "stop", "is_error"),
    [
        (FinishReason.STOP, None, True),
        (FinishReason.STOP, "x", False),
        (FinishReason.LENGTH, None, False),
    ],
)
def test_a_call_without_its_end_is_left_out_or_an_error(
    finish: FinishReason, stop: str | None, is_error: bool
) -> None:
    stream = writer()
    stream.parts([START, ARGUMENTS[0]])
    (line,) = [json.loads(each) for each in stream.ending(last(finish, stop)).splitlines()]
    assert ("error" in line) is is_error
    assert not is_error or line["error"].startswith(BROKEN_CALL)
    collected = Collected(finish=finish, stop=stop, usage=USAGE)
    collected.add([TEXT, START, ARGUMENTS[0]])
    if is_error:
        with pytest.raises(BrokenCall):
            writer().whole([collected])
    else:
        assert "tool_calls" not in json.loads(writer().whole([collected]))["message"]


def test_hidden_thinking_is_not_sent() -> None:
    assert writer(hides_thinking=True).parts([THOUGHT]) == b""
    collected = Collected(usage=USAGE)
    collected.add([THOUGHT, TEXT])
    shown = json.loads(writer().whole([collected]))["message"]
    hidden = json.loads(writer(hides_thinking=True).whole([collected]))["message"]
    assert shown == {"role": "assistant", "content": "Hi", "thinking": "hm"}
    assert hidden == {"role": "assistant", "content": "Hi"}


def test_a_whole_response_has_all_in_one() -> None:
    collected = Collected(usage=USAGE)
    collected.add([THOUGHT, TEXT, START, *ARGUMENTS])
    whole = json.loads(writer().whole([collected]))
    assert whole["message"]["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    assert (whole["done"], whole["done_reason"], whole["eval_count"]) == (True, "stop", 3)
    whole = json.loads(writer(GenerateLines).whole([collected]))
    assert (whole["response"], whole["thinking"]) == ("Hi", "hm")
    with pytest.raises(EngineFault):
        writer().whole([Collected()])


def test_log_probabilities_stand_beside_the_text() -> None:
    token = TokenLogprob(Alternative("Hi", b"Hi", -0.5), (Alternative("Ho", b"Ho", -1.0),))
    part = Part(PartKind.CONTENT, "Hi", logprobs=(token,))
    (line,) = lines(writer().parts([part]))
    assert line["logprobs"] == [
        {
            "token": "Hi",
            "logprob": -0.5,
            "bytes": [72, 105],
            "top_logprobs": [{"token": "Ho", "logprob": -1.0, "bytes": [72, 111]}],
        }
    ]


def test_an_error_is_a_line_with_a_text() -> None:
    error = json.loads(writer().error(EngineDied()))
    assert error["code"] == "engine_died" and isinstance(error["error"], str)
