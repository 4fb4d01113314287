from __future__ import annotations

import pytest

from node.protocol.paths import ApiDialect
from router.limits.account import Remaining, now_of
from router.limits.headers import limit_headers


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, b"0ms"),
        (0.0121, b"13ms"),
        (1.0, b"1s"),
        (59.2, b"1m0s"),
        (360.0, b"6m0s"),
        (7265.0, b"2h1m5s"),
    ],
)
def test_a_reset_is_a_duration_as_openai_spells_it(seconds: float, text: bytes) -> None:
    state = Remaining(1, 0, seconds)
    headers = dict(limit_headers(ApiDialect.OPENAI, state, None, now_of(0.0, 0.0)))
    assert headers[b"x-ratelimit-reset-requests"] == text


def test_there_are_none_without_limits() -> None:
    assert limit_headers(ApiDialect.ANTHROPIC, None, None, now_of(0.0, 0.0)) == ()
