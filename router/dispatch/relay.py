"""One request for one model, on its way to a node and back: attempts until a node serves it."""

from router.client import response_headers, sse
from router.client.response_headers import HEADER_RETRY_AFTER, NodeHead
from router.dispatch.attempt import Attempt
from router.dispatch.attempt_outcome import Answered, how
from router.dispatch.dispatcher import Cut, Dispatcher
from router.dispatch.reply import Reply
from router.errors import ContextTooLong, DeadlineExceeded, NodeFailed, QueueFull, RouterError
from router.records.ledger import (
    OUTCOME_CANCELLED,
    OUTCOME_DRAINED,
    OUTCOME_LATE,
    OUTCOME_NODE_FAILED,
    OUTCOME_REFUSED,
)
from router.types import Lease

_FINAL = frozenset((OUTCOME_LATE, OUTCOME_REFUSED))
"""Outcomes that another node would not change."""


class Relay:
    """Owner of a ticket's leases, from its first attempt to its last."""

    def __init__(self, reply: Reply, dispatcher: Dispatcher) -> None:
        self.reply = reply
        self.ticket = reply.ticket
        self._dispatcher = dispatcher
        self._waits_s: list[int] = []
        """What nodes that turned it away told to wait."""
        self._attempt: Attempt | None = None
        """The newest one."""

    @property
    def request_id(self) -> str:
        """The request's id as its caller sees it: it names the node, once there is one."""
        lease = self.reply.lease
        return self.ticket.request_id if lease is None else response_headers.id_on_node(lease)

    @property
    def attempts(self) -> int:
        """How many times the request has been sent to a node, for earlier models too."""
        lease = self.reply.lease
        return self.ticket.earlier_attempts if lease is None else lease.attempt

    async def run(self) -> None:
        """Attempts until one is served, or no node is left to try. Whatever it raises, `Reply.fail`
        tells the caller."""
        reply, dispatcher = self.reply, self._dispatcher
        held: Lease | None = None
        outcome = OUTCOME_CANCELLED
        reply.wait()
        try:
            held = await dispatcher.place(self.ticket)
            while held is not None:
                lease, outcome = held, OUTCOME_CANCELLED
                try:
                    with dispatcher.watch(self.ticket, lease, reply.is_paused) as progress:
                        reply.wait(lease)
                        self._attempt = Attempt(reply, lease, dispatcher, progress)
                        outcome = await self._attempt.run()
                    return
                except RouterError as failure:
                    outcome = _outcome_of(failure)
                    if reply.has_content or outcome in _FINAL:
                        raise
                    held = None  # given back, whatever comes of the wait for another one
                    held = await dispatcher.place_again(
                        self.ticket, lease, how(failure), failure.retry_after_s
                    )
                    if isinstance(failure, Answered):
                        self._turned_away(lease, failure, is_last=held is None)
                    elif held is None:
                        raise
        finally:
            reply.stop_waiting()
            if held is not None:
                foreign = self._attempt.foreign if self._attempt else None
                dispatcher.done(self.ticket, held, outcome, foreign)

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
        is_foreign = self._attempt is not None and self._attempt.foreign is not None
        head = NodeHead(failure.status, headers)
        self.reply.send_whole(lease, head, failure.answer, is_foreign=is_foreign)

    def _told(self, lease: Lease, failure: Answered, wait_s: int | None) -> RouterError:
        name = self._dispatcher.node_name(lease)
        kind = QueueFull if failure.status == 429 else NodeFailed
        told = sse.error_message(failure.answer)
        status = f"The node {name} answered with status {failure.status}."
        return kind(f"The node {name} says: {told}" if told else status, retry_after_s=wait_s)


def _outcome_of(failure: RouterError) -> str:
    """Of an attempt that it ends."""
    if isinstance(failure, DeadlineExceeded):
        return OUTCOME_LATE
    if isinstance(failure, ContextTooLong):
        return OUTCOME_REFUSED
    return OUTCOME_DRAINED if isinstance(failure, Cut) else OUTCOME_NODE_FAILED
