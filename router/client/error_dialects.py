"""How the router's own errors are said in the dialect of the path that was asked. Whole answers and
events as JSON; `router.client.sse` makes them events."""

from enum import StrEnum

import msgspec

from node.protocol.errors import anthropic_kind
from node.protocol.overflow import ANTHROPIC_WORDS
from router.errors import ContextTooLong, RouterError
from serving.http.refusals import Refusal


class Dialect(StrEnum):
    OPENAI = "openai"
    RESPONSES = "responses"
    """OpenAI's, with other events."""
    ANTHROPIC = "anthropic"


_encode = msgspec.json.encode


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
        return response_event(error.kind, {**told, **error.standing()}, sequence_number)
    return error_body(error, dialect)


def response_event(kind: str, told: dict[str, object], sequence_number: int) -> bytes:
    """What the error event of a response stream says: `told` twice, since OpenAI's clients look
    for it in the event, and Codex in an `error` within it."""
    numbered = {"sequence_number": sequence_number, "error": {"type": kind, **told}}
    return _encode({"type": "error", **told, **numbered})


def _anthropic_body(error: RouterError) -> bytes:
    kind = anthropic_kind(error.status)
    told = {"type": kind, "message": _anthropic_message(error), **error.standing()}
    body: dict[str, object] = {"type": "error", "error": told}
    if error.request_id:
        body["request_id"] = error.request_id
    return _encode(body)


def _anthropic_message(error: RouterError) -> str:
    message = error.message
    if isinstance(error, ContextTooLong):
        overflow = error.overflow
        return f"{ANTHROPIC_WORDS}: {message}" if overflow is None else overflow.anthropic
    if error.param and error.param not in message:
        return f"{error.param}: {message}"
    return message
