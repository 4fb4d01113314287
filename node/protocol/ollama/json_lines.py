"""Bytes that router and agent write alike for Ollama's clients: streams of one JSON object per
line, and the response to a request without a prompt."""

from datetime import UTC, datetime

import msgspec

CONTENT_TYPE = b"application/x-ndjson"
FILLER = b" "
"""Sent in an idle interval. There are no comments, and clients parse every line, even an empty one;
but JSON may begin with spaces, so a space belongs to the next line."""


def residency_body(model: str, *, is_chat: bool, reason: str) -> bytes:
    """Returns the response to a request that only loads or unloads a model."""
    text = {"message": {"role": "assistant", "content": ""}} if is_chat else {"response": ""}
    start = {"model": model, "created_at": spelled(datetime.now(UTC))}
    return msgspec.json.encode({**start, **text, "done": True, "done_reason": reason})


def spelled(at: datetime) -> str:
    """Returns a time in UTC as Ollama spells it."""
    return f"{at:%Y-%m-%dT%H:%M:%S.%fZ}"
