"""Reads and writes streams of JSON lines, as Ollama's clients read them; a `Framing`. Spaces before
a line are keep-alives."""

import msgspec

from node.protocol.ollama.json_lines import FILLER
from node.protocol.paths import ApiDialect
from router.client import sse
from router.client.error_dialects import event_body
from router.client.framing import Loading
from router.errors import RouterError
from router.types import Queued

_END = b"\n"
_ERROR = b'{"error"'
_BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def ping(_dialect: ApiDialect, _waits_for: Queued | Loading | None = None) -> bytes:
    """Encodes a keep-alive: there is no room in it for what the request waits for."""
    return FILLER


def is_keepalive(events: bytes) -> bool:
    """Returns True if there are only keep-alives."""
    return not has_event(events)


def split(data: bytes) -> tuple[bytes, bytes]:
    """Splits data into complete lines, with the keep-alives behind them, and the beginning of an
    incomplete line."""
    cut = data.rfind(_END) + 1
    rest = data[cut:]
    if len(rest) > sse.MAX_BUFFERED_BYTES or not rest.strip(FILLER):
        return data, b""
    return data[:cut], rest


def has_event(events: bytes) -> bool:
    """Returns True if there is more than keep-alives."""
    return bool(events) and not events.isspace()


def leading_error(events: bytes) -> bytes | None:
    """Returns an error that precedes all content; None if the request is at fault."""
    error = _leading(events)
    return None if error is None else sse.node_error(error)


def leading_too_long(events: bytes) -> bytes | None:
    """Returns a too-long error that precedes all content; None if there is none."""
    error = _leading(events)
    return error if error is not None and sse.is_too_long(error) else None


def leads_with_refusal(events: bytes) -> bool:
    """Returns True if an error that is the request's own fault precedes all content."""
    error = _leading(events)
    if error is None:
        return False
    return sse.node_error(error) is None and not sse.is_broken_call(error)


def error_event(error: RouterError, dialect: ApiDialect, after: bytes = b"") -> bytes:
    """Encodes the error that ends a stream, on a line of its own."""
    is_within_line = bool(after) and not after.endswith((_END, FILLER))
    return _END * is_within_line + event_body(error, dialect) + _END


def late_error(body: bytes, otherwise: RouterError, dialect: ApiDialect) -> bytes:
    """Encodes a node's error response as a line; if it is none, encodes `otherwise` instead."""
    try:
        is_error = "error" in _decode_fields(body)
    except _BROKEN:
        is_error = False
    return b"".join(body.splitlines()) + _END if is_error else error_event(otherwise, dialect)


def fleet_comment(_node: str, _model: str, _cached: bytes = b"", _ignored: bytes = b"") -> bytes:
    """Returns nothing: there are no comments."""
    return b""


def _leading(events: bytes) -> bytes | None:
    """Returns the first line if it is an error."""
    line = events.lstrip().partition(_END)[0]
    return line if line.startswith(_ERROR) else None
