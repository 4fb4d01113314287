"""The answer to one request, as its caller sees it."""

from router.client import response_headers, sse
from router.client.error_dialects import dialect_of
from router.client.keepalive_comments import Silence
from router.client.response_headers import NodeHead
from router.dispatch.attempt_outcome import enveloped
from router.dispatch.dispatcher import Dispatcher
from router.errors import NodeFailed, RouterError
from router.types import Lease, Ticket
from serving.http.exchange import Exchange


class Reply:
    """Owner of what has been sent to the caller: a head, then events or a whole body.

    The head of a stream is held until the first bytes of a node, of a server of others until its
    first content, so that before them every failure is an HTTP status or a retry on another node;
    after `hold_head_s` of silence the router opens the stream itself and fills it with comments.
    """

    def __init__(
        self, ticket: Ticket, exchange: Exchange, dispatcher: Dispatcher, hold_head_s: float
    ) -> None:
        self.ticket = ticket
        self.dialect = dialect_of(ticket.path)
        self.exchange = exchange
        self.has_content = False
        """Whether content of an answer, or all of one, has been sent."""
        self.lease: Lease | None = None
        """That of the newest attempt; None before the first."""
        self._dispatcher = dispatcher
        self._has_head = exchange.began
        self._head_node = ""
        """The node that the head names; empty where the router sent it before it knew."""
        self._last_events = b""
        """What was sent last of a stream."""
        self._silence = Silence(exchange, hold_head_s, self._begin_in_silence, self._filler)

    def is_paused(self) -> bool:
        """Whether the caller takes less than it is sent."""
        return self.exchange.paused

    def wait(self, lease: Lease | None = None) -> None:
        """Nothing comes for now, of the node of the lease, if any: the silence of a stream is
        filled once it has lasted."""
        self.lease = lease or self.lease
        if self.ticket.stream:
            self._silence.lasts()

    def stop_waiting(self) -> None:
        """Nothing fills the silence any more."""
        self._silence.end()

    # --- streams ---

    def begin(self, lease: Lease, head: NodeHead, events: bytes, *, is_refused: bool) -> bytes:
        """A node's first events are to be sent; the same with what goes before them. Sends the
        head unless that has been."""
        self._silence.end()
        if not self._has_head:
            self._send_head(lease, head)
        self.has_content = sse.has_event(events)
        if not self.has_content:
            return events
        if not is_refused:
            self._dispatcher.on_first_content(self.ticket, lease)
        if self._head_node == lease.node_id:
            return events
        name = self._dispatcher.node_name(lease)
        cached = response_headers.cached(lease, head.headers)
        ignored = head.headers.get(response_headers.IGNORED, b"")
        return sse.fleet_comment(name, lease.model, cached, ignored) + events

    def write(self, events: bytes) -> None:
        """Events of a stream that has begun."""
        self._last_events = events or self._last_events
        self.exchange.write(events)

    def fail(self, error: RouterError) -> None:
        """Ends the answer with an error. Raises it where nothing has been sent."""
        if not self._has_head:
            raise error
        self.exchange.end(sse.error_event(error, self.dialect, self._last_events))

    # --- whole answers ---

    def send_whole(
        self, lease: Lease, head: NodeHead, body: bytes, *, is_foreign: bool = False
    ) -> None:
        """A node's whole answer. `is_foreign`: its errors may be in no dialect's envelope."""
        self._silence.end()
        self.has_content = True
        name, status = self._dispatcher.node_name(lease), head.status
        if is_foreign and (told := enveloped(name, status, body, self.dialect)):
            head = NodeHead(status, {**head.headers, **response_headers.JSON_HEADERS})
            body = told
        if self._has_head:
            otherwise = NodeFailed(f"The node {name} answered with status {status}.")
            self.exchange.end(sse.late_error(body, otherwise, self.dialect))
            return
        self._send_head(lease, head, length=len(body))
        self.exchange.end(body)

    def _send_head(self, lease: Lease, head: NodeHead, length: int | None = None) -> None:
        self._has_head = True
        self._head_node = lease.node_id
        name = self._dispatcher.node_name(lease)
        headers = response_headers.of_node(self.ticket, lease, name, head, self.dialect)
        if length is not None:
            headers.append((b"content-length", b"%d" % length))
        if self.ticket.shows_decision:
            shown = self._dispatcher.decisions.short(lease.ticket_id)
            headers.append((b"x-fleet-decision", shown))
        self.exchange.begin(head.status, headers)

    # --- silence ---

    def _begin_in_silence(self) -> None:
        self._has_head = True
        self.exchange.begin(200, response_headers.of_silence(self.ticket, self.dialect))

    def _filler(self) -> bytes:
        waits_for = self._dispatcher.traffic.waits_for(self.ticket, self.lease)
        return sse.ping(self.dialect, waits_for)
