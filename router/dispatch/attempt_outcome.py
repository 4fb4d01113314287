"""How a node's answer ends an attempt."""

from node.protocol.overflow import ANTHROPIC_WORDS
from router.client import sse
from router.client.error_dialects import Dialect, error_body
from router.client.response_headers import HEADER_RETRY_AFTER
from router.dispatch.dispatcher import Cut, NotSent
from router.errors import NodeFailed, NodeRefused, RouterError, WrongNodeToken
from router.records.ledger import OUTCOME_NODE_FAILED, OUTCOME_REFUSED, OUTCOME_SERVED
from router.types import Failure

MAX_TOLD_CHARS = 500
"""Of an error page."""
_FAILURE_CODES = frozenset(("engine_died", "engine_silent", "load_failed"))
"""Of agents that have failed though they tell when to try again."""


class Answered(RouterError):
    """The node answered with an error that another node may not have."""

    def __init__(self, status: int, headers: dict[bytes, bytes], body: bytes) -> None:
        super().__init__()
        self.status = status
        self.headers = headers
        self.answer = body
        value = headers.get(HEADER_RETRY_AFTER, b"")
        self.retry_after_s = int(value) if value.isdigit() and len(value) < 9 else None

    @property
    def is_turned_away(self) -> bool:
        """Whether the node has not failed: it cannot take the request now."""
        if self.status != 503 or self.retry_after_s is None:
            return self.status < 500
        return not sse.has_code(self.answer, _FAILURE_CODES)


_WORDS = (Answered, NodeRefused, WrongNodeToken)
"""Failures that a node told; it would tell them again."""


def how(failure: RouterError) -> Failure:
    """How it ends its attempt."""
    if isinstance(failure, NotSent):
        return Failure.UNSENT
    if isinstance(failure, Cut) or (isinstance(failure, Answered) and failure.is_turned_away):
        return Failure.BUSY
    return Failure.ANSWERED if isinstance(failure, _WORDS) else Failure.BROKEN


def outcome_of(status: int, body: bytes = b"") -> str:
    """Of a request whose answer has been passed on whole; `body` is it, if it did not stream."""
    if status == 200:
        return OUTCOME_SERVED
    if sse.is_broken_call(body):
        return OUTCOME_SERVED
    return OUTCOME_NODE_FAILED if status >= 500 else OUTCOME_REFUSED


def enveloped(name: str, status: int, body: bytes, dialect: Dialect) -> bytes | None:
    """An error of the server of that name as the dialect's callers read it; None where they can
    read it as it is."""
    if status < 400 or dialect is Dialect.OPENAI:
        return None
    if _is_to_respell(body, dialect):
        return error_body(sse.too_long_error(body), dialect)
    if sse.error_message(body):
        return None
    words = " ".join(body.decode(errors="replace").split())[:MAX_TOLD_CHARS]
    kind = NodeFailed if status >= 500 else NodeRefused
    said = f"The node {name} answered with status {status}"
    error = kind(f"{said}: {words}" if words else f"{said}.")
    error.status = status
    return error_body(error, dialect)


def respelled(events: bytes, dialect: Dialect) -> bytes | None:
    """The same for a stream that such an error begins."""
    body = sse.leading_too_long(events)
    if body is None or not _is_to_respell(body, dialect):
        return None
    return sse.error_event(sse.too_long_error(body), dialect)


def _is_to_respell(body: bytes, dialect: Dialect) -> bool:
    """Whether it is the error for a prompt that is too long, in words by which the dialect's
    clients do not know it."""
    if dialect is not Dialect.ANTHROPIC or not sse.is_too_long(body):
        return False
    return not sse.error_message(body).startswith(ANTHROPIC_WORDS)
