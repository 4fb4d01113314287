"""Encodes what the router itself writes into event streams: comments, pings and errors; a
`Framing`. Nothing else in the router writes server-sent events; `router.upstream.foreign` and
`router.upstream.foreign_events` also read them."""

import re
from typing import Any

import msgspec

from node.protocol import comments
from node.protocol.error_envelopes import response_error
from node.protocol.errors import BROKEN_CALL
from node.protocol.event_stream import ANTHROPIC_PING, KEEP_ALIVE, event
from node.protocol.paths import ApiDialect
from router.client.error_dialects import event_body
from router.client.framing import Loading
from router.client.overflow_messages import MAX_SEARCHED_CHARS, is_overflow, overflow_in
from router.errors import ContextTooLong, RouterError, UnknownModel
from router.types import Queued

MAX_BUFFERED_BYTES = 64 * 1024
"""Longest buffered part of an event; a longer event is relayed in parts."""
MAX_ERROR_BYTES = 1024 * 1024
"""Longest error that is parsed; a longer one is relayed as it is."""
_FILLERS = (b":", b"event: ping", b"event:ping")
_ENDS = (b"\n\n", b"\r\n\r\n")

_SILENCE = re.compile(rb"(?::[^\n]*\n|event:[ ]?ping\r?\ndata:[^\n]*\n|\r?\n)*(?::[^\n]*\Z)?")
"""Matches comments and pings; the last comment may be incomplete."""
_ERROR = re.compile(
    rb"(?:(?::[^\n]*|event:[^\n]*|\r?)\n)*data:[ ]?"
    rb"(\{\s*\"(?:error\"|type\"\s*:\s*\"(?:error|response\.failed)\")[^\r\n]*)"
)
_NUMBER = re.compile(rb'(?<!\\)"sequence_number"\s*:\s*(\d+)')

_ERROR_TYPES = ("error", "response.failed")
"""Types of error events in response streams."""
_TOO_LONG_TYPE = "exceed_context_size_error"
"""Error type of llama.cpp."""
_NO_MODEL = re.compile(r"(?i)\bmodel\b.{0,300}\b(not found|not exist)", re.DOTALL)
"""Error messages of Ollama, vLLM and OpenAI."""

_CALLERS_TYPES = frozenset(("invalid_request_error", "not_found_error", "request_too_large"))
_CALLERS_CODES = frozenset(
    (
        "context_length_exceeded",
        "invalid_value",
        "model_not_found",
        "previous_response_not_found",
        "request_cancelled",
        "unsupported_value",
    )
)
"""Codes in events of response streams, which have no error type."""


class _ErrorFields(msgspec.Struct):
    # Other servers' codes may be numbers.
    message: str | None = None
    type: str | None = None
    param: Any = None
    code: Any = None


class _Failed(msgspec.Struct):
    error: _ErrorFields | None = None


class _Spoken(msgspec.Struct):
    """An error in any dialect, within a stream or as a whole response."""

    type: str | None = None
    error: _ErrorFields | str | None = None
    response: _Failed | str | None = None
    """The failed response within an event."""
    message: str | None = None
    param: Any = None
    code: Any = None


_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_any_length = msgspec.json.Decoder(_Spoken).decode
_BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def _decode_spoken(body: bytes) -> _Spoken:
    """Raises one of `_BROKEN`, also for what is too long to be an error: decoded JSON may take
    thirty times its length in memory."""
    if len(body) > MAX_ERROR_BYTES:
        raise msgspec.DecodeError
    return _decode_any_length(body)


def ping(dialect: ApiDialect, waits_for: Queued | Loading | None = None) -> bytes:
    """Encodes a keep-alive; a comment in it says what the request waits for."""
    comment = _comment(waits_for)
    if dialect is not ApiDialect.ANTHROPIC:
        return comment
    return ANTHROPIC_PING if waits_for is None else comment + ANTHROPIC_PING


def _comment(waits_for: Queued | Loading | None) -> bytes:
    if waits_for is None:
        return KEEP_ALIVE
    if isinstance(waits_for, Queued):
        return b": waiting, position %d, about %.0f s\n\n" % (
            waits_for.position,
            waits_for.wait_s,
        )
    return comments.loading(waits_for.model, waits_for.progress)


def is_keepalive(events: bytes) -> bool:
    """Returns True if the events begin and end with a node's keep-alives."""
    return events.startswith(_FILLERS) and not has_event(events)


def split(data: bytes) -> tuple[bytes, bytes]:
    """Splits data into complete events and the beginning of an incomplete one.

    If only complete events are relayed, an error event can follow at any time.
    """
    if data.endswith(_ENDS):
        return data, b""
    ends = [at + len(end) for end in _ENDS if (at := data.rfind(end)) >= 0]
    cut = max(ends, default=0)
    if len(data) - cut > MAX_BUFFERED_BYTES:
        return data, b""
    return data[:cut], data[cut:]


def has_event(events: bytes) -> bool:
    """Returns True if there is more than leading comments and pings."""
    return _end_of_silence(events) < len(events)


def error_message(body: bytes) -> str:
    """Returns the message of an error in any dialect; empty if it is none."""
    error = _error_of(body)
    return (error.message if error else None) or ""


def has_code(body: bytes, codes: frozenset[str]) -> bool:
    """Returns True if it is an error with one of the codes."""
    error = _error_of(body)
    return error is not None and isinstance(error.code, str) and error.code in codes


