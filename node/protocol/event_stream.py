"""Server-sent events as both router and agent write them: the framing, and the events and comments
without content."""

CONTENT_TYPE = b"text/event-stream"
KEEP_ALIVE = b": keep-alive\n\n"
"""Sent in an idle interval: a comment, which clients ignore."""
ANTHROPIC_PING = b'event: ping\ndata: {"type": "ping"}\n\n'
"""Sent in an idle interval of Anthropic's dialect, byte for byte as Anthropic's API sends it."""
DONE = b"data: [DONE]\n\n"
"""The last event of a chat or completion."""


def event(data: bytes, name: str = "") -> bytes:
    """Returns an event with this data, which must be a single line; without `name`, it has no
    event type."""
    return event_head(name) + data + b"\n\n"


def event_head(name: str = "") -> bytes:
    """Returns the bytes of an event before its data."""
    return b"event: %b\ndata: " % name.encode() if name else b"data: "
