"""Every error of the router in the dialect of the caller."""

from __future__ import annotations

import json
from typing import Any

import pytest

from node.protocol.overflow import Overflow
from node.protocol.paths import ApiDialect
from router.client.error_dialects import error_body, event_body, refusal_body
from router.errors import (
    BadRequest,
    ContextTooLong,
    DeadlineExceeded,
    NodeFailed,
    QueueFull,
    RouterError,
)
from serving.http.refusals import NotARequest, Refusal, RequestTimeout
from tests.router.test_errors import ALL


@pytest.mark.parametrize("kind", ALL)
def test_every_error_has_an_anthropic_envelope(kind: type[RouterError]) -> None:
    error = kind()
    error.request_id = "req_1"
    answer = json.loads(error_body(error, ApiDialect.ANTHROPIC))
    assert set(answer) == {"type", "error", "request_id"}
    assert (answer["type"], answer["request_id"]) == ("error", "req_1")
    assert set(answer["error"]) == {"type", "message"}
    own_words = isinstance(error, ContextTooLong)
    assert answer["error"]["message"] == ("prompt is too long: " * own_words) + error.message


def test_a_prompt_that_is_too_long_is_reported_in_each_dialect_s_form() -> None:
    overflow = Overflow(9, 8)
    error = ContextTooLong(overflow=overflow, param="messages")
    for encode in (error_body, event_body):
        sent = json.loads(encode(error, ApiDialect.ANTHROPIC))["error"]
        assert sent == {"type": "invalid_request_error", "message": overflow.anthropic}
        sent = json.loads(encode(error, ApiDialect.OPENAI))["error"]
        assert sent["message"] == overflow.openai
        assert sent["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (405, "api_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (502, "api_error"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
        (529, "overloaded_error"),
    ],
)
def test_the_status_determines_anthropic_s_type(status: int, kind: str) -> None:
    error = RouterError("No.")
    error.status = status
    answer = json.loads(error_body(error, ApiDialect.ANTHROPIC))
    assert answer["error"] == {"type": kind, "message": "No."}
    assert "request_id" not in answer


@pytest.mark.parametrize(
    ("message", "shown"),
    [("Too hot.", "temperature: Too hot."), ("temperature is 9.", "temperature is 9.")],
)
def test_anthropic_s_message_names_the_field(message: str, shown: str) -> None:
    error = BadRequest(message, param="temperature")
    assert json.loads(error_body(error, ApiDialect.ANTHROPIC))["error"]["message"] == shown


@pytest.mark.parametrize("dialect", [ApiDialect.OPENAI, ApiDialect.RESPONSES])
def test_an_answer_to_openai_s_clients_has_one_envelope(dialect: ApiDialect) -> None:
    error = BadRequest("No.", param="x")
    assert error_body(error, dialect) == error.body()


@pytest.mark.parametrize(
    ("dialect", "fields"),
    [
        (
            ApiDialect.OPENAI,
            {"error": {"message": "Gone.", "type": "server_error", "param": None, "code": "c"}},
        ),
        (
            ApiDialect.RESPONSES,
            {
                "type": "error",
                "code": "c",
                "message": "Gone.",
                "param": None,
                "sequence_number": 7,
                "error": {
                    "type": "server_error",
                    "code": "c",
                    "message": "Gone.",
                    "param": None,
                },
            },
        ),
        (
            ApiDialect.ANTHROPIC,
            {
                "type": "error",
                "error": {"type": "api_error", "message": "Gone."},
            },
        ),
        (ApiDialect.OLLAMA, {"error": "Gone.", "type": "server_error", "code": "c"}),
    ],
)
def test_an_event_spells_the_error_in_its_dialect(
    dialect: ApiDialect, fields: dict[str, Any]
) -> None:
    error = NodeFailed("Gone.")
    error.code = "c"
    assert json.loads(event_body(error, dialect, 7)) == fields


@pytest.mark.parametrize("kind", [QueueFull, DeadlineExceeded])
@pytest.mark.parametrize("dialect", ApiDialect)
def test_where_a_request_stood_is_a_part_of_the_error(
    kind: type[RouterError], dialect: ApiDialect
) -> None:
    error = kind()
    error.position, error.estimated_wait_s = 3, 12.0
    standing = {"position": 3, "estimated_wait_s": 12.0}
    body, event = (json.loads(encode(error, dialect)) for encode in (error_body, event_body))
    is_flat = dialect is ApiDialect.OLLAMA
    assert (body if is_flat else body["error"]).items() >= standing.items()
    is_flat = is_flat or dialect is ApiDialect.RESPONSES
    assert (event if is_flat else event["error"]).items() >= standing.items()


@pytest.mark.parametrize(
    ("kind", "types"),
    [
        (QueueFull, ("rate_limit_error", "rate_limit_error")),
        (DeadlineExceeded, ("server_error", "timeout_error")),
    ],
)
def test_what_the_queue_refuses_has_a_type_in_each_dialect(
    kind: type[RouterError], types: tuple[str, str]
) -> None:
    bodies = [error_body(kind(), each) for each in (ApiDialect.OPENAI, ApiDialect.ANTHROPIC)]
    assert tuple(json.loads(body)["error"]["type"] for body in bodies) == types


@pytest.mark.parametrize("refusal", [NotARequest("Why."), RequestTimeout("Why.")])
def test_a_request_that_nobody_has_seen_is_refused_in_the_dialect_of_its_path(
    refusal: Refusal,
) -> None:
    assert json.loads(refusal_body(refusal, "/v1/chat/completions")) == {
        "error": {
            "message": "Why.",
            "type": refusal.kind,
            "param": None,
            "code": refusal.code,
        },
    }
    assert json.loads(refusal_body(refusal, "/api/chat"))["error"] == "Why."
    answer = json.loads(refusal_body(refusal, "/v1/messages"))
    assert answer["type"] == "error"
    assert answer["error"]["message"] == "Why."
    timeout = refusal.status == 408
    assert answer["error"]["type"] == ("timeout_error" if timeout else "invalid_request_error")
