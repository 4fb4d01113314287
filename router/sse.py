"""What the router itself writes into an event stream: comments and errors. Nothing else of the
router reads or writes server-sent events."""

import msgspec

from router.errors import RouterError

PING = b": keep-alive\n\n"
MAX_HELD_BYTES = 64 * 1024
"""A longer event is passed on in parts."""
_ENDS = (b"\n\n", b"\r\n\r\n")

_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def split(data: bytes) -> tuple[bytes, bytes]:
    """The whole events, and the beginning of one whose rest has not come.

    Whoever passes on whole events only may end the stream with one of his own at any time.
    """
    if data.endswith(_ENDS):
        return data, b""
    ends = [at + len(end) for end in _ENDS if (at := data.rfind(end)) >= 0]
    cut = max(ends, default=0)
    if len(data) - cut > MAX_HELD_BYTES:
        return data, b""
    return data[:cut], data[cut:]


def has_content(events: bytes) -> bool:
    """Whether there is more than leading comments."""
    return not events.startswith(b":") or b"\ndata:" in events


def error_event(error: RouterError) -> bytes:
    """The in-band error of a stream that has begun; no `[DONE]` follows it."""
    return b"data: " + error.body() + b"\n\n"


def late_error(body: bytes, otherwise: RouterError) -> bytes:
    """A node's error answer as an event, or `otherwise` where it is not in OpenAI's envelope."""
    try:
        known = "error" in _decode_fields(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        known = False
    return b"data: " + b"".join(body.splitlines()) + b"\n\n" if known else error_event(otherwise)


def fleet_comment(node: str, model: str) -> bytes:
    """Who served a stream whose head had to go out before that was known."""
    return f": fleet node={node} model={model}\n\n".encode()
