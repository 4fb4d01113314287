"""Node bytes to client bytes, unread.

The head of a stream is held until the node's first bytes, of a server of others until its first
content, so that before them every failure is an HTTP status or a retry on another node; after
`hold_head_s` of silence the router opens the stream itself and fills it with comments.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable

from router import answer_heads, sse
from router.answer_heads import HEADER_RETRY_AFTER, HEADER_SHOULD_RETRY, JSON_HEADERS
from router.answered import Answered, enveloped, how, outcome_of, respelled
from router.dialects import dialect_of
from router.dispatcher import REFUSAL_STATUSES, Cut, Dispatcher
from router.errors import (
    ContextTooLong,
    DeadlineExceeded,
    NodeFailed,
    QueueFull,
    RouterError,
)
from router.foreign import ForeignAnswer
from router.foreign_events import Ending
from router.ledger import (
    OUTCOME_CANCELLED,
    OUTCOME_CUT,
    OUTCOME_LATE,
    OUTCOME_NODE_FAILED,
    OUTCOME_REFUSED,
)
from router.node_client import MAX_ANSWER_BYTES
from router.silence import Silence
from router.stalls import Attempt
from router.types import Lease, Ticket
from router.upstream_response import Response
from serving.exchange import Exchange

RETRY_STATUSES = frozenset((409, 429, 503))
TOO_LONG_STATUSES = frozenset((400, 413))
"""With which servers say that a prompt is longer than a context."""
LINGER_S = 0.25
"""How long a stream may go on after its last event."""
NO_MODEL_STATUS = 404
"""With which they say that they do not have the model any more, among others."""


class Relay:
    """One request on its way to a node and back."""

    def __init__(
        self, ticket: Ticket, exchange: Exchange, dispatcher: Dispatcher, hold_head_s: float
    ) -> None:
        self.ticket = ticket
        self.lease: Lease | None = None
        """The newest one; None before the first."""
        self.content_sent = False
        self._dialect = dialect_of(ticket.path)
        self._exchange = exchange
        self._dispatcher = dispatcher
        self._head_sent = exchange.began
        self._head_node = ""
        """The node that the head names; empty where the router sent it before it knew."""
        self._held = b""
        """Of a stream, the beginning of an event whose rest has not come."""
        self._last_events = b""
        """What was sent last of a stream."""
        self._waits_s: list[int] = []
        """What nodes that turned it away told to wait."""
        self._attempted: Attempt | None = None
        """The attempt that runs."""
        self._foreign: ForeignAnswer | None = None
        """Of the newest attempt, where its node keeps no accounts."""
        self._is_refused = False
        """Whether the newest attempt's stream begins with an error of the request itself."""
        self._silence = Silence(exchange, hold_head_s, self._begin_in_silence, self._filler)
        self._limit: asyncio.Timeout | None = None
        """The ticket's deadline, while an attempt must keep it."""

    @property
    def request_id(self) -> str:
        """The request's id as its caller sees it: it names the node, once there is one."""
        if self.lease is None:
            return self.ticket.request_id
        return answer_heads.id_on_node(self.lease)

    @property
    def attempts(self) -> int:
        """How many times the request has been sent to a node, for earlier models too."""
        return self.lease.attempt if self.lease else self.ticket.earlier_attempts

    async def run(self) -> None:
        """Serves the ticket. Whatever it raises, `fail` tells the caller."""
        self._fill_later()
        try:
            await self._serve(await self._dispatcher.place(self.ticket))
        finally:
            self._silence.end()

    async def fail(self, error: RouterError) -> None:
        """Ends the answer with an error. Raises it where nothing has been sent."""
        if not self._head_sent:
            raise error
        self._exchange.end(sse.error_event(error, self._dialect, self._last_events))

    async def _serve(self, lease: Lease) -> None:
        """Attempts until one is served, or no node is left to try."""
        outcome = OUTCOME_CANCELLED
        held: Lease | None = lease
        try:
            while held is not None:
                lease = self.lease = held
                self._fill_later()
                try:
                    outcome = await self._attempt_in_time(lease)
                    return
                except (DeadlineExceeded, ContextTooLong) as end:
                    late = isinstance(end, DeadlineExceeded)
                    outcome = OUTCOME_LATE if late else OUTCOME_REFUSED
                    raise
                except RouterError as failure:
                    was_cut = isinstance(failure, Cut)
                    outcome = OUTCOME_CUT if was_cut else OUTCOME_NODE_FAILED
                    if self.content_sent:
                        raise
                    held = None  # given back, whatever comes of the wait for another one
                    held = await self._dispatcher.place_again(
                        self.ticket, lease, how(failure), failure.retry_after_s
                    )
                    if isinstance(failure, Answered):
                        self._turned_away(lease, failure, is_last=held is None)
                    elif held is None:
                        raise
                    outcome = OUTCOME_CANCELLED
        finally:
            if held is not None:
                self._dispatcher.done(self.ticket, held, outcome, self._foreign)

    def _turned_away(self, lease: Lease, failure: Answered, *, is_last: bool) -> None:
        """A node has said that it does not serve the request. The last one's word is passed on with
        the shortest wait of all; where another model is left to try, it is raised."""
        if failure.retry_after_s is not None:
            self._waits_s.append(failure.retry_after_s)
        if not is_last:
            return
        wait_s = min(self._waits_s, default=None)
        if self.ticket.may_fall_back:
            raise self._told(lease, failure, wait_s)
        headers = failure.headers
        if wait_s is not None:
            headers = {**headers, HEADER_RETRY_AFTER: b"%d" % wait_s}
        self._pass_whole(lease, failure.status, headers, failure.answer)

    def _told(self, lease: Lease, failure: Answered, wait_s: int | None) -> RouterError:
        name = self._dispatcher.node_name(lease)
        kind = QueueFull if failure.status == 429 else NodeFailed
        told = sse.error_message(failure.answer)
        status = f"The node {name} answered with status {failure.status}."
        return kind(f"The node {name} says: {told}" if told else status, retry_after_s=wait_s)

    async def _attempt_watched(self, lease: Lease) -> str:
        """As `_attempt`, and raises `NodeFailed` where the node is there and does not go on."""
        self._foreign, self._is_refused = None, False
        stalls = self._dispatcher.stalls
        attempt = self._attempted = stalls.watch(lease, self._is_paused)
        try:
            return await self._attempt(lease)
        except asyncio.CancelledError:
            if not stalls.is_left(attempt):
                raise
            raise self._dispatcher.stalled(attempt) from None
        finally:
            stalls.unwatch(attempt)

    def _is_paused(self) -> bool:
        return self._exchange.paused

    def _attempt_in_time(self, lease: Lease) -> Awaitable[str]:
        """As `_attempt_watched`, and raises `DeadlineExceeded` where the answer has not begun by
        then."""
        if math.isinf(self.ticket.deadline_s):
            return self._attempt_watched(lease)
        return self._attempt_until(self.ticket.deadline_s, lease)

    async def _attempt_until(self, deadline_s: float, lease: Lease) -> str:
        try:
            async with asyncio.timeout(deadline_s - time.monotonic()) as self._limit:
                return await self._attempt_watched(lease)
        except TimeoutError:
            name = self._dispatcher.node_name(lease)
            raise DeadlineExceeded(
                f"The node {name} had not begun to answer at the deadline in `x-fleet-deadline-s`."
            ) from None
        finally:
            self._limit = None

    async def _attempt(self, lease: Lease) -> str:
        """One node's whole answer passed on; how it ended. Raises `NodeFailed` where the connection
        breaks, and what `_check` raises."""
        response, self._foreign = await self._dispatcher.open(self.ticket, lease)
        finished = False
        try:
            await self._check(lease, response)
            status, body = response.status, b""
            if status == 200 and self.ticket.stream:
                await self._pass_stream(lease, response)
            else:
                body = await response.read_all(MAX_ANSWER_BYTES)
                if self._foreign is not None:
                    self._foreign.read(body)
                    if status >= 500 and sse.is_too_long(body):
                        status = ContextTooLong.status  # else clients would send it again
                self._pass_whole(lease, status, response.headers, body)
            finished = True
            if self._foreign is not None and self._foreign.ending is Ending.FAILED:
                return OUTCOME_NODE_FAILED
            return OUTCOME_REFUSED if self._is_refused else outcome_of(status, body)
        except OSError as error:
            raise self._dispatcher.node_failed(lease, error) from error
        finally:
            if not finished:
                response.close()

    async def _check(self, lease: Lease, response: Response) -> None:
        """Raises `Answered`, `NodeRefused` or `WrongNodeToken` for an answer that another node may
        not give; where another model may be tried, `ContextTooLong` too."""
        if self._attempted is not None:
            self._attempted.is_headed = True
        status, may_fall_back = response.status, self.ticket.may_fall_back
        final = response.headers.get(HEADER_SHOULD_RETRY) == b"false"
        if (status in RETRY_STATUSES and not final) or (may_fall_back and status >= 500):
            body = await response.read_all(MAX_ANSWER_BYTES)
            if may_fall_back and sse.is_too_long(body):
                raise sse.too_long_error(body)
            raise Answered(status, response.headers, body)
        if status in REFUSAL_STATUSES:
            await response.read_all(MAX_ANSWER_BYTES)
            raise self._dispatcher.refused(lease, status)
        if status == NO_MODEL_STATUS or (may_fall_back and status in TOO_LONG_STATUSES):
            body = await response.read_all(MAX_ANSWER_BYTES)
            if status == NO_MODEL_STATUS and sse.is_without_model(body):
                raise Answered(status, response.headers, body)
            if may_fall_back and sse.is_too_long(body):
                raise sse.too_long_error(body)
            response.give_back(body)

    async def _pass_stream(self, lease: Lease, response: Response) -> None:
        self._held = b""
        while not self.content_sent and (chunk := await response.read_any()):
            events, self._held = sse.split(self._held + chunk)
            if events:
                self._pass_first(lease, response, events)
        while self.content_sent and not (self._is_over() or await response.pump(self._pass_on)):
            await self._exchange.drain()
        if self._is_over():
            await self._pass_rest(response)
        if self._held:
            self._pass_first(lease, response, self._held)
        if not self.content_sent and self._foreign is not None and (kept := self._foreign.end()):
            self._pass_begun(lease, response, kept)
        if not self.content_sent:
            name = self._dispatcher.node_name(lease)
            raise NodeFailed(f"The node {name} ended the stream before it began.")
        self._exchange.end()

    def _is_over(self) -> bool:
        return self._foreign is not None and self._foreign.ending is not None

    async def _pass_rest(self, response: Response) -> None:
        """Ends an answer whose last event has come, though its server may leave it open."""
        # How the connection ends matters no more; what is late of it is a TimeoutError, an OSError.
        with contextlib.suppress(OSError):
            async with asyncio.timeout(LINGER_S):
                while not await response.pump(self._pass_on):
                    await self._exchange.drain()
        response.close()

    def _pass_on(self, chunk: bytes) -> bool:
        """Passes on the whole events; False where the caller shall take them before more come."""
        events, self._held = sse.split(self._held + chunk)
        if events:
            self._note(events)
            if self._foreign is not None:
                events = self._foreign.pass_on(events)
            self._last_events = events or self._last_events
            self._exchange.write(events)
        return not (self._exchange.paused or self._is_over())

    def _pass_first(self, lease: Lease, response: Response, events: bytes) -> None:
        """Passes events on while no content is known to have been sent."""
        content = events
        if not self.content_sent and self._foreign is not None:
            events, content = self._foreign.begin(events)
            if (told := respelled(content, self._dialect)) is not None:
                events = events.removesuffix(content) + told
        if not self.content_sent:
            self._raise_leading(content)
        if events:
            self._pass_begun(lease, response, events)

    def _pass_begun(self, lease: Lease, response: Response, events: bytes) -> None:
        if not self.content_sent:
            self._silence.end()
            if not self._head_sent:
                self._send_head(lease, response.status, response.headers)
            self.content_sent = sse.has_event(events)
            if self.content_sent:
                self._lift_deadline()
                self._note(events)
                if self._foreign is not None:
                    self._foreign.first_content_s = time.monotonic()
                if not self._is_refused:
                    self._dispatcher.on_first_content(self.ticket, lease)
                if self._head_node != lease.node_id:
                    name = self._dispatcher.node_name(lease)
                    cached = answer_heads.cached(lease, response.headers)
                    ignored = response.headers.get(answer_heads.IGNORED, b"")
                    events = sse.fleet_comment(name, lease.model, cached, ignored) + events
        if self._foreign is not None:
            events = self._foreign.pass_on(events)
        self._last_events = events
        self._exchange.write(events)

    def _raise_leading(self, events: bytes) -> None:
        """An error that comes first is no answer yet."""
        error = sse.leading_error(events)
        if error is not None:
            raise Answered(NodeFailed.status, JSON_HEADERS, error)
        if self.ticket.may_fall_back and (error := sse.leading_too_long(events)):
            raise sse.too_long_error(error)
        self._is_refused = sse.leads_with_refusal(events)

    def _note(self, events: bytes) -> None:
        """Something of the answer has come, unless that is a node's own filler."""
        if self._attempted is not None and not sse.is_filler(events):
            self._attempted.moved = True

    def _pass_whole(
        self, lease: Lease, status: int, headers: dict[bytes, bytes], body: bytes
    ) -> None:
        self._silence.end()
        self._lift_deadline()
        self.content_sent = True
        name = self._dispatcher.node_name(lease)
        if self._foreign is not None and (told := enveloped(name, status, body, self._dialect)):
            headers, body = {**headers, **JSON_HEADERS}, told
        if self._head_sent:
            otherwise = NodeFailed(f"The node {name} answered with status {status}.")
            self._exchange.end(sse.late_error(body, otherwise, self._dialect))
            return
        self._send_head(lease, status, headers, length=len(body))
        self._exchange.end(body)

    def _lift_deadline(self) -> None:
        """The answer begins."""
        if self._limit is not None:
            self._limit.reschedule(None)

    def _send_head(
        self,
        lease: Lease,
        status: int,
        upstream: dict[bytes, bytes],
        length: int | None = None,
    ) -> None:
        self._head_sent = True
        self._head_node = lease.node_id
        name = self._dispatcher.node_name(lease)
        head = answer_heads.NodeHead(status, upstream)
        headers = answer_heads.of_node(self.ticket, lease, name, head, self._dialect)
        if length is not None:
            headers.append((b"content-length", b"%d" % length))
        if self.ticket.shows_decision:
            shown = self._dispatcher.decisions.short(lease.ticket_id)
            headers.append((b"x-fleet-decision", shown))
        self._exchange.begin(status, headers)

    # --- silence ---

    def _begin_in_silence(self) -> None:
        self._head_sent = True
        self._exchange.begin(200, answer_heads.of_silence(self.ticket, self._dialect))

    def _filler(self) -> bytes:
        return sse.ping(self._dialect, self._dispatcher.waits_for(self.ticket, self.lease))

    def _fill_later(self) -> None:
        if self.ticket.stream:
            self._silence.lasts()
