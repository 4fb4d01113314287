"""Headers of error responses."""

import pytest

from node.errors import DoesNotFit, MethodNotAllowed, NodeError, Unauthorized
from router.errors import PaidBudgetUsed, RouterError
from serving.http.http_error import HttpError
from serving.http.refusals import HeadTooLong, TooManyConnections


@pytest.mark.parametrize(
    ("error", "headers"),
    [
        (NodeError(), {}),
        (RouterError(retry_after_s=7), {b"retry-after": b"7"}),
        (DoesNotFit(), {b"retry-after": b"30"}),
        (TooManyConnections(), {b"retry-after": b"5"}),
        (HeadTooLong(), {b"x-should-retry": b"false"}),
        (
            PaidBudgetUsed(retry_after_s=9),
            {b"retry-after": b"9", b"x-should-retry": b"false"},
        ),
        (
            MethodNotAllowed.at("/v1/models", ["GET", "POST"]),
            {b"x-should-retry": b"false", b"allow": b"GET, POST, HEAD"},
        ),
        (
            Unauthorized(),
            {b"x-should-retry": b"false", b"www-authenticate": b"Bearer"},
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, HttpError) else None,
)
def test_the_headers_follow_from_the_error(error: HttpError, headers: dict[bytes, bytes]) -> None:
    assert dict(error.headers()) == headers
