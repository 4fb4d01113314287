"""One attempt of a request: relays a node's response to the client without parsing it."""

import asyncio
import contextlib
import time

from router.client import sse
from router.client.framing import Framing
from router.client.response_headers import JSON_HEADERS, NodeHead
from router.dispatch.attempt_outcome import ErrorResponse, outcome_of, respelled_event
from router.dispatch.dispatcher import ROUTER_FAULT_STATUSES, Dispatcher
from router.dispatch.reply import Reply
from router.errors import ContextTooLong, NodeFailed, NodeOutdated, UnknownPath
from router.fleet.stall_watchdog import Progress
from router.records.outcomes import OUTCOME_NODE_FAILED, OUTCOME_REFUSED
from router.types import Lease, Ticket
from router.upstream.foreign import REFUSAL_STATUSES, ForeignResponse
from router.upstream.foreign_events import Ending
from router.upstream.http_response import Response
from router.upstream.node_client import MAX_RESPONSE_BYTES
from serving.http.http_error import HEADER_SHOULD_RETRY

RETRY_STATUSES = frozenset((409, 429, 503))
TOO_LONG_STATUSES = frozenset((400, 413))
"""Statuses by which servers report that a prompt exceeds the context."""
LINGER_S = 0.25
"""Seconds that a stream may stay open after its last event."""
NO_MODEL_STATUS = 404
"""Status by which servers report, among other things, that they no longer have the model."""
_NO_PATH = frozenset((str(UnknownPath.code),))


