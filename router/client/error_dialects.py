"""How the router's own errors are said in the dialect of the path that was asked. Whole answers and
events as JSON; `router.client.sse` makes them events."""

from enum import StrEnum

from node.protocol.error_envelopes import anthropic_envelope, response_error
from node.protocol.overflow import ANTHROPIC_WORDS
from router.errors import ContextTooLong, RouterError
from serving.http.refusals import Refusal


class Dialect(StrEnum):
    OPENAI = "openai"
    RESPONSES = "responses"
    """OpenAI's, with other events."""
    ANTHROPIC = "anthropic"


def dialect_of(path: str) -> Dialect:
    """What the callers of a path speak."""
    if path == "/v1/messages" or path.startswith("/v1/messages/"):
        return Dialect.ANTHROPIC
    if path == "/v1/responses" or path.startswith("/v1/responses/"):
        return Dialect.RESPONSES
    return Dialect.OPENAI


def id_headers(request_id: str, dialect: Dialect) -> list[tuple[bytes, bytes]]:
    """The id of a request under the names that the dialect's clients look for."""
    value = request_id.encode()
    headers = [(b"x-request-id", value)]
    if dialect is Dialect.ANTHROPIC:
        headers.append((b"request-id", value))
    return headers


def error_body(error: RouterError, dialect: Dialect) -> bytes:
    """The body of an HTTP error."""
    return _anthropic_body(error) if dialect is Dialect.ANTHROPIC else error.body()


def refusal_body(refusal: Refusal, path: str) -> bytes:
    """What a caller is told whose request nobody has seen."""
    error = RouterError(refusal.message)
    error.status, error.code, error.kind = refusal.status, refusal.code, refusal.kind
    return error_body(error, dialect_of(path))


def event_body(error: RouterError, dialect: Dialect, sequence_number: int = 0) -> bytes:
    """What an error within a stream says. `sequence_number` is the event's own, where the dialect
    counts events."""
    if dialect is Dialect.RESPONSES:
        told = {"code": error.code, "message": error.message, "param": error.param}
        return response_error(error.kind, {**told, **error.standing()}, sequence_number)
    return error_body(error, dialect)


def _anthropic_body(error: RouterError) -> bytes:
    message: str | None = None
    if isinstance(error, ContextTooLong):
        overflow = error.overflow
        own_words = f"{ANTHROPIC_WORDS}: {error.message}"
        message = own_words if overflow is None else overflow.anthropic
    more = error.standing()
    return anthropic_envelope(error, error.request_id or "", message=message, more=more)
