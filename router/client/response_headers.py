"""The headers of answers: what of a node's head its caller sees, and what the router adds."""

from typing import NamedTuple

from node.protocol import errors
from node.protocol.ids import client_id
from node.protocol.messages import (
    HEADER_CACHED_TOKENS,
    HEADER_IGNORED,
    HEADER_PROMPT_TOKENS,
)
from router.client.error_dialects import Dialect, id_headers
from router.types import Lease, Ticket

HEADER_CACHED = HEADER_CACHED_TOKENS.encode()
HEADER_PROMPT = HEADER_PROMPT_TOKENS.encode()
HEADER_RETRY_AFTER = b"retry-after"
HEADER_SHOULD_RETRY = errors.HEADER_SHOULD_RETRY.encode()
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
"""No length: an in-band error may make a stream longer than its node has promised."""
_MAX_DIGITS = 12
JSON_HEADERS = {b"content-type": b"application/json"}
_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
]

Headers = list[tuple[bytes, bytes]]


class NodeHead(NamedTuple):
    """What a node's answer begins with."""

    status: int
    headers: dict[bytes, bytes]


def of_silence(ticket: Ticket, dialect: Dialect) -> Headers:
    """Of a stream that the router begins before a node does."""
    return _STREAM_HEADERS + _of_fleet(ticket, ticket.request_id, dialect)


def of_node(
    ticket: Ticket, lease: Lease, node_name: str, head: NodeHead, dialect: Dialect
) -> Headers:
    """Of an answer that a node has begun, with those of the node's own that are passed on."""
    status, upstream = head
    headers = [(name, upstream[name]) for name in PASSED_HEADERS if name in upstream]
    # Other servers seldom tell how long to wait with a 429.
    if HEADER_SHOULD_RETRY not in upstream and errors.is_final(status, has_retry_after=True):
        headers.append((HEADER_SHOULD_RETRY, b"false"))
    headers += _of_fleet(ticket, id_on_node(lease), dialect)
    headers.append((b"x-fleet-node", node_name.encode()))
    queue_ms = max(0.0, lease.granted_s - ticket.arrived_s) * 1e3
    headers.append((b"x-fleet-queue-ms", b"%.1f" % queue_ms))
    if told := cached(lease, upstream):
        headers.append((HEADER_CACHED, told))
    return headers


def id_on_node(lease: Lease) -> str:
    """The request's id as its caller sees it: it names the node."""
    return client_id("req_", lease.node_id, lease.node_request_id)


def cached(lease: Lease, upstream: dict[bytes, bytes]) -> bytes:
    """Cached tokens as predicted here and as its node told; empty where that tells nothing."""
    told = _count(upstream, HEADER_CACHED)
    if told is None:
        return b""
    predicted, prompt_tokens = lease.predicted_tokens, _count(upstream, HEADER_PROMPT)
    if prompt_tokens is not None:
        # What is still being prefilled is estimated by its bytes; a prompt's last token is
        # computed even where all of it is stored.
        predicted = min(predicted, max(0, prompt_tokens - 1))
    return b"%d/%d" % (predicted, told)


def _count(upstream: dict[bytes, bytes], header: bytes) -> int | None:
    value = upstream.get(header, b"")
    return int(value) if value.isdigit() and len(value) <= _MAX_DIGITS else None


def _of_fleet(ticket: Ticket, request_id: str, dialect: Dialect) -> Headers:
    return [
        *id_headers(request_id, dialect),
        (b"x-fleet-model", ticket.model.encode("utf-8", "replace")),
    ]
