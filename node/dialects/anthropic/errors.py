"""The agent's errors in Anthropic's envelope."""

from node.errors import ContextTooLong, NodeError, Unsupported
from node.protocol.error_envelopes import anthropic_envelope

_DETAILS: dict[str, dict[str, object]] = {
    # SDKs that read this make their tool runner send the whole history in each turn.
    "thread": {"error_code": "thread_unsupported_request", "unsupported": ["thread"]},
}
"""Members added to the error of an unsupported field, by field."""


def error_body(error: NodeError, request_id: str = "") -> bytes:
    """Returns the JSON of an error, without `request_id` if that is empty."""
    more: dict[str, object] = {}
    if isinstance(error, Unsupported) and error.param in _DETAILS:
        more["details"] = _DETAILS[error.param]
    message = error.overflow.anthropic if isinstance(error, ContextTooLong) else None
    return anthropic_envelope(error, request_id, message=message, more=more)
