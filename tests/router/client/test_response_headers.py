"""Which headers an answer has."""

import pytest
from msgspec.structs import replace

from node.protocol.paths import ApiDialect
from router.client import response_headers
from router.client.response_headers import NodeHead
from tests.router.conftest import lease, ticket

UPSTREAM = {
    b"content-type": b"text/event-stream",
    b"content-length": b"7",
    b"server": b"x",
    b"x-fleet-cached-tokens": b"30",
    b"x-fleet-prompt-tokens": b"40",
    b"x-fleet-ignored": b"tools[8]",
    b"warning": b'299 mlx-fleet "tools[8]"',
}


def test_of_a_node_s_head_only_what_is_the_caller_s_business_is_passed_on() -> None:
    request = ticket()
    granted = replace(lease(), predicted_tokens=20, granted_s=request.arrived_s + 0.25)
    headers = dict(
        response_headers.relayed_headers(
            request, granted, "studio", NodeHead(200, UPSTREAM), ApiDialect.OPENAI
        )
    )
    request_id = headers.pop(b"x-request-id")
    assert request_id == response_headers.id_on_node(granted).encode()
    assert headers == {
        b"content-type": b"text/event-stream",
        b"x-fleet-model": request.model.encode(),
        b"x-fleet-node": b"studio",
        b"x-fleet-queue-ms": b"250.0",
        b"x-fleet-cached-tokens": b"20/30",
        b"x-fleet-prompt-tokens": b"40",
        b"x-fleet-ignored": b"tools[8]",
        b"warning": b'299 mlx-fleet "tools[8]"',
    }


@pytest.mark.parametrize(
    ("status", "upstream", "expected"),
    [
        (200, {}, None),
        (400, {}, b"false"),
        (404, {}, b"false"),
        (409, {}, None),
        (409, {b"x-should-retry": b"false"}, b"false"),
        (429, {}, None),
        (400, {b"x-should-retry": b"true"}, b"true"),
        (503, {}, None),
    ],
)
def test_whether_to_retry_is_what_the_node_sends_or_else_follows_from_its_status(
    status: int, upstream: dict[bytes, bytes], expected: bytes | None
) -> None:
    head = NodeHead(status, upstream)
    headers = response_headers.relayed_headers(ticket(), lease(), "studio", head, ApiDialect.OPENAI)
    values = [value for name, value in headers if name == b"x-should-retry"]
    assert values == ([] if expected is None else [expected])


def test_where_a_node_reports_no_cached_tokens_there_is_no_header_of_them() -> None:
    for upstream in (
        {},
        {b"x-fleet-cached-tokens": b"many"},
        {b"x-fleet-cached-tokens": b"9" * 99},
    ):
        assert response_headers.cached_tokens(lease(), upstream) == b""


@pytest.mark.parametrize(
    ("prompt", "shown"), [(b"2", b"1/1"), (b"0", b"0/1"), (b"21", b"20/1"), (b"999", b"20/1")]
)
def test_no_more_is_predicted_than_the_prompt_has_that_could_be_cached(
    prompt: bytes, shown: bytes
) -> None:
    granted = replace(lease(), predicted_tokens=20)
    upstream = {b"x-fleet-cached-tokens": b"1", b"x-fleet-prompt-tokens": prompt}
    assert response_headers.cached_tokens(granted, upstream) == shown


def test_a_head_that_the_router_sends_first_names_no_node() -> None:
    headers = dict(response_headers.early_headers(ticket(), ApiDialect.ANTHROPIC))
    assert headers[b"content-type"].startswith(b"text/event-stream")
    assert headers[b"request-id"] == headers[b"x-request-id"] == ticket().request_id.encode()
    assert b"x-fleet-node" not in headers
