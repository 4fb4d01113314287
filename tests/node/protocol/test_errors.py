"""Tests the meanings of HTTP statuses to clients."""

import pytest

from node.protocol.errors import is_final


@pytest.mark.parametrize("has_retry_after", [False, True])
@pytest.mark.parametrize(
    ("status", "final"),
    [
        (200, False),
        (400, True),
        (401, True),
        (403, True),
        (404, True),
        (405, True),
        (408, False),
        (409, False),
        (413, True),
        (422, True),
        (431, True),
        (500, False),
        (502, False),
        (503, False),
    ],
)
def test_a_request_that_is_at_fault_itself_is_not_worth_another_try(
    status: int, final: bool, has_retry_after: bool
) -> None:
    assert is_final(status, has_retry_after=has_retry_after) is final


def test_a_rejection_without_a_retry_time_is_final() -> None:
    assert is_final(429, has_retry_after=False)
    assert not is_final(429, has_retry_after=True)