class Attempt:
    """One try of a request at one node."""

    def __init__(
        self, reply: Reply, lease: Lease, dispatcher: Dispatcher, progress: Progress
    ) -> None:
        """`progress` is updated as data arrives, so that the stall watchdog can end the attempt."""
        self.foreign: ForeignResponse | None = None
        """Reader of a third-party server's response; None for a node agent, which reports usage
        itself."""
        self._reply = reply
        self._ticket: Ticket = reply.ticket
        self._lease = lease
        self._dispatcher = dispatcher
        self._progress = progress
        self._framing: Framing = reply.framing
        """The framing of the node's stream."""
        self._partial = b""
        """Beginning of a stream's event whose rest has not arrived."""
        self._is_refused = False
        """True if the stream begins with an error that is the request's own fault."""

    async def run(self) -> str | ErrorResponse:
        """Relays the node's whole response and returns its outcome; returns an error that another
        node may not have instead of relaying it.

        Raises `NodeFailed` if the connection breaks, and what `_retryable_error` and
        `Dispatcher.prepare` raise.
        """
        ticket, lease, dispatcher = self._ticket, self._lease, self._dispatcher
        response: Response | None = None
        is_whole = False
        self.foreign = dispatcher.prepare(ticket, lease)
        if self.foreign is not None:
            self._framing = sse  # a client of Ollama gets the translation of such a stream
        try:
            response = await dispatcher.open(ticket, lease, self.foreign)
            if self.foreign is not None and await self._refuses_token_count(self.foreign, response):
                self.foreign = dispatcher.prepare(ticket, lease)
                response = await dispatcher.open(ticket, lease, self.foreign)
            self._progress.has_head = True
            if (error := await self._retryable_error(response)) is not None:
                return error
            status, body = response.status, b""
            if status == 200 and ticket.stream:
                if (error := await self._relay_stream(response)) is not None:
                    return error
            else:
                body = await response.read_all(MAX_RESPONSE_BYTES)
                status = self._relay_whole(response, body)
            is_whole = True
            return self._outcome(status, body)
        except OSError as error:
            raise dispatcher.node_failed(lease, error) from error
        finally:
            if response is not None and not is_whole:
                response.close()

    async def _refuses_token_count(self, foreign: ForeignResponse, response: Response) -> bool:
        """Returns True if the server refused the field that the router added to the request; the
        request is then sent again as its caller wrote it."""
        if not foreign.adds_count or response.status not in REFUSAL_STATUSES:
            return False
        try:
            body = await response.read_all(MAX_RESPONSE_BYTES)
        finally:
            response.close()
        if foreign.is_refused(response.status, body):
            self._dispatcher.disable_token_count(self._lease)
            return True
        response.put_back(body)
        return False

    def _outcome(self, status: int, body: bytes) -> str:
        """Returns the outcome of a response that was relayed to its end; `body` is empty if it was
        streamed."""
        if self.foreign is not None and self.foreign.ending is Ending.FAILED:
            return OUTCOME_NODE_FAILED
        return OUTCOME_REFUSED if self._is_refused else outcome_of(status, body)

    async def _retryable_error(self, response: Response) -> ErrorResponse | None:
        """Returns an error that another node may not have. Raises `NodeRefused` or
        `WrongNodeToken`; if another model may be tried, also `ContextTooLong`."""
        status, may_fall_back = response.status, self._ticket.may_fall_back
        final = response.headers.get(HEADER_SHOULD_RETRY) == b"false"
        if (status in RETRY_STATUSES and not final) or (may_fall_back and status >= 500):
            body = await response.read_all(MAX_RESPONSE_BYTES)
            if may_fall_back and sse.is_too_long(body):
                raise sse.too_long_error(body)
            return ErrorResponse(status, response.headers, body)
        if status in ROUTER_FAULT_STATUSES:
            await response.read_all(MAX_RESPONSE_BYTES)
            raise self._dispatcher.refused(self._lease, status)
        if status == NO_MODEL_STATUS or (may_fall_back and status in TOO_LONG_STATUSES):
            body = await response.read_all(MAX_RESPONSE_BYTES)
            if self._is_missing(status, body):
                return ErrorResponse(status, response.headers, body)
            if may_fall_back and sse.is_too_long(body):
                raise sse.too_long_error(body)
            response.put_back(body)
        return None

    def _is_missing(self, status: int, body: bytes) -> bool:
        """Returns True if the node does not have the model. Raises `NodeOutdated` if an agent does
        not have the path."""
        if status != NO_MODEL_STATUS:
            return False
        if self.foreign is None and sse.has_code(body, _NO_PATH):
            name = self._dispatcher.node_name(self._lease)
            raise NodeOutdated.at(f"The node {name}", self._ticket.path)
        return sse.is_model_missing(body)

    # --- whole responses ---

    def _relay_whole(self, response: Response, body: bytes) -> int:
        """Sends the response to the client; returns the status with which it was sent."""
        status = response.status
        if self.foreign is not None:
            body = self.foreign.read(status, body)
            if status >= 500 and sse.is_too_long(body):
                status = ContextTooLong.status  # or else clients would send it again
        head = NodeHead(status, response.headers)
        self._progress.begin()
        self._reply.send_whole(self._lease, head, body, is_foreign=self.foreign is not None)
        return status

    # --- streams ---

    async def _relay_stream(self, response: Response) -> ErrorResponse | None:
        """Relays a stream; returns the error that it begins with, if another node may not have
        it."""
        reply, exchange = self._reply, self._reply.exchange
        while not reply.has_content and (chunk := await response.read_any()):
            events, self._partial = self._framing.split(self._partial + chunk)
            if events and (error := self._relay_first(response, events)) is not None:
                return error
        while reply.has_content and not (self._is_over() or await response.pump(self._relay_chunk)):
            await exchange.drain()
        if self._is_over():
            await self._relay_rest(response)
        if self._partial and (error := self._relay_first(response, self._partial)) is not None:
            return error
        if not reply.has_content and self.foreign is not None and (kept := self.foreign.end()):
            self._begin(response, kept)
        if not reply.has_content:
            name = self._dispatcher.node_name(self._lease)
            raise NodeFailed(f"The node {name} ended the stream before it began.")
        exchange.end(b"" if self.foreign is None else self.foreign.rest())
        return None

    def _is_over(self) -> bool:
        return self.foreign is not None and self.foreign.ending is not None

    async def _relay_rest(self, response: Response) -> None:
        """Ends a response whose last event has arrived, though its server may keep the connection
        open."""
        # How the connection ends does not matter; the timeout is a TimeoutError, which is an
        # OSError. A response that is complete needs no timer.
        with contextlib.suppress(OSError):
            async with asyncio.timeout(None if response.is_complete else LINGER_S):
                while not await response.pump(self._relay_chunk):
                    await self._reply.exchange.drain()
        response.close()

    def _relay_chunk(self, chunk: bytes) -> bool:
        """Relays the complete events; returns False if the client must read them before more are
        sent."""
        events, self._partial = self._framing.split(self._partial + chunk)
        if events:
            self._note_progress(events)
            if self.foreign is not None:
                events = self.foreign.pass_on(events)
            self._reply.write(events)
        return not (self._reply.is_paused() or self._is_over())

    def _relay_first(self, response: Response, events: bytes) -> ErrorResponse | None:
        """Relays events as long as no content is known to have been sent; returns an error in
        place of content."""
        content = events
        if not self._reply.has_content:
            if self.foreign is not None:
                events, content = self.foreign.begin(events)
                if (respelled := respelled_event(content, self._reply.dialect)) is not None:
                    events = events.removesuffix(content) + respelled
            if (error := self._leading_error(content)) is not None:
                return error
        if events:
            self._begin(response, events)
        return None

    def _begin(self, response: Response, events: bytes) -> None:
        reply = self._reply
        if not reply.has_content:
            headers = response.headers
            if self.foreign is not None:
                headers = self.foreign.headers(headers)
            head = NodeHead(response.status, headers)
            events = reply.begin(self._lease, head, events)
            if reply.has_content:
                if not self._is_refused:
                    self._dispatcher.on_first_content(self._ticket, self._lease)
                self._progress.begin()
                self._note_progress(events)
                if self.foreign is not None:
                    self.foreign.first_content_s = time.monotonic()
        if self.foreign is not None:
            events = self.foreign.pass_on(events)
        reply.write(events)

    def _leading_error(self, events: bytes) -> ErrorResponse | None:
        """Returns an error of the node that precedes all content. Raises `ContextTooLong` if
        another model may be tried."""
        error = self._framing.leading_error(events)
        if error is not None:
            return ErrorResponse(NodeFailed.status, JSON_HEADERS, error)
        if self._ticket.may_fall_back and (error := self._framing.leading_too_long(events)):
            raise sse.too_long_error(error)
        self._is_refused = self._framing.leads_with_refusal(events)
        return None

    def _note_progress(self, events: bytes) -> None:
        """Notes that progress was made, unless the events are only the node's keep-alives."""
        if not self._framing.is_keepalive(events):
            self._progress.has_data = True