def is_too_long(body: bytes) -> bool:
    """Returns True if it is the error for a prompt that exceeds the model's context."""
    error = _error_of(body)
    if error is None:
        return False
    is_coded = error.code == ContextTooLong.code or error.type == _TOO_LONG_TYPE
    return is_coded or is_overflow(error.message or "")


def too_long_error(body: bytes) -> ContextTooLong:
    """Returns that error as the router's own, with the lengths if they are known."""
    message = error_message(body)
    return ContextTooLong(message, overflow=overflow_in(message))


def leading_too_long(events: bytes) -> bytes | None:
    """Returns a too-long error that precedes all content, as the body of a whole response; None if
    there is none."""
    found = _ERROR.match(events, _end_of_silence(events))
    return found[1] if found and is_too_long(found[1]) else None


def is_broken_call(body: bytes) -> bool:
    """Returns True if it is the error for a malformed tool call, which the model produced and not
    its node."""
    return error_message(body).startswith(BROKEN_CALL)


def is_model_missing(body: bytes) -> bool:
    """Returns True if it is the error of a server that does not have the model."""
    error = _error_of(body)
    if error is None:
        return False
    message = (error.message or "")[:MAX_SEARCHED_CHARS]
    return error.code == UnknownModel.code or _NO_MODEL.search(message) is not None


def _error_of(body: bytes) -> _ErrorFields | None:
    try:
        spoken = _decode_spoken(body)
    except _BROKEN:
        return None
    if isinstance(spoken.error, _ErrorFields):
        return spoken.error
    if (failed := _failed_in(spoken)) is not None:
        return failed
    message = spoken.error or spoken.message
    return _ErrorFields(message, None, spoken.param, spoken.code) if message else None


def leading_error(events: bytes) -> bytes | None:
    """Returns an error that precedes all content, as `node_error`."""
    found = _ERROR.match(events, _end_of_silence(events))
    return None if found is None else node_error(found[1])


def leads_with_refusal(events: bytes) -> bool:
    """Returns True if an error that is the request's own fault precedes all content."""
    found = _ERROR.match(events, _end_of_silence(events))
    if found is None or _error_of(found[1]) is None:
        return False
    return node_error(found[1]) is None and not is_broken_call(found[1])


def node_error(error_text: bytes) -> bytes | None:
    """Returns an event's error as the JSON of a whole response; None if the request or the model's
    output is at fault."""
    if is_too_long(error_text) or is_broken_call(error_text):
        return None
    try:
        spoken = _decode_spoken(error_text)
    except _BROKEN:
        return None
    if isinstance(spoken.error, _ErrorFields):
        return None if spoken.error.type in _CALLERS_TYPES else error_text
    if spoken.error is not None:
        # In Ollama's dialect the type is beside the text.
        return None if spoken.type in _CALLERS_TYPES else error_text
    source = _failed_in(spoken) or spoken
    if spoken.type not in _ERROR_TYPES or str(source.code) in _CALLERS_CODES:
        return None
    error = {
        "message": source.message,
        "type": RouterError.kind,
        "param": source.param,
        "code": source.code,
    }
    return msgspec.json.encode({"error": error})


def _failed_in(spoken: _Spoken) -> _ErrorFields | None:
    return spoken.response.error if isinstance(spoken.response, _Failed) else None


def error_event(error: RouterError, dialect: ApiDialect, after: bytes = b"") -> bytes:
    """Encodes the in-band error that ends a stream. `after` is what was sent last, for the sequence
    number."""
    number = 0
    if dialect is ApiDialect.RESPONSES:
        number = max((int(each) + 1 for each in _NUMBER.findall(after)), default=0)
    return _event(event_body(error, dialect, number), dialect)


def late_error(body: bytes, otherwise: RouterError, dialect: ApiDialect) -> bytes:
    """Encodes a node's error response as an event; if it lacks the dialect's envelope, encodes
    `otherwise` instead."""
    known = _event_of_body(body, otherwise, dialect)
    return error_event(otherwise, dialect) if known is None else _event(known, dialect)


def _event_of_body(body: bytes, otherwise: RouterError, dialect: ApiDialect) -> bytes | None:
    try:
        if dialect is ApiDialect.RESPONSES:
            error = _decode_spoken(body).error
            if not isinstance(error, _ErrorFields) or error.message is None:
                return None
            error_fields = {"code": error.code, "message": error.message, "param": error.param}
            return response_error(error.type or otherwise.kind, error_fields, 0)
        fields = _decode_fields(body)
    except _BROKEN:
        return None
    if "error" not in fields or (dialect is ApiDialect.ANTHROPIC and "type" not in fields):
        return None
    return b"".join(body.splitlines())


def fleet_comment(node: str, model: str, cached: bytes = b"", ignored: bytes = b"") -> bytes:
    """Encodes a comment with the node that serves a stream whose head was sent before that was
    known; `cached` and `ignored` are as in the headers `x-fleet-cached-tokens` and
    `x-fleet-ignored`."""
    text = f": fleet node={node} model={model}".encode()
    text += b" cached=" + cached if cached else b""
    return text + (b" ignored=" + ignored if ignored else b"") + b"\n\n"


def _event(body: bytes, dialect: ApiDialect) -> bytes:
    return event(body, "" if dialect is ApiDialect.OPENAI else "error")


def _end_of_silence(events: bytes) -> int:
    found = _SILENCE.match(events)
    return found.end() if found else 0
