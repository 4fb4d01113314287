"""Headers of responses: the node's headers that are relayed, and those that the router adds."""

from typing import NamedTuple

from node.protocol import errors
from node.protocol.headers import HEADER_CACHED_TOKENS, HEADER_IGNORED, HEADER_PROMPT_TOKENS
from node.protocol.ids import client_id
from node.protocol.ollama.json_lines import CONTENT_TYPE
from node.protocol.paths import ApiDialect
from router.client.error_dialects import id_headers
from router.types import Lease, Ticket
from serving.http.http_error import HEADER_RETRY_AFTER, HEADER_SHOULD_RETRY

HEADER_CACHED = HEADER_CACHED_TOKENS.encode()
HEADER_PROMPT = HEADER_PROMPT_TOKENS.encode()
IGNORED = HEADER_IGNORED.encode()
PASSED_HEADERS = (
    b"content-type",
    b"cache-control",
    HEADER_RETRY_AFTER,
    HEADER_SHOULD_RETRY,
    HEADER_PROMPT,
    IGNORED,
    b"warning",
)
"""Without `content-length`, since an in-band error may make a stream longer than its node has
announced."""
_MAX_DIGITS = 12
JSON_HEADERS = {b"content-type": b"application/json"}
_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
]
_LINES_HEADERS = [(b"content-type", CONTENT_TYPE), (b"cache-control", b"no-cache")]

Headers = list[tuple[bytes, bytes]]


class NodeHead(NamedTuple):
    """Status and headers of a node's response."""

    status: int
    headers: dict[bytes, bytes]


def early_headers(ticket: Ticket, dialect: ApiDialect) -> Headers:
    """Returns the headers of a stream that the router begins before a node responds."""
    own = _LINES_HEADERS if dialect is ApiDialect.OLLAMA else _STREAM_HEADERS
    return own + _fleet_headers(ticket, ticket.request_id, dialect)


def relayed_headers(
    ticket: Ticket, lease: Lease, node_name: str, head: NodeHead, dialect: ApiDialect
) -> Headers:
    """Returns the headers of a node's response: the relayed ones and the router's own."""
    status, upstream = head
    headers = [(name, upstream[name]) for name in PASSED_HEADERS if name in upstream]
    # Third-party servers seldom send `retry-after` with a 429.
    if HEADER_SHOULD_RETRY not in upstream and errors.is_final(status, has_retry_after=True):
        headers.append((HEADER_SHOULD_RETRY, b"false"))
    headers += _fleet_headers(ticket, id_on_node(lease), dialect)
    headers.append((b"x-fleet-node", node_name.encode()))
    queue_ms = max(0.0, lease.granted_s - ticket.arrived_s) * 1e3
    headers.append((b"x-fleet-queue-ms", b"%.1f" % queue_ms))
    if reported := cached_tokens(lease, upstream):
        headers.append((HEADER_CACHED, reported))
    return headers


def id_on_node(lease: Lease) -> str:
    """Returns the request id as its client sees it; it names the node."""
    return client_id("req_", lease.node_id, lease.node_request_id)


def cached_tokens(lease: Lease, upstream: dict[bytes, bytes]) -> bytes:
    """Returns cached tokens as "PREDICTED/REPORTED"; empty if the node reports none."""
    reported = _count(upstream, HEADER_CACHED)
    if reported is None:
        return b""
    predicted, prompt_tokens = lease.predicted_tokens, _count(upstream, HEADER_PROMPT)
    if prompt_tokens is not None:
        # Tokens still being prefilled were estimated from bytes, and a prompt's last token is
        # computed even if all of it is cached; so the prediction is capped.
        predicted = min(predicted, max(0, prompt_tokens - 1))
    return b"%d/%d" % (predicted, reported)


def _count(upstream: dict[bytes, bytes], header: bytes) -> int | None:
    value = upstream.get(header, b"")
    return int(value) if value.isdigit() and len(value) <= _MAX_DIGITS else None


def _fleet_headers(ticket: Ticket, request_id: str, dialect: ApiDialect) -> Headers:
    return [
        *id_headers(request_id, dialect),
        (b"x-fleet-model", ticket.model.encode("utf-8", "replace")),
        *ticket.limit_headers,
    ]
