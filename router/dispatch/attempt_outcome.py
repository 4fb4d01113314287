"""Classifies how a node's response ends an attempt."""

from dataclasses import dataclass

from node.protocol.overflow import ANTHROPIC_WORDS
from node.protocol.paths import ApiDialect
from router.client import sse
from router.client.error_dialects import error_body
from router.dispatch.dispatcher import EndedByAdmin, NotSent
from router.errors import NodeFailed, NodeOutdated, NodeRefused, RouterError, WrongNodeToken
from router.records.outcomes import OUTCOME_NODE_FAILED, OUTCOME_REFUSED, OUTCOME_SERVED
from router.types import Failure
from serving.http.http_error import HEADER_RETRY_AFTER

MAX_EXCERPT_CHARS = 500
"""Longest excerpt of a server's error page."""
_FAILURE_CODES = frozenset(("engine_died", "engine_unresponsive", "load_failed"))
"""Error codes of agents that have failed, although they send `retry-after`."""


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    """A node's error that has not been relayed, since another node may serve the request."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes

    @property
    def retry_after_s(self) -> int | None:
        value = self.headers.get(HEADER_RETRY_AFTER, b"")
        return int(value) if value.isdigit() and len(value) < 9 else None

    @property
    def is_busy(self) -> bool:
        """True if the node has not failed, but cannot take the request at this time."""
        if self.status != 503 or self.retry_after_s is None:
            return self.status < 500
        return not sse.has_code(self.body, _FAILURE_CODES)


_SENT_BY_NODE = (ErrorResponse, NodeRefused, WrongNodeToken)
"""Errors that the node itself sent; it would send them again."""


def failure_kind(failure: RouterError | ErrorResponse) -> Failure:
    if isinstance(failure, NotSent):
        return Failure.UNSENT
    if isinstance(failure, EndedByAdmin | NodeOutdated) or (
        isinstance(failure, ErrorResponse) and failure.is_busy
    ):
        return Failure.BUSY
    return Failure.ERROR_RESPONSE if isinstance(failure, _SENT_BY_NODE) else Failure.BROKEN


def outcome_of(status: int, body: bytes = b"") -> str:
    """Returns the outcome of a request whose response was relayed whole; `body` is empty if it was
    streamed."""
    if status == 200:
        return OUTCOME_SERVED
    if sse.is_broken_call(body):
        return OUTCOME_SERVED
    return OUTCOME_NODE_FAILED if status >= 500 else OUTCOME_REFUSED


def respelled_body(name: str, status: int, body: bytes, dialect: ApiDialect) -> bytes | None:
    """Returns a server's error in the dialect's envelope; None if clients can read it as it is."""
    if status < 400 or dialect is ApiDialect.OPENAI:
        return None
    if _needs_respelling(body, dialect):
        return error_body(sse.too_long_error(body), dialect)
    message = sse.error_message(body)
    if message and dialect is not ApiDialect.OLLAMA:
        return None
    words = " ".join(body.decode(errors="replace").split())[:MAX_EXCERPT_CHARS]
    kind = NodeFailed if status >= 500 else NodeRefused
    sentence = f"The node {name} responded with status {status}"
    error = kind(message or (f"{sentence}: {words}" if words else f"{sentence}."))
    error.set_status(status)
    return error_body(error, dialect)


def respelled_event(events: bytes, dialect: ApiDialect) -> bytes | None:
    """Returns an error that begins a stream as an event that the dialect's clients recognize; None
    if there is none, or if they do so already."""
    body = sse.leading_too_long(events)
    if body is None or not _needs_respelling(body, dialect):
        return None
    return sse.error_event(sse.too_long_error(body), dialect)


def _needs_respelling(body: bytes, dialect: ApiDialect) -> bool:
    """Returns True if the error says that the prompt is too long, in words that the dialect's
    clients do not recognize."""
    if dialect is not ApiDialect.ANTHROPIC or not sse.is_too_long(body):
        return False
    return not sse.error_message(body).startswith(ANTHROPIC_WORDS)
