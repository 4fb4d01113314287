"""Reading traces, and the errors for lines that cannot be read."""

from __future__ import annotations

import json

import pytest

from router.simulator.trace import TraceError, read_trace
from tests.router.simulator.building import line


def test_mooncake_s_fields_are_read_and_the_block_s_size_inferred() -> None:
    trace = read_trace([line(0, 1000, 5, [1, 2]), "", line(2000, 513, 6, [1, 3])])
    assert trace.block_tokens == 512
    assert not trace.has_sessions
    assert [request.input_length for request in trace.requests] == [1000, 513]
    assert trace.requests[1].hash_ids == [1, 3]


def test_bytes_are_read_as_text_is() -> None:
    assert read_trace([line(0, 10, 1, [1]).encode()], 64).requests[0].input_length == 10


def test_a_size_that_is_no_power_of_two_is_inferred_where_none_fits() -> None:
    assert read_trace([line(0, 300, 5, [1, 2, 3]), line(1, 201, 5, [1, 2, 4])]).block_tokens == 100


def test_requests_are_in_the_order_of_their_time_and_sessions_together() -> None:
    lines = [
        line(5, 10, 1, [1], 7),
        line(1, 10, 1, [2], 8),
        line(9, 10, 1, [3], 8),
        line(0, 10, 1, [4], 7),
    ]
    trace = read_trace(lines, 64)
    assert [(each.session, each.timestamp) for each in trace.requests] == [
        (7, 0),
        (7, 5),
        (8, 1),
        (8, 9),
    ]
    assert trace.has_sessions


def test_bytes_that_are_no_text_are_reported_by_their_line() -> None:
    bad = b'{"model":"\xff"}'
    with pytest.raises(TraceError, match="Line 2 is not JSON"):
        read_trace([line(0, 10, 1, [1]).encode(), bad], 64)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("{", "Line 2 is not JSON"),
        ('{"x": ' + "[" * 100_000, "Line 2 is not JSON"),
        (line(0, 1 << 29, 1, []), "`input_length`: Expected `int` <= 268435456"),
        (line(0, 9, 1 << 29, []), "`output_length`: Expected `int` <= 268435456"),
        (line(1e16, 9, 1, []), "`timestamp`: Expected `float` <= "),
        ('{"timestamp": 0}', "Line 2: Object missing required field `input_length`"),
        ('{"timestamp":0,"input_length":-1,"output_length":1,"hash_ids":[]}', "`input_length`"),
        ('{"timestamp":0,"input_length":9,"output_length":-1,"hash_ids":[]}', "`output_length`"),
        ('{"timestamp":0,"input_length":9,"output_length":1,"hash_ids":[1,"x"]}', "`hash_ids[1]`"),
        ('{"timestamp":-1,"input_length":9,"output_length":1,"hash_ids":[1]}', "`timestamp`"),
        (
            '{"timestamp":0,"input_length":65,"output_length":1,"hash_ids":[1]}',
            "Line 2: `hash_ids` has 1 blocks, but `input_length` 65 has 2 of 64 tokens",
        ),
        (line(0, 10, 1, [1], 3), "Line 2: either all lines have a `session` or none has"),
    ],
)
def test_an_error_names_line_and_field(bad: str, message: str) -> None:
    with pytest.raises(TraceError) as caught:
        read_trace([line(0, 10, 1, [1]), bad], 64)
    assert message in str(caught.value)
    assert "Line 2" in str(caught.value)


def test_a_trace_without_requests_is_refused() -> None:
    with pytest.raises(TraceError, match="no requests"):
        read_trace(["", "\n"])


def test_blocks_of_no_one_size_are_refused() -> None:
    with pytest.raises(TraceError, match="--block-tokens"):
        read_trace([line(0, 1000, 5, [1]), line(1, 1000, 5, [1, 2, 3, 4])])


def test_a_prompt_of_no_tokens_is_read_as_of_one() -> None:
    lines = [line(0, 0, 1, []), line(1, 0, 1, [7]), line(2, 0, 1, [7, 8]), line(3, 1000, 1, [1, 2])]
    trace = read_trace(lines)
    assert [request.input_length for request in trace.requests] == [1, 1, 1, 1000]
    assert [request.hash_ids for request in trace.requests[:3]] == [[], [7], [7]]
    assert trace.block_tokens == 512


def grown(*values: object) -> str:
    names = ("session", "ts_us", "t_ms", "keep", "append", "output")
    return json.dumps(dict(zip(names, values, strict=True)))


def test_sessions_whose_prompts_grow_are_read() -> None:
    lines = [
        grown("a", 5_000_000, 0, 0, "x" * 512, "y"),
        grown("b", 6_000_000, 0, 0, "z" * 8, ""),
        grown("a", 7_000_000, 2000, 256, "w" * 257, "yy" * 8),
    ]
    trace = read_trace(lines)
    assert trace.has_sessions and trace.block_tokens == 64
    first, second, other = trace.requests
    assert [each.input_length for each in trace.requests] == [128, 129, 2]
    assert [each.output_length for each in trace.requests] == [1, 4, 0]
    assert [each.timestamp for each in trace.requests] == [5000.0, 7000.0, 6000.0]
    assert first.hash_ids[0] == second.hash_ids[0] and first.hash_ids[1] != second.hash_ids[1]
    assert first.hash_ids[0] != first.hash_ids[1], "a block is named by all that is before it, too"
    assert len(second.hash_ids) == 3 and other.hash_ids[0] not in first.hash_ids


def test_sessions_of_messages_are_read() -> None:
    words = [{"role": "user", "content": "x" * 600}, {"role": "assistant", "content": "y"}]
    lines = [
        json.dumps({"session": name, "messages": words * 3, "request_points": [1, 3]})
        for name in ("a", "b")
    ]
    requests = read_trace(lines).requests
    assert [each.session for each in requests] == ["a", "a", "b", "b"]
    assert [each.timestamp for each in requests] == [0.0, 1000.0, 0.0, 1000.0]
    first, second = requests[:2]
    shared = [a == b for a, b in zip(first.hash_ids, second.hash_ids, strict=False)]
    assert shared[:2] == [True, True] and len(second.hash_ids) > len(first.hash_ids)
    assert first.hash_ids == requests[2].hash_ids


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({"session": "a", "t_ms": 0, "keep": 5, "append": "x", "output": ""}, "`keep`: the prompt"),
        ({"session": "a", "keep": 0, "append": "x", "output": ""}, "`t_ms`"),
        ({"session": "a", "messages": [1], "request_points": [1]}, "there is no message 1"),
        ({"session": "a", "messages": [1], "request_points": [-1]}, "`request_points[0]`"),
    ],
)
def test_a_session_that_cannot_be_read_names_line_and_field(
    line: dict[str, object], words: str
) -> None:
    with pytest.raises(TraceError) as refused:
        read_trace([json.dumps(line)])
    assert str(refused.value).startswith("Line 1: ") and words in str(refused.value)
