"""One request for one model: tries nodes until one serves it."""

from router.client import response_headers, sse
from router.client.response_headers import NodeHead
from router.dispatch.attempt import Attempt
from router.dispatch.attempt_outcome import ErrorResponse, failure_kind
from router.dispatch.dispatcher import Dispatcher, EndedByAdmin
from router.dispatch.reply import Reply
from router.errors import ContextTooLong, DeadlineExceeded, NodeFailed, QueueFull, RouterError
from router.fleet.stall_watchdog import StallWatchdog
from router.records.outcomes import (
    OUTCOME_CANCELLED,
    OUTCOME_DRAINED,
    OUTCOME_LATE,
    OUTCOME_NODE_FAILED,
    OUTCOME_REFUSED,
    PHASE_PREFILL,
    PHASE_QUEUE,
    PHASE_STREAM,
)
from router.types import Lease
from serving.http.http_error import HEADER_RETRY_AFTER

_FINAL_OUTCOMES = frozenset((OUTCOME_LATE, OUTCOME_REFUSED))
"""Outcomes that another node would not change."""


class Relay:
    """Owns a ticket's leases, from its first attempt to its last."""

    def __init__(self, reply: Reply, dispatcher: Dispatcher, stalls: StallWatchdog) -> None:
        self.reply = reply
        self.ticket = reply.ticket
        self._dispatcher = dispatcher
        self._stalls = stalls
        self._retry_after_s: list[int] = []
        """The `retry-after` of each node that could not take the request."""
        self._attempt: Attempt | None = None
        """The newest attempt."""

    @property
    def request_id(self) -> str:
        """Id of the request as its client sees it; it names the node, once there is one."""
        lease = self.reply.lease
        return self.ticket.request_id if lease is None else response_headers.id_on_node(lease)

    @property
    def attempts(self) -> int:
        """Number of times the request has been sent to a node, including for earlier models."""
        lease = self.reply.lease
        return self.ticket.earlier_attempts if lease is None else lease.attempt

    @property
    def phase(self) -> str:
        """The phase of the request, as metrics name it."""
        if self.reply.lease is None:
            return PHASE_QUEUE
        return PHASE_STREAM if self.reply.has_content else PHASE_PREFILL

    async def run(self) -> None:
        """Tries nodes until one serves the request or none is left. What it raises is sent to the
        client by `Reply.fail`."""
        reply, dispatcher, deadline_s = self.reply, self._dispatcher, self.ticket.deadline_s
        current: Lease | None = None
        result: str | RouterError | ErrorResponse
        reply.begin_wait()
        try:
            current = await dispatcher.place(self.ticket)
            while current is not None:
                lease, outcome = current, OUTCOME_CANCELLED
                try:
                    with self._stalls.watch(lease, reply.is_paused, deadline_s) as progress:
                        reply.begin_wait(lease)
                        self._attempt = Attempt(reply, lease, dispatcher, progress)
                        result = await self._attempt.run()
                except RouterError as error:
                    outcome = _outcome_of(error)
                    if reply.has_content or outcome in _FINAL_OUTCOMES:
                        raise
                    result = error
                if isinstance(result, str):
                    outcome = result
                    return
                current = None  # its lease ends, even if waiting for another one fails
                current = await dispatcher.place_again(
                    self.ticket, lease, failure_kind(result), result.retry_after_s
                )
                self._on_failure(lease, result, is_last=current is None)
        finally:
            reply.end_wait()
            if current is not None:
                foreign = self._attempt.foreign if self._attempt else None
                dispatcher.done(self.ticket, current, outcome, foreign)

    def _on_failure(
        self, lease: Lease, failure: RouterError | ErrorResponse, *, is_last: bool
    ) -> None:
        """Handles the failure of an attempt; raises the last one."""
        if isinstance(failure, ErrorResponse):
            self._on_error_response(lease, failure, is_last=is_last)
        elif is_last:
            raise failure

    def _on_error_response(self, lease: Lease, error: ErrorResponse, *, is_last: bool) -> None:
        """Handles a node's error response. The last node's response is relayed with the shortest
        `retry-after` of all; if another model can be tried, it is raised instead."""
        if error.retry_after_s is not None:
            self._retry_after_s.append(error.retry_after_s)
        if not is_last:
            return
        retry_after_s = min(self._retry_after_s, default=None)
        if self.ticket.may_fall_back:
            raise self._error_from(lease, error, retry_after_s)
        headers = error.headers
        if retry_after_s is not None:
            headers = {**headers, HEADER_RETRY_AFTER: b"%d" % retry_after_s}
        is_foreign = self._attempt is not None and self._attempt.foreign is not None
        head = NodeHead(error.status, headers)
        self.reply.send_whole(lease, head, error.body, is_foreign=is_foreign)

    def _error_from(
        self, lease: Lease, error: ErrorResponse, retry_after_s: int | None
    ) -> RouterError:
        name = self._dispatcher.node_name(lease)
        kind = QueueFull if error.status == 429 else NodeFailed
        message = sse.error_message(error.body)
        status = f"The node {name} responded with status {error.status}."
        return kind(
            f"The node {name} reports: {message}" if message else status,
            retry_after_s=retry_after_s,
        )


def _outcome_of(failure: RouterError) -> str:
    """Returns the outcome of an attempt that ended with this failure."""
    if isinstance(failure, DeadlineExceeded):
        return OUTCOME_LATE
    if isinstance(failure, ContextTooLong):
        return OUTCOME_REFUSED
    return OUTCOME_DRAINED if isinstance(failure, EndedByAdmin) else OUTCOME_NODE_FAILED
