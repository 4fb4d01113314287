"""One attempt of a request: a node's answer handed to the caller, unread."""

import asyncio
import contextlib
import time

from router.client import sse
from router.client.response_headers import HEADER_SHOULD_RETRY, JSON_HEADERS, NodeHead
from router.dispatch.attempt_outcome import Answered, outcome_of, respelled
from router.dispatch.dispatcher import REFUSAL_STATUSES, Dispatcher
from router.dispatch.reply import Reply
from router.errors import ContextTooLong, NodeFailed
from router.fleet.stall_watchdog import Progress
from router.records.ledger import OUTCOME_NODE_FAILED, OUTCOME_REFUSED
from router.types import Lease, Ticket
from router.upstream.foreign import REFUSAL_STATUSES as REFUSED_FIELD_STATUSES
from router.upstream.foreign import ForeignAnswer
from router.upstream.foreign_events import Ending
from router.upstream.http_response import Response
from router.upstream.node_client import MAX_ANSWER_BYTES

RETRY_STATUSES = frozenset((409, 429, 503))
TOO_LONG_STATUSES = frozenset((400, 413))
"""With which servers say that a prompt is longer than a context."""
LINGER_S = 0.25
"""How long a stream may go on after its last event."""
NO_MODEL_STATUS = 404
"""With which they say that they do not have the model any more, among others."""


