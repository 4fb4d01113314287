"""The response to one request, as its client sees it."""

from node.protocol.paths import ApiDialect, dialect_of
from router.client import json_lines, response_headers, sse
from router.client.framing import Framing
from router.client.keepalive_comments import KeepAlive
from router.client.response_headers import NodeHead
from router.dispatch.attempt_outcome import respelled_body
from router.dispatch.traffic import Traffic
from router.errors import NodeFailed, RouterError
from router.types import Lease, Ticket
from serving.http.exchange import Exchange


class Reply:
    """Owns what has been sent to the client: a head, then events or a whole body.

    The head of a stream is withheld until the first bytes of an agent's response, or the first
    content of a third-party server's, so that before them every failure is an HTTP status or a
    retry on another node. After `stream_keepalive_s` without data the router starts the stream
    itself and sends comments.
    """

    def __init__(
        self, ticket: Ticket, exchange: Exchange, traffic: Traffic, stream_keepalive_s: float
    ) -> None:
        self.ticket = ticket
        self.dialect = dialect_of(ticket.path)
        self.framing: Framing = json_lines if self.dialect is ApiDialect.OLLAMA else sse
        """The framing of the stream that the client gets."""
        self.exchange = exchange
        self.has_content = False
        """True if content of a response, or all of one, has been sent."""
        self.lease: Lease | None = None
        """Lease of the newest attempt; None before the first."""
        self._traffic = traffic
        self._has_head = exchange.began
        self._head_node = ""
        """Id of the node that the head names; empty if the head was sent before the node was
        known."""
        self._last_events = b""
        """Bytes of the stream that were sent last."""
        self._keepalive = KeepAlive(
            exchange, stream_keepalive_s, self._begin_early, self._keepalive_text
        )

    def is_paused(self) -> bool:
        """Returns True if the client reads more slowly than it is sent."""
        return self.exchange.paused

    def begin_wait(self, lease: Lease | None = None) -> None:
        """Starts the idle interval of a stream, after which keep-alives are sent; `lease` is that
        of a new attempt."""
        self.lease = lease or self.lease
        if self.ticket.stream:
            self._keepalive.start()

    def end_wait(self) -> None:
        """Stops keep-alives."""
        self._keepalive.stop()

    # --- streams ---

    def begin(self, lease: Lease, head: NodeHead, events: bytes) -> bytes:
        """Sends the head unless it has been sent; returns a node's first events with the comment
        that goes before them."""
        self._keepalive.stop()
        if not self._has_head:
            self._send_head(lease, head)
        self.has_content = self.framing.has_event(events)
        if not self.has_content:
            return events
        if self._head_node == lease.node_id:
            return events
        name = self._traffic.node_name(lease)
        cached = response_headers.cached_tokens(lease, head.headers)
        ignored = head.headers.get(response_headers.IGNORED, b"")
        return self.framing.fleet_comment(name, lease.model, cached, ignored) + events

    def write(self, events: bytes) -> None:
        """Sends events of a stream that has begun."""
        self._last_events = events or self._last_events
        self.exchange.write(events)

    def fail(self, error: RouterError) -> None:
        """Ends the response with an error. Raises it if nothing has been sent."""
        if not self._has_head:
            raise error
        self.exchange.end(self.framing.error_event(error, self.dialect, self._last_events))

    # --- whole responses ---

    def send_whole(
        self, lease: Lease, head: NodeHead, body: bytes, *, is_foreign: bool = False
    ) -> None:
        """Sends a node's whole response. If `is_foreign`, its errors may lack the dialect's
        envelope."""
        self._keepalive.stop()
        self.has_content = True
        name, status = self._traffic.node_name(lease), head.status
        if is_foreign and (respelled := respelled_body(name, status, body, self.dialect)):
            head = NodeHead(status, {**head.headers, **response_headers.JSON_HEADERS})
            body = respelled
        if self._has_head:
            otherwise = NodeFailed(f"The node {name} responded with status {status}.")
            self.exchange.end(self.framing.late_error(body, otherwise, self.dialect))
            return
        self._send_head(lease, head, length=len(body))
        self.exchange.end(body)

    def _send_head(self, lease: Lease, head: NodeHead, length: int | None = None) -> None:
        self._has_head = True
        self._head_node = lease.node_id
        name = self._traffic.node_name(lease)
        headers = response_headers.relayed_headers(self.ticket, lease, name, head, self.dialect)
        if length is not None:
            headers.append((b"content-length", b"%d" % length))
        if self.ticket.shows_decision:
            shown = self._traffic.decision_line(lease.ticket_id)
            headers.append((b"x-fleet-decision", shown))
        self.exchange.begin(head.status, headers)

    # --- silence ---

    def _begin_early(self) -> None:
        self._has_head = True
        self.exchange.begin(200, response_headers.early_headers(self.ticket, self.dialect))

    def _keepalive_text(self) -> bytes:
        waits_for = self._traffic.waits_for(self.ticket, self.lease)
        return self.framing.ping(self.dialect, waits_for)
