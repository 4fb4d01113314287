"""Encodes the router's errors in the dialect of the requested path, as whole responses and as event
data; `router.client.sse` makes events of the latter."""

from node.protocol.error_envelopes import anthropic_envelope, ollama_envelope, response_error
from node.protocol.overflow import ANTHROPIC_WORDS
from node.protocol.paths import ApiDialect, dialect_of
from router.errors import ContextTooLong, RouterError
from serving.http.refusals import Refusal


def id_headers(request_id: str, dialect: ApiDialect) -> list[tuple[bytes, bytes]]:
    """Returns the request id under the header names that the dialect's clients expect."""
    value = request_id.encode()
    headers = [(b"x-request-id", value)]
    if dialect is ApiDialect.ANTHROPIC:
        headers.append((b"request-id", value))
    return headers


def error_body(error: RouterError, dialect: ApiDialect) -> bytes:
    """Encodes the body of an HTTP error."""
    if dialect is ApiDialect.OLLAMA:
        return ollama_envelope(error, error.standing())
    return _anthropic_body(error) if dialect is ApiDialect.ANTHROPIC else error.body()


def refusal_body(refusal: Refusal, path: str) -> bytes:
    """Encodes the error for a request that was rejected before any handler saw it."""
    error = RouterError(refusal.message)
    error.set_status(refusal.status, refusal.code, refusal.kind)
    return error_body(error, dialect_of(path))


def event_body(error: RouterError, dialect: ApiDialect, sequence_number: int = 0) -> bytes:
    """Encodes the data of an in-band error. `sequence_number` is that of the event, in dialects
    that number events."""
    if dialect is ApiDialect.RESPONSES:
        fields = {"code": error.code, "message": error.message, "param": error.param}
        return response_error(error.kind, {**fields, **error.standing()}, sequence_number)
    return error_body(error, dialect)


def _anthropic_body(error: RouterError) -> bytes:
    message: str | None = None
    if isinstance(error, ContextTooLong):
        overflow = error.overflow
        own_words = f"{ANTHROPIC_WORDS}: {error.message}"
        message = own_words if overflow is None else overflow.anthropic
    more = error.standing()
    return anthropic_envelope(error, error.request_id or "", message=message, more=more)
