"""What the router itself writes into an event stream: comments and errors. Nothing else of the
router reads or writes server-sent events."""

import re

import msgspec

from router.errors import RouterError

PING = b": keep-alive\n\n"
MAX_HELD_BYTES = 64 * 1024
"""A longer event is passed on in parts."""
_ENDS = (b"\n\n", b"\r\n\r\n")

_LEADING_ERROR = re.compile(
    rb"(?:(?::[^\n]*|event:[^\n]*|\r?)\n)*data:[ ]?(\{\s*\"error\"[^\r\n]*)"
)
"""An error as the first event, behind comments at most."""


class _ErrorFields(msgspec.Struct):
    type: str | None = None


class _ErrorBody(msgspec.Struct):
    error: _ErrorFields | str


_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_error = msgspec.json.Decoder(_ErrorBody).decode


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


def has_event(events: bytes) -> bool:
    """Whether there is more than leading comments."""
    return not events.startswith(b":") or b"\ndata:" in events


def leading_error(events: bytes) -> bytes | None:
    """The JSON of an error that comes before any content, unless the request itself is at fault."""
    found = _LEADING_ERROR.match(events)
    if found is None:
        return None
    try:
        error = _decode_error(found[1]).error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    callers = isinstance(error, _ErrorFields) and error.type == "invalid_request_error"
    return None if callers else found[1]


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
