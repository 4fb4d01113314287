"""Anthropic's error envelope."""

import msgspec

from node.errors import ContextTooLong, NodeError, Unsupported
from node.protocol.errors import anthropic_kind

_DETAILS: dict[str, dict[str, object]] = {
    # SDKs that read this make their tool runner send the whole history in each turn.
    "thread": {"error_code": "thread_unsupported_request", "unsupported": ["thread"]},
}
"""Members added to the error of an unsupported field, by field."""

_encode = msgspec.json.Encoder().encode


def error_body(error: NodeError, request_id: str = "") -> bytes:
    """Returns the JSON of an error, without `request_id` if that is empty."""
    told: dict[str, object] = {"type": anthropic_kind(error.status), "message": _message(error)}
    if isinstance(error, Unsupported) and error.param in _DETAILS:
        told["details"] = _DETAILS[error.param]
    body: dict[str, object] = {"type": "error", "error": told}
    if request_id:
        body["request_id"] = request_id
    return _encode(body)


def _message(error: NodeError) -> str:
    """Returns the error's message. The envelope has no member for the field at fault, so the
    message names it."""
    if isinstance(error, ContextTooLong):
        return error.overflow.anthropic
    if error.param and error.param not in error.message:
        return f"{error.param}: {error.message}"
    return error.message
