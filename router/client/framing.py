"""The interface of a stream's framing: server-sent events (`router.client.sse`), or JSON lines
(`router.client.json_lines`). Both modules implement `Framing`."""

from typing import Protocol

import msgspec

from node.protocol.paths import ApiDialect
from router.errors import RouterError
from router.types import Queued


class Loading(msgspec.Struct, frozen=True):
    """The load that a ticket waits for."""

    model: str
    progress: float | None
    """Share of the load that is done; None if the node does not report it."""


class Framing(Protocol):
    """Reads what relaying needs of a node's events, and encodes the router's own."""

    def ping(self, dialect: ApiDialect, waits_for: Queued | Loading | None = None) -> bytes:
        """Encodes a keep-alive."""

    def is_keepalive(self, events: bytes) -> bool:
        """Returns True if the events are a node's keep-alives only."""

    def split(self, data: bytes) -> tuple[bytes, bytes]:
        """Splits data into complete events and the beginning of an incomplete one."""

    def has_event(self, events: bytes) -> bool:
        """Returns True if there is more than keep-alives."""

    def leading_error(self, events: bytes) -> bytes | None:
        """Returns an error of the node that precedes all content, as the body of a response."""

    def leading_too_long(self, events: bytes) -> bytes | None:
        """Returns a too-long error that precedes all content, as the body of a response."""

    def leads_with_refusal(self, events: bytes) -> bool:
        """Returns True if an error that is the request's own fault precedes all content."""

    def error_event(self, error: RouterError, dialect: ApiDialect, after: bytes = b"") -> bytes:
        """Encodes the error that ends a stream; `after` is what was sent last."""

    def late_error(self, body: bytes, otherwise: RouterError, dialect: ApiDialect) -> bytes:
        """Encodes a node's error response, or `otherwise`, as the end of a stream."""

    def fleet_comment(
        self, node: str, model: str, cached: bytes = b"", ignored: bytes = b""
    ) -> bytes:
        """Encodes a comment with the node that serves a stream; empty where there are none."""
