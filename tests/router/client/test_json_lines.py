from __future__ import annotations

import json

import pytest

from node.protocol.errors import BROKEN_CALL
from node.protocol.paths import ApiDialect
from router.client import json_lines, sse
from router.client.framing import Framing
from router.errors import BadRequest, ContextTooLong, NodeFailed

OLLAMA = ApiDialect.OLLAMA
LINE = b'{"message":{"content":"a"},"done":false}\n'
OTHERWISE = NodeFailed("The node a responded with status 500.")


def test_both_framings_have_all_functions() -> None:
    framings: list[Framing] = [sse, json_lines]
    names = [name for name in vars(Framing) if not name.startswith("_")]
    assert all(callable(getattr(each, name)) for each in framings for name in names)


@pytest.mark.parametrize(
    ("data", "whole", "rest"),
    [
        (LINE, LINE, b""),
        (LINE + b'{"me', LINE, b'{"me'),
        (b'{"me', b"", b'{"me'),
        (b" ", b" ", b""),
        (LINE + b"  ", LINE + b"  ", b""),
        (b'  {"a', b"", b'  {"a'),
        (b"", b"", b""),
    ],
)
def test_only_whole_lines_and_the_fillers_before_the_next_one_are_passed_on(
    data: bytes, whole: bytes, rest: bytes
) -> None:
    assert json_lines.split(data) == (whole, rest)


def test_a_line_of_any_length_is_passed_on() -> None:
    long = b"{" + b"x" * sse.MAX_BUFFERED_BYTES
    assert json_lines.split(LINE + long) == (LINE + long, b"")


def test_a_keepalive_is_a_space_before_the_next_line() -> None:
    ping = json_lines.ping(OLLAMA)
    assert json_lines.is_keepalive(ping + ping) and not json_lines.has_event(ping)
    assert json_lines.has_event(ping + LINE) and not json_lines.is_keepalive(ping + LINE)
    assert json.loads(ping * 3 + LINE) == json.loads(LINE)


@pytest.mark.parametrize(
    ("line", "is_node_s", "is_refusal"),
    [
        (b'{"error":"Gone.","type":"server_error","code":"engine_died"}', True, False),
        (b'{"error":"No.","type":"invalid_request_error","code":"invalid_value"}', False, True),
        (b'{"error":"x","type":"a","code":"context_length_exceeded"}', False, True),
        (b'{"error":"' + BROKEN_CALL.encode() + b'","type":"server_error"}', False, False),
        (LINE.strip(), False, False),
    ],
)
def test_an_error_before_all_content_is_the_node_s_or_the_request_s(
    line: bytes, is_node_s: bool, is_refusal: bool
) -> None:
    events = b"  " + line + b"\n"
    assert json_lines.leading_error(events) == (line if is_node_s else None)
    assert json_lines.leads_with_refusal(events) is is_refusal
    is_too_long = b"context_length" in line
    assert json_lines.leading_too_long(events) == (line if is_too_long else None)


def test_an_error_behind_content_is_passed_on() -> None:
    assert json_lines.leading_error(LINE + b'{"error":"Gone."}\n') is None


@pytest.mark.parametrize(
    ("after", "lead"), [(b"", b""), (LINE, b""), (LINE + b" ", b""), (b'{"cut', b"\n")]
)
def test_an_error_is_a_line_of_its_own(after: bytes, lead: bytes) -> None:
    line = json_lines.error_event(BadRequest("No.", param="model"), OLLAMA, after)
    assert line.startswith(lead) and line.endswith(b"}\n") and line.count(b"\n") == 1 + len(lead)
    assert json.loads(line) == {
        "error": "No.",
        "type": "invalid_request_error",
        "code": "invalid_value",
        "param": "model",
    }
    assert sse.is_too_long(json_lines.error_event(ContextTooLong(), OLLAMA))


def test_a_node_s_late_error_becomes_a_line_and_anything_else_our_own() -> None:
    late = json_lines.late_error(b'{\n"error":"x"}', OTHERWISE, OLLAMA)
    assert late == b'{"error":"x"}\n'
    for body in (b"{}", b"<html>", b"\xff"):
        assert json.loads(json_lines.late_error(body, OTHERWISE, OLLAMA))["error"] == str(
            OTHERWISE.args[0]
        )


def test_the_codes_of_a_text_s_error_are_read() -> None:
    body = b'{"error":"x","type":"invalid_request_error","code":"%b"}'
    assert sse.is_too_long(body % b"context_length_exceeded")
    assert sse.is_model_missing(body % b"model_not_found")
    assert sse.has_code(body % b"engine_died", frozenset(("engine_died",)))
    assert sse.error_message(body) == "x"