class Attempt:
    """A request on one node."""

    def __init__(
        self, reply: Reply, lease: Lease, dispatcher: Dispatcher, progress: Progress
    ) -> None:
        """`progress`: told of what comes, so that a node that does not go on is left."""
        self.foreign: ForeignAnswer | None = None
        """None where the node keeps accounts."""
        self._reply = reply
        self._ticket: Ticket = reply.ticket
        self._lease = lease
        self._dispatcher = dispatcher
        self._progress = progress
        self._partial = b""
        """Of a stream, the beginning of an event whose rest has not come."""
        self._is_refused = False
        """Whether the stream begins with an error of the request itself."""

    async def run(self) -> str:
        """Passes on the node's whole answer; how it ended.

        Raises `NodeFailed` where the connection breaks, and what `_check` and `Dispatcher.prepare`
        raise.
        """
        ticket, lease, dispatcher = self._ticket, self._lease, self._dispatcher
        response: Response | None = None
        is_whole = False
        self.foreign = dispatcher.prepare(ticket, lease)
        try:
            response = await dispatcher.open(ticket, lease, self.foreign)
            if self.foreign is not None and await self._is_unasked(self.foreign, response):
                self.foreign = dispatcher.prepare(ticket, lease)
                response = await dispatcher.open(ticket, lease, self.foreign)
            self._progress.has_head = True
            await self._check(response)
            status, body = response.status, b""
            if status == 200 and ticket.stream:
                await self._pass_stream(response)
            else:
                body = await response.read_all(MAX_ANSWER_BYTES)
                status = self._pass_whole(response, body)
            is_whole = True
            return self._outcome(status, body)
        except OSError as error:
            raise dispatcher.node_failed(lease, error) from error
        finally:
            if response is not None and not is_whole:
                response.close()

    async def _is_unasked(self, foreign: ForeignAnswer, response: Response) -> bool:
        """Whether the server does not take what was added to the request, which is then to be sent
        as its caller wrote it."""
        if not foreign.asks or response.status not in REFUSED_FIELD_STATUSES:
            return False
        try:
            body = await response.read_all(MAX_ANSWER_BYTES)
        finally:
            response.close()
        if foreign.is_refused(response.status, body):
            self._dispatcher.ask_no_more(self._lease)
            return True
        response.give_back(body)
        return False

    def _outcome(self, status: int, body: bytes) -> str:
        """Of an answer that has been passed on to its end; `body` is it, if it did not stream."""
        if self.foreign is not None and self.foreign.ending is Ending.FAILED:
            return OUTCOME_NODE_FAILED
        return OUTCOME_REFUSED if self._is_refused else outcome_of(status, body)

    async def _check(self, response: Response) -> None:
        """Raises `Answered`, `NodeRefused` or `WrongNodeToken` for an answer that another node may
        not give; where another model may be tried, `ContextTooLong` too."""
        status, may_fall_back = response.status, self._ticket.may_fall_back
        final = response.headers.get(HEADER_SHOULD_RETRY) == b"false"
        if (status in RETRY_STATUSES and not final) or (may_fall_back and status >= 500):
            body = await response.read_all(MAX_ANSWER_BYTES)
            if may_fall_back and sse.is_too_long(body):
                raise sse.too_long_error(body)
            raise Answered(status, response.headers, body)
        if status in REFUSAL_STATUSES:
            await response.read_all(MAX_ANSWER_BYTES)
            raise self._dispatcher.refused(self._lease, status)
        if status == NO_MODEL_STATUS or (may_fall_back and status in TOO_LONG_STATUSES):
            body = await response.read_all(MAX_ANSWER_BYTES)
            if status == NO_MODEL_STATUS and sse.is_without_model(body):
                raise Answered(status, response.headers, body)
            if may_fall_back and sse.is_too_long(body):
                raise sse.too_long_error(body)
            response.give_back(body)

    # --- whole answers ---

    def _pass_whole(self, response: Response, body: bytes) -> int:
        """The status with which it is passed on."""
        status = response.status
        if self.foreign is not None:
            self.foreign.read(body)
            if status >= 500 and sse.is_too_long(body):
                status = ContextTooLong.status  # else clients would send it again
        head = NodeHead(status, response.headers)
        self._progress.begin()
        self._reply.send_whole(self._lease, head, body, is_foreign=self.foreign is not None)
        return status

    # --- streams ---

    async def _pass_stream(self, response: Response) -> None:
        reply, exchange = self._reply, self._reply.exchange
        while not reply.has_content and (chunk := await response.read_any()):
            events, self._partial = sse.split(self._partial + chunk)
            if events:
                self._pass_first(response, events)
        while reply.has_content and not (self._is_over() or await response.pump(self._pass_on)):
            await exchange.drain()
        if self._is_over():
            await self._pass_rest(response)
        if self._partial:
            self._pass_first(response, self._partial)
        if not reply.has_content and self.foreign is not None and (kept := self.foreign.end()):
            self._begin(response, kept)
        if not reply.has_content:
            name = self._dispatcher.node_name(self._lease)
            raise NodeFailed(f"The node {name} ended the stream before it began.")
        exchange.end()

    def _is_over(self) -> bool:
        return self.foreign is not None and self.foreign.ending is not None

    async def _pass_rest(self, response: Response) -> None:
        """Ends an answer whose last event has come, though its server may leave it open."""
        # How the connection ends matters no more; what is late of it is a TimeoutError, an OSError.
        with contextlib.suppress(OSError):
            async with asyncio.timeout(LINGER_S):
                while not await response.pump(self._pass_on):
                    await self._reply.exchange.drain()
        response.close()

    def _pass_on(self, chunk: bytes) -> bool:
        """Passes on the whole events; False where the caller shall take them before more come."""
        events, self._partial = sse.split(self._partial + chunk)
        if events:
            self._note(events)
            if self.foreign is not None:
                events = self.foreign.pass_on(events)
            self._reply.write(events)
        return not (self._reply.is_paused() or self._is_over())

    def _pass_first(self, response: Response, events: bytes) -> None:
        """Passes events on while no content is known to have been sent."""
        content = events
        if not self._reply.has_content:
            if self.foreign is not None:
                events, content = self.foreign.begin(events)
                if (told := respelled(content, self._reply.dialect)) is not None:
                    events = events.removesuffix(content) + told
            self._raise_leading(content)
        if events:
            self._begin(response, events)

    def _begin(self, response: Response, events: bytes) -> None:
        reply = self._reply
        if not reply.has_content:
            head = NodeHead(response.status, response.headers)
            events = reply.begin(self._lease, head, events, is_refused=self._is_refused)
            if reply.has_content:
                self._progress.begin()
                self._note(events)
                if self.foreign is not None:
                    self.foreign.first_content_s = time.monotonic()
        if self.foreign is not None:
            events = self.foreign.pass_on(events)
        reply.write(events)

    def _raise_leading(self, events: bytes) -> None:
        """An error that comes first is no answer yet."""
        error = sse.leading_error(events)
        if error is not None:
            raise Answered(NodeFailed.status, JSON_HEADERS, error)
        if self._ticket.may_fall_back and (error := sse.leading_too_long(events)):
            raise sse.too_long_error(error)
        self._is_refused = sse.leads_with_refusal(events)

    def _note(self, events: bytes) -> None:
        """Something of the answer has come, unless that is a node's own filler."""
        if not sse.is_filler(events):
            self._progress.has_data = True
