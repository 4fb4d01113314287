from __future__ import annotations

import json

import pytest

from router.answered import MAX_TOLD_CHARS, enveloped
from router.dialects import Dialect

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
