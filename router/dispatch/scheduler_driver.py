"""Sends events to the scheduler, and its actions to the requests that wait for them."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from router.dispatch.traffic import QueuedTicket, Traffic
from router.errors import (
    DeadlineExceeded,
    NoNodeReady,
    NotTaken,
    QueueFull,
    RouterError,
    UnknownModel,
)
from router.fleet.fleet import Fleet
from router.fleet.predictions import Predictions
from router.records.decisions import Decisions
from router.records.metrics import Metrics
from router.records.outcomes import OUTCOME_CANCELLED, LedgerListener
from router.scheduler.scheduler import Scheduler
from router.types import (
    Action,
    Failure,
    Grant,
    Lease,
    Moment,
    Queued,
    Reject,
    RejectKind,
    Ticket,
    Tokens,
    Verdict,
)
from router.waking import WakeNode

_ERRORS: dict[RejectKind, type[RouterError]] = {
    RejectKind.UNKNOWN_MODEL: UnknownModel,
    RejectKind.NO_NODE: NoNodeReady,
    RejectKind.NOT_TAKEN: NotTaken,
    RejectKind.QUEUE_FULL: QueueFull,
    RejectKind.DEADLINE: DeadlineExceeded,
}


class SchedulerDriver(LedgerListener):
    """Owns the scheduler and the tasks that wait for tickets."""

    def __init__(
        self,
        scheduler: Scheduler,
        fleet: Fleet,
        decisions: Decisions,
        metrics: Metrics,
        predictions: Predictions,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scheduler = scheduler
        self._fleet = fleet
        self._decisions = decisions
        self._metrics = metrics
        self._predictions = predictions
        self._clock = clock
        self._waiting: dict[str, QueuedTicket] = {}
        self.wake_node: Callable[[str], object] = _wake_nobody
        """Is called with the id of a node that a request needs and that sleeps."""
        self.traffic = Traffic(scheduler, fleet, self._waiting, decisions, clock)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0
        """Time at which the timer fires, on the scheduler's clock."""
        fleet.listen(self._on_fleet)

    # --- for those who want a node ---

    async def place(self, ticket: Ticket) -> Lease:
        """Waits until a node can take the ticket; returns the lease.

        Raises `UnknownModel`, `NoNodeReady`, `QueueFull` or `DeadlineExceeded`.
        """
        own = self._perform(self._scheduler.on_request(ticket, self._moment()), ticket)
        return _lease_of(await self._wait(ticket, own) if isinstance(own, Queued) else own)

    async def place_again(
        self, ticket: Ticket, lease: Lease, failure: Failure, retry_after_s: float | None = None
    ) -> Lease:
        """Returns a lease in place of one whose node failed before content, as
        `Scheduler.on_failed`. Raises what `place` raises."""
        actions = self._scheduler.on_failed(lease, self._moment(), failure, retry_after_s)
        own = self._perform(actions, ticket)
        return _lease_of(await self._wait(ticket, own) if isinstance(own, Queued) else own)

    # --- events of the relay ---

    def on_first_content(self, lease: Lease, ttft_s: float) -> None:
        """Records the first content of the lease's response, `ttft_s` seconds after its ticket
        arrived."""
        self._decisions.first_content(lease.ticket_id, ttft_s)
        self._metrics.first_content(lease, ttft_s)
        self._perform(self._scheduler.on_first_content(lease, self._moment()))

    def on_done(self, lease: Lease, *, served: bool, failed: bool = False) -> None:
        """Ends the lease, as `Scheduler.on_done`."""
        actions = self._scheduler.on_done(lease, self._moment(), served=served, failed=failed)
        self._perform(actions)

    # --- events of the ledger ---

    def on_prefilled(self, lease: Lease) -> None:
        self._perform(self._scheduler.on_first_content(lease, self._moment()))

    def on_used(
        self, ticket: Ticket, lease: Lease, tokens: Tokens | None, gap_s: float | None
    ) -> None:
        self._metrics.used(ticket, lease, tokens, gap_s)

    def on_verdict(self, verdict: Verdict, ticket: Ticket) -> None:
        self._scheduler.on_verdict(verdict)
        self._decisions.on_verdict(verdict)
        ttft_s = verdict.usage.ttft_s if verdict.usage else None
        if not ticket.stream and ttft_s is not None:
            waited_s = verdict.lease.granted_s - ticket.arrived_s
            self._metrics.first_content(verdict.lease, waited_s + ttft_s)
        self._predictions.on_verdict(verdict, ticket.chain)

    def on_disconnected(self, verdict: Verdict, ticket: Ticket) -> None:
        self._predictions.on_verdict(verdict, ticket.chain)

    def on_refused(self, verdict: Verdict) -> None:
        self._decisions.on_verdict(verdict)

    # --- events of the fleet and the clock ---

    def on_node_removed(self, node_id: str) -> None:
        self._scheduler.on_node_removed(node_id)

    def _on_fleet(self) -> None:
        self._perform(self._scheduler.on_fleet(self._moment()))

    def _on_time(self) -> None:
        self._timer = None
        self._perform(self._scheduler.on_time(self._moment()))

    # --- actions ---

    def _moment(self) -> Moment:
        return Moment(self._clock(), self._fleet.snapshot)

    async def _wait(self, ticket: Ticket, queued: Queued) -> Grant | Reject:
        decided: asyncio.Future[Grant | Reject] = asyncio.get_running_loop().create_future()
        ticket_id, begin_s = ticket.request_id, self._clock()
        self._waiting[ticket_id] = QueuedTicket(ticket, queued, decided)
        self._set_timer()
        try:
            return await decided
        except asyncio.CancelledError:
            self._withdraw(ticket_id, decided)
            raise
        finally:
            self._metrics.queue_left(ticket.model, ticket.priority, self._clock() - begin_s)

    def _withdraw(self, ticket_id: str, decided: asyncio.Future[Grant | Reject]) -> None:
        """Removes a ticket whose task is cancelled, perhaps after its grant but before it has
        woken."""
        if self._waiting.pop(ticket_id, None) is not None:
            self._scheduler.on_disconnect(ticket_id)
            self._set_timer()
        elif decided.done() and not decided.cancelled():
            granted = decided.result()
            if isinstance(granted, Grant):
                self._perform(self._end_unused(granted.lease))

    def _perform(self, actions: Iterable[Action], of: Ticket | None = None) -> Action | None:
        """Sends each action to the task that waits for it. Returns the last action for the ticket
        `of`, which does not wait yet; None if there is none."""
        own: Action | None = None
        due = deque(actions)
        while due:
            action = due.popleft()
            if isinstance(action, WakeNode):
                # Later, since it changes the fleet: an event within an event.
                asyncio.get_running_loop().call_soon(self.wake_node, action.node_id)
                continue
            is_own = of is not None and _ticket_id(action) == of.request_id
            ticket = of if is_own else self._waiting_ticket(action)
            if ticket is not None:
                self._record_decision(ticket, action)
            if is_own:
                own = action
            elif not isinstance(action, Queued):
                due.extend(self._wake(action))
        self._set_timer()
        return own

    def _waiting_ticket(self, action: Grant | Queued | Reject) -> Ticket | None:
        waiting = self._waiting.get(_ticket_id(action))
        return waiting.ticket if waiting else None

    def _record_decision(self, ticket: Ticket, action: Action) -> None:
        if isinstance(action, Grant):
            self._decisions.granted(ticket, action.decision)
        elif isinstance(action, Reject):
            self._decisions.rejected(ticket, action)

    def _wake(self, action: Grant | Reject) -> list[Action]:
        """Wakes the ticket's task; returns the actions that follow if it cannot take a grant any
        more."""
        waiting = self._waiting.pop(_ticket_id(action), None)
        if waiting is None or waiting.decided.done():
            # Its client has disconnected, and its task has not run since.
            return self._end_unused(action.lease) if isinstance(action, Grant) else []
        if isinstance(action, Reject) and not action.position:
            queued = waiting.queued
            action = replace(action, position=queued.position, wait_s=queued.wait_s)
        waiting.decided.set_result(action)
        return []

    def _end_unused(self, lease: Lease) -> list[Action]:
        """Ends a lease that no task is there to use."""
        self._decisions.ended(lease.ticket_id, OUTCOME_CANCELLED)
        return self._scheduler.on_done(lease, self._moment(), served=False)

    def _set_timer(self) -> None:
        """Sets one timer, for the time that the scheduler requests."""
        wake_s = self._scheduler.wake_s()
        if wake_s is None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            return
        if self._timer is not None:
            if self._timer_s == wake_s:
                return
            self._timer.cancel()
        self._timer_s = wake_s
        after_s = max(0.0, wake_s - self._clock())
        self._timer = asyncio.get_running_loop().call_later(after_s, self._on_time)


def _wake_nobody(_node_id: str) -> None:
    """Takes the place of the part that wakes nodes, until there is one."""


def _ticket_id(action: Grant | Queued | Reject) -> str:
    return action.lease.ticket_id if isinstance(action, Grant) else action.ticket_id


def _lease_of(action: Action | None) -> Lease:
    """Returns the lease of a granted ticket. Raises the error of a rejected one."""
    if isinstance(action, Grant):
        return action.lease
    assert isinstance(action, Reject)
    raise _error_of(action)


def _error_of(action: Reject) -> RouterError:
    kind = _ERRORS[action.kind]
    if kind is UnknownModel:
        return UnknownModel(action.reason, param="model")
    error = kind(action.reason, retry_after_s=action.retry_after_s)
    if action.position:
        error.set_standing(action.position, action.wait_s)
    return error
