"""Which node serves a request, and when. Pure: events and the fleet's last words in, actions out.

A ticket is granted when the node that costs it least can begin with it, and waits here until then,
so that order and place are decided as late as they can be.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from router.scheduler.admission import Admission, able, decision
from router.scheduler.breaker import Breaker
from router.scheduler.feedback import Ended
from router.scheduler.node_state import Books
from router.scheduler.placement import Placement
from router.scheduler.queue import AdmissionLimits
from router.scheduler.rates import Rates
from router.scheduler.rejects import no_node
from router.scheduler.sessions import Sessions
from router.types import (
    Action,
    Decision,
    Failure,
    Lease,
    Moment,
    NodeView,
    Prefixes,
    Ticket,
    Verdict,
)

MAX_ATTEMPTS = 2
NO_LIMITS_GIVEN = AdmissionLimits()


class Scheduler:
    """Owner of the leases and of the queue. Methods are plain functions: state changes without an
    await between. Whatever returns actions may return some for other tickets, too."""

    def __init__(self, prefixes: Prefixes, limits: AdmissionLimits = NO_LIMITS_GIVEN) -> None:
        self._rates = Rates()
        self._books = Books()
        self._sessions = Sessions()
        self._placement = Placement(prefixes, self._rates, self._books, self._sessions)
        self._admission = Admission(self._books, self._placement, limits)
        self._ended = Ended(self._rates, self._books, self._sessions)
        self._fleet: tuple[NodeView, ...] = ()

    # --- events ---

    def on_request(self, ticket: Ticket, moment: Moment) -> list[Action]:
        """A new request: granted, queued or rejected."""
        self._see(moment)
        return self._admission.admit(self._placement.ask(ticket, moment.now_s), moment)

    def on_left(self, ticket_id: str, moment: Moment) -> list[Action]:
        """The caller of a queued ticket has left: nothing more is said of it."""
        self._admission.leave(ticket_id)
        return []

    def on_first_content(self, lease: Lease, moment: Moment) -> list[Action]:
        """The lease's answer has begun: its prefill is over."""
        opened = self._books.opened(lease)
        if opened is None or opened.first_content_s is not None:
            return []
        opened.first_content_s = moment.now_s
        self._books.of(lease.node_id).end_prefill(lease.ticket_id, moment.now_s)
        return self._look(moment)

    def on_failed(
        self, lease: Lease, moment: Moment, how: Failure, retry_after_s: float | None = None
    ) -> list[Action]:
        """A lease's node failed before any content was sent; `retry_after_s`: the wait that one
        told which turned it away.

        Granted or queued once more, elsewhere; on the same node only where it did not say so itself
        and no other is left. What the node never got is no attempt at it.
        """
        self._see(moment)
        opened = self._books.close(lease, moment.now_s, lingers=False)
        ask = replace(
            self._placement.ask(opened.ticket, moment.now_s),
            tried=opened.tried,
            attempt=lease.attempt - opened.ticket.earlier_attempts,
        )
        if how is not Failure.UNSENT:
            if how is Failure.TURNED_AWAY:
                self._books.turn_away(lease, moment.now_s, retry_after_s)
            else:
                self._books.fail(lease, moment.now_s)
            self._books.forget_session(opened)
            ask = replace(ask, tried=opened.tried | {lease.node_id})
            if ask.attempt >= MAX_ATTEMPTS:
                return [no_node(ask, moment), *self._look(moment)]
            ask = replace(ask, attempt=ask.attempt + 1)
        if how is Failure.BROKEN and not able(ask, moment):
            ask = replace(ask, tried=opened.tried)
        return [*self._admission.admit(ask, moment), *self._look(moment)]

    def on_done(
        self, lease: Lease, moment: Moment, *, served: bool, failed: bool = False
    ) -> list[Action]:
        """A lease has ended; one that was served to its end teaches the node's service time, one
        that the node failed counts against it. Neither: its node's verdict is still to come."""
        opened = self._books.close(lease, moment.now_s, lingers=not failed)
        if failed:
            self._books.fail(lease, moment.now_s)
        elif served:
            self._ended.on_served(opened, moment.now_s)
        else:
            self._ended.await_verdict(opened, moment.now_s)
        return self._look(moment)

    def on_verdict(self, verdict: Verdict) -> None:
        """The node's own word on a lease that has ended: what was sent whole may have failed."""
        self._ended.on_verdict(verdict)

    def on_fleet(self, moment: Moment) -> list[Action]:
        """A node came, went, or told something new."""
        self._see(moment)
        return [*self._admission.drop_unable(moment), *self._look(moment)]

    def on_node_removed(self, node_id: str) -> None:
        """Forgets what was learned of a node; its open leases end by themselves."""
        self._rates.forget_node(node_id)
        self._books.forget_node(node_id)

    def on_time(self, moment: Moment) -> list[Action]:
        """The time that `wake_s` named has come."""
        return [*self._admission.late(moment), *self._look(moment)]

    # --- reading ---

    def wake_s(self) -> float | None:
        """When `on_time` is to be called next, on the moments' clock; None while nothing waits."""
        return self._admission.wake_s()

    def explain(self, ticket: Ticket, moment: Moment) -> Decision:
        """What would be decided now. Changes nothing that the next event would not."""
        self._see(moment)
        ask = self._placement.ask(ticket, moment.now_s)
        choice = self._placement.decide(ask, moment, {})
        return decision(ticket, choice, moment.now_s, waited_s=0.0)

    def breakers(self, now_s: float) -> list[Breaker]:
        """Those that are not closed, by node and model."""
        return self._books.breakers(now_s)

    def in_flight(self, node_id: str) -> int:
        book = self._books.known(node_id)
        return len(book.leases) if book is not None else 0

    def rows(self, model: str, node_ids: Iterable[str]) -> int:
        """Leases of a model on some nodes."""
        books = map(self._books.known, node_ids)
        return sum(book.rows.get(model, 0) for book in books if book is not None)

    @property
    def open_leases(self) -> int:
        return sum(len(book.leases) for book in self._books)

    @property
    def queued(self) -> int:
        return len(self._admission)

    # --- state ---

    def _look(self, moment: Moment) -> list[Action]:
        if not self._admission:
            return []
        self._see(moment)
        return self._admission.look(moment)

    def _see(self, moment: Moment) -> None:
        """Notes what nodes have told, and what time has ended."""
        for book in self._books:
            if book.lingering:
                book.settle(moment.now_s)
        if moment.fleet is self._fleet:
            return
        self._fleet = moment.fleet
        for view in moment.fleet:
            if view.status is not None:
                book = self._books.of(view.node_id)
                if book.status is not view.status:
                    book.hear(view.status, moment.now_s)
