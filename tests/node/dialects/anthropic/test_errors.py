"""Errors have Anthropic's envelope."""

import json

import pytest

from node.dialects.anthropic.errors import error_body
from node.errors import BadRequest, ContextTooLong, NodeError
from node.protocol.overflow import Overflow


class _Failure(NodeError):
    """It failed."""


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
        (529, "overloaded_error"),
    ],
)
def test_the_status_names_the_kind(status: int, kind: str) -> None:
    error = _Failure()
    error.status = status
    assert json.loads(error_body(error, "req_1")) == {
        "type": "error",
        "error": {"type": kind, "message": "It failed."},
        "request_id": "req_1",
    }


def test_the_message_names_the_field_at_fault() -> None:
    named = json.loads(error_body(BadRequest("It is wrong.", param="top_k")))
    assert named["error"]["message"] == "top_k: It is wrong."
    again = json.loads(error_body(BadRequest("top_k is wrong.", param="top_k")))
    assert again["error"]["message"] == "top_k is wrong."


def test_a_prompt_that_is_too_long_is_reported_in_anthropic_s_words_and_nothing_else() -> None:
    error = ContextTooLong(Overflow(9, 8), "It is too long.", param="messages")
    assert json.loads(error_body(error)) == {
        "type": "error",
        "error": {
            "type": "invalid_request_error",
            "message": "prompt is too long: 9 tokens > 7 maximum",
        },
    }


def test_without_an_id_none_is_sent() -> None:
    assert "request_id" not in json.loads(error_body(_Failure()))
