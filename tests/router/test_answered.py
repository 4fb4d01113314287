from __future__ import annotations

import json

import pytest

from router.answered import MAX_TOLD_CHARS, Answered, enveloped, how
from router.dialects import Dialect
from router.dispatcher import NotSent
from router.errors import NodeFailed, NodeRefused, RouterError, WrongNodeToken
from router.types import Failure

TEXT = b"404 page\n not found\n"


def test_a_page_that_is_no_error_is_told_in_the_caller_s_dialect() -> None:
    said = "The node a answered with status 404: 404 page not found"
    told = json.loads(enveloped("a", 404, TEXT, Dialect.ANTHROPIC) or b"")
    assert told == {"type": "error", "error": {"type": "not_found_error", "message": said}}
    told = json.loads(enveloped("a", 404, TEXT, Dialect.RESPONSES) or b"")
    assert (told["error"]["message"], told["error"]["code"]) == (said, "node_refused")
    told = json.loads(enveloped("a", 500, b"", Dialect.RESPONSES) or b"")
    assert told["error"]["message"] == "The node a answered with status 500."
    assert told["error"]["code"] == "node_failed"


def test_a_long_page_is_cut() -> None:
    told = json.loads(enveloped("a", 400, b"\xff" * 9999, Dialect.RESPONSES) or b"")
    assert told["error"]["message"].endswith("400: " + "\ufffd" * MAX_TOLD_CHARS)


@pytest.mark.parametrize(
    ("status", "body", "dialect"),
    [
        (200, TEXT, Dialect.ANTHROPIC),
        (404, TEXT, Dialect.OPENAI),
        (404, b'{"error":"No."}', Dialect.ANTHROPIC),
        (404, b'{"error":{"message":"No."}}', Dialect.RESPONSES),
    ],
)
def test_what_the_caller_can_read_stays_as_it_is(
    status: int, body: bytes, dialect: Dialect
) -> None:
    assert enveloped("a", status, body, dialect) is None


RETRY = {b"retry-after": b"5"}


def said(code: str) -> bytes:
    error = {"message": "No.", "type": "server_error", "param": None, "code": code}
    return json.dumps({"error": error}).encode()


@pytest.mark.parametrize("status", [404, 409, 429])
@pytest.mark.parametrize("headers", [{}, RETRY])
def test_a_node_that_cannot_take_a_request_has_not_failed(
    status: int, headers: dict[bytes, bytes]
) -> None:
    assert how(Answered(status, headers, b"{}")) is Failure.TURNED_AWAY


@pytest.mark.parametrize("body", [b"", b"{}", b"<html>", said("shutting_down"), b'{"error":"No."}'])
def test_a_503_turns_a_request_away_where_it_tells_when_to_come_back(body: bytes) -> None:
    assert how(Answered(503, RETRY, body)) is Failure.TURNED_AWAY
    assert how(Answered(503, {}, body)) is Failure.ANSWERED
    assert how(Answered(503, {b"retry-after": b"soon"}, body)) is Failure.ANSWERED


@pytest.mark.parametrize("code", ["engine_died", "engine_silent", "load_failed"])
def test_an_engine_that_has_failed_has_failed_though_its_agent_tells_when_to_come_back(
    code: str,
) -> None:
    assert how(Answered(503, RETRY, said(code))) is Failure.ANSWERED


@pytest.mark.parametrize("status", [500, 502, 529])
def test_any_other_error_of_a_server_is_a_failure_that_it_told(status: int) -> None:
    assert how(Answered(status, RETRY, b"{}")) is Failure.ANSWERED


@pytest.mark.parametrize(
    ("failure", "ends"),
    [
        (NotSent("Gone."), Failure.UNSENT),
        (NodeFailed("It broke."), Failure.BROKEN),
        (NodeRefused("No."), Failure.ANSWERED),
        (WrongNodeToken("No."), Failure.ANSWERED),
    ],
)
def test_what_broke_may_be_tried_there_again_and_what_was_told_not(
    failure: RouterError, ends: Failure
) -> None:
    assert how(failure) is ends
