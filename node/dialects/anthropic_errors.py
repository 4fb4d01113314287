"""Anthropic's error envelope."""

import msgspec

from node.errors import NodeError, Unsupported
from node.protocol.errors import anthropic_kind

_DETAILS: dict[str, dict[str, object]] = {
    # Where an SDK reads this, its tool runner goes on with the whole history in each turn.
    "thread": {"error_code": "thread_unsupported_request", "unsupported": ["thread"]},
}
"""What more is said where a field is not supported."""

_encode = msgspec.json.Encoder().encode


def error_body(error: NodeError, request_id: str = "") -> bytes:
    """The error as JSON. The envelope has no place for the field at fault, so the message names
    it; `request_id` is left out where it is empty."""
    message = error.message
    if error.param and error.param not in message:
        message = f"{error.param}: {message}"
    told: dict[str, object] = {"type": anthropic_kind(error.status), "message": message}
    if isinstance(error, Unsupported) and error.param in _DETAILS:
        told["details"] = _DETAILS[error.param]
    body: dict[str, object] = {"type": "error", "error": told}
    if request_id:
        body["request_id"] = request_id
    return _encode(body)
