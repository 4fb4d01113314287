from __future__ import annotations

import json

import pytest

from node.protocol.errors import BROKEN_CALL
from node.protocol.overflow import Overflow
from node.protocol.paths import ApiDialect
from router.dispatch.attempt_outcome import (
    MAX_EXCERPT_CHARS,
    ErrorResponse,
    failure_kind,
    outcome_of,
    respelled_body,
    respelled_event,
)
from router.dispatch.dispatcher import NotSent
from router.errors import NodeFailed, NodeRefused, RouterError, WrongNodeToken
from router.records.outcomes import OUTCOME_NODE_FAILED, OUTCOME_REFUSED, OUTCOME_SERVED
from router.types import Failure

TEXT = b"404 page\n not found\n"


def test_a_page_that_is_no_error_is_returned_in_the_caller_s_dialect() -> None:
    message = "The node a responded with status 404: 404 page not found"
    answer = json.loads(respelled_body("a", 404, TEXT, ApiDialect.ANTHROPIC) or b"")
    assert answer == {"type": "error", "error": {"type": "not_found_error", "message": message}}
    answer = json.loads(respelled_body("a", 404, TEXT, ApiDialect.RESPONSES) or b"")
    assert (answer["error"]["message"], answer["error"]["code"]) == (message, "node_refused")
    answer = json.loads(respelled_body("a", 500, b"", ApiDialect.RESPONSES) or b"")
    assert answer["error"]["message"] == "The node a responded with status 500."
    assert answer["error"]["code"] == "node_failed"


VLLM = (
    b'{"error":{"message":"This model\'s maximum context length is 8 tokens, not 9.",'
    b'"type":"BadRequestError","param":null,"code":400}}'
)
OLLAMA = b'{"error":"the input length exceeds the context length"}'
TOO_LONG = {"vllm": VLLM, "ollama": OLLAMA}
SPELLED = {
    "vllm": Overflow(9, 8).anthropic,
    "ollama": "prompt is too long: the input length exceeds the context length",
}


@pytest.mark.parametrize("server", TOO_LONG)
def test_a_prompt_that_is_too_long_is_reported_in_the_message_that_anthropic_s_clients_know(
    server: str,
) -> None:
    error = {"type": "invalid_request_error", "message": SPELLED[server]}
    whole = json.loads(respelled_body("a", 400, TOO_LONG[server], ApiDialect.ANTHROPIC) or b"")
    assert whole == {"type": "error", "error": error}
    event = (
        respelled_event(b": x\n\ndata: " + TOO_LONG[server] + b"\n\n", ApiDialect.ANTHROPIC) or b""
    )
    assert json.loads(event.removeprefix(b"event: error\ndata: ")) == whole


@pytest.mark.parametrize("dialect", [ApiDialect.OPENAI, ApiDialect.RESPONSES])
def test_other_dialects_get_the_server_s_own_message(dialect: ApiDialect) -> None:
    assert respelled_body("a", 400, VLLM, dialect) is None
    assert respelled_event(b"data: " + VLLM + b"\n\n", dialect) is None


def test_what_is_in_anthropic_s_form_stays_as_it_is() -> None:
    error = {"type": "invalid_request_error", "message": Overflow(9, 8).anthropic}
    body = json.dumps({"type": "error", "error": error}).encode()
    assert respelled_body("a", 400, body, ApiDialect.ANTHROPIC) is None
    assert respelled_event(b"event: error\ndata: " + body + b"\n\n", ApiDialect.ANTHROPIC) is None
    assert (
        respelled_event(b'event: message_start\ndata: {"type":"x"}\n\n', ApiDialect.ANTHROPIC)
        is None
    )


def test_a_long_page_is_cut() -> None:
    answer = json.loads(respelled_body("a", 400, b"\xff" * 9999, ApiDialect.RESPONSES) or b"")
    assert answer["error"]["message"].endswith("400: " + "\ufffd" * MAX_EXCERPT_CHARS)


@pytest.mark.parametrize(
    ("status", "body", "dialect"),
    [
        (200, TEXT, ApiDialect.ANTHROPIC),
        (404, TEXT, ApiDialect.OPENAI),
        (404, b'{"error":"No."}', ApiDialect.ANTHROPIC),
        (404, b'{"error":{"message":"No."}}', ApiDialect.RESPONSES),
    ],
)
def test_what_the_caller_can_read_stays_as_it_is(
    status: int, body: bytes, dialect: ApiDialect
) -> None:
    assert respelled_body("a", status, body, dialect) is None


RETRY = {b"retry-after": b"5"}


def error_body(code: str) -> bytes:
    error = {"message": "No.", "type": "server_error", "param": None, "code": code}
    return json.dumps({"error": error}).encode()


@pytest.mark.parametrize("status", [404, 409, 429])
@pytest.mark.parametrize("headers", [{}, RETRY])
def test_a_node_that_cannot_accept_a_request_has_not_failed(
    status: int, headers: dict[bytes, bytes]
) -> None:
    assert failure_kind(ErrorResponse(status, headers, b"{}")) is Failure.BUSY


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"<html>", error_body("shutting_down"), b'{"error":"No."}']
)
def test_a_503_with_retry_after_is_a_rejection(body: bytes) -> None:
    assert failure_kind(ErrorResponse(503, RETRY, body)) is Failure.BUSY
    assert failure_kind(ErrorResponse(503, {}, body)) is Failure.ERROR_RESPONSE
    assert (
        failure_kind(ErrorResponse(503, {b"retry-after": b"soon"}, body)) is Failure.ERROR_RESPONSE
    )


@pytest.mark.parametrize("code", ["engine_died", "engine_unresponsive", "load_failed"])
def test_an_engine_that_has_failed_has_failed_though_its_agent_sends_retry_after(
    code: str,
) -> None:
    assert failure_kind(ErrorResponse(503, RETRY, error_body(code))) is Failure.ERROR_RESPONSE


@pytest.mark.parametrize("status", [500, 502, 529])
def test_any_other_error_of_a_server_is_a_failure_that_it_reported(status: int) -> None:
    assert failure_kind(ErrorResponse(status, RETRY, b"{}")) is Failure.ERROR_RESPONSE


@pytest.mark.parametrize(
    ("failure", "ends"),
    [
        (NotSent("Gone."), Failure.UNSENT),
        (NodeFailed("It broke."), Failure.BROKEN),
        (NodeRefused("No."), Failure.ERROR_RESPONSE),
        (WrongNodeToken("No."), Failure.ERROR_RESPONSE),
    ],
)
def test_what_broke_may_be_tried_there_again_and_what_was_answered_not(
    failure: RouterError, ends: Failure
) -> None:
    assert failure_kind(failure) is ends


def test_an_answer_that_failed_for_what_the_model_generated_counts_as_served() -> None:
    broken = json.dumps({"error": {"message": f"{BROKEN_CALL}f: it ended."}}).encode()
    assert outcome_of(500, broken) == OUTCOME_SERVED
    assert outcome_of(500, b'{"error":{"message":"It broke."}}') == OUTCOME_NODE_FAILED
    assert outcome_of(500, b"") == OUTCOME_NODE_FAILED
    assert outcome_of(400, b"") == OUTCOME_REFUSED
    assert outcome_of(200) == OUTCOME_SERVED
