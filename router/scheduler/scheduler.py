"""Decides which node serves a request, and when. Pure: events and the nodes' last states go in,
actions come out.

A ticket is granted when the node where it costs least can begin with it. Until then it waits in the
router, so that order and node are decided as late as possible.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from router.coverage import Prefixes
from router.scheduler.admission import Admission, decision, is_servable
from router.scheduler.breaker import Breaker
from router.scheduler.feedback import Feedback
from router.scheduler.node_state import NodeBooks
from router.scheduler.placement import Placement
from router.scheduler.queue import AdmissionLimits
from router.scheduler.rates import Rates
from router.scheduler.rejects import no_node
from router.scheduler.sessions import Sessions
from router.types import Action, Decision, Failure, Lease, Moment, NodeView, Ticket, Verdict

MAX_ATTEMPTS = 2
NO_LIMITS_GIVEN = AdmissionLimits()


class Scheduler:
    """Owner of the leases and the queue. All methods are synchronous, so state never changes during
    a decision. Methods that return actions may return some for other tickets, too."""

    def __init__(self, prefixes: Prefixes, limits: AdmissionLimits = NO_LIMITS_GIVEN) -> None:
        self._rates = Rates()
        self._books = NodeBooks()
        self._sessions = Sessions()
        self._placement = Placement(prefixes, self._rates, self._books, self._sessions)
        self._admission = Admission(self._books, self._placement, limits)
        self._feedback = Feedback(self._rates, self._books, self._sessions)
        self._fleet: tuple[NodeView, ...] = ()

    def set_limits(self, limits: AdmissionLimits) -> None:
        """Changes the limits of the queue; tickets that wait keep waiting."""
        self._admission.set_limits(limits)

    # --- events ---

    def on_request(self, ticket: Ticket, moment: Moment) -> list[Action]:
        """Grants, queues or rejects a new request."""
        self._apply_statuses(moment)
        actions = self._admission.admit(self._placement.estimate(ticket, moment.now_s), moment)
        return [*actions, *self._admission.wakes(moment)]

    def on_disconnect(self, ticket_id: str) -> None:
        """Forgets a queued ticket whose client has disconnected."""
        self._admission.remove(ticket_id)

    def on_first_content(self, lease: Lease, moment: Moment) -> list[Action]:
        """Ends the prefill of a lease whose response has begun."""
        open_lease = self._books.find(lease)
        if open_lease is None or open_lease.first_content_s is not None:
            return []
        open_lease.first_content_s = moment.now_s
        self._books.of(lease.node_id).end_prefill(lease.ticket_id, moment.now_s)
        return self._scan(moment)

    def on_failed(
        self, lease: Lease, moment: Moment, failure: Failure, retry_after_s: float | None = None
    ) -> list[Action]:
        """Places a ticket again after its node failed before the first content; `retry_after_s` is
        the `Retry-After` of a rejection.

        It goes to another node. The same one gets it again only if the connection broke and no
        other is left. A request that never reached the node does not count as an attempt.
        """
        self._apply_statuses(moment)
        open_lease = self._books.close(lease, moment.now_s, lingers=False)
        estimate = replace(
            self._placement.estimate(open_lease.ticket, moment.now_s),
            tried=open_lease.tried,
            attempt=lease.attempt - open_lease.ticket.earlier_attempts,
        )
        if failure is not Failure.UNSENT:
            if failure is Failure.BUSY:
                self._books.reject(lease, moment.now_s, retry_after_s)
            else:
                self._books.fail(lease, moment.now_s)
            self._books.forget_session(open_lease)
            estimate = replace(estimate, tried=open_lease.tried | {lease.node_id})
            if estimate.attempt >= MAX_ATTEMPTS:
                return [no_node(estimate, moment), *self._scan(moment)]
            estimate = replace(estimate, attempt=estimate.attempt + 1)
        if failure is Failure.BROKEN and not is_servable(estimate, moment):
            estimate = replace(estimate, tried=open_lease.tried)
        actions = [*self._admission.admit(estimate, moment), *self._scan(moment)]
        return [*actions, *self._admission.wakes(moment)]

    def on_done(
        self, lease: Lease, moment: Moment, *, served: bool, failed: bool = False
    ) -> list[Action]:
        """Ends a lease. If it was served to its end, the node's service time is learned; if the
        node failed it, the failure counts against the node; otherwise the node's verdict is still
        to come."""
        open_lease = self._books.close(lease, moment.now_s, lingers=not failed)
        if failed:
            self._books.fail(lease, moment.now_s)
        elif served:
            self._feedback.on_served(open_lease, moment.now_s)
        else:
            self._feedback.await_verdict(open_lease, moment.now_s)
        return self._scan(moment)

    def on_verdict(self, verdict: Verdict) -> None:
        """Applies the node's usage record of an ended lease: a response that was relayed whole may
        still have failed."""
        self._feedback.on_verdict(verdict)

    def on_fleet(self, moment: Moment) -> list[Action]:
        """Applies a change of the fleet or of a node's state."""
        self._apply_statuses(moment)
        actions = [*self._admission.reject_unable(moment), *self._scan(moment)]
        return [*actions, *self._admission.wakes(moment)]

    def on_node_removed(self, node_id: str) -> None:
        """Forgets what was learned of a node; its open leases end as usual."""
        self._rates.forget_node(node_id)
        self._books.forget_node(node_id)

    def on_time(self, moment: Moment) -> list[Action]:
        """Does what is due at the time that `wake_s` returned."""
        actions = [*self._admission.reject_late(moment), *self._scan(moment)]
        return [*actions, *self._admission.wakes(moment)]

    # --- reading ---

    def wake_s(self) -> float | None:
        """Monotonic time of the next `on_time`; None while nothing waits."""
        return self._admission.wake_s()

    def explain(self, ticket: Ticket, moment: Moment) -> Decision:
        """The decision that would be made now. Changes nothing that the next event would not
        change, too."""
        self._apply_statuses(moment)
        estimate = self._placement.estimate(ticket, moment.now_s)
        choice = self._placement.decide(estimate, moment, {})
        return decision(ticket, choice, moment.now_s, waited_s=0.0)

    def breakers(self, now_s: float) -> list[Breaker]:
        """The breakers that are not closed, by node and model."""
        return self._books.breakers(now_s)

    def in_flight(self, node_id: str) -> int:
        book = self._books.known(node_id)
        return len(book.leases) if book is not None else 0

    def rows(self, model: str, node_ids: Iterable[str]) -> int:
        """Number of leases of a model on these nodes."""
        books = map(self._books.known, node_ids)
        return sum(book.rows.get(model, 0) for book in books if book is not None)

    def prompt_tokens(self, model: str, prompt_bytes: int) -> float:
        """Estimate for a prompt whose chain covers so many bytes."""
        return self._rates.averages(model).tokens_per_byte.value * prompt_bytes

    # --- state ---

    def _scan(self, moment: Moment) -> list[Action]:
        if not self._admission:
            return []
        self._apply_statuses(moment)
        return self._admission.scan(moment)

    def _apply_statuses(self, moment: Moment) -> None:
        """Applies new statuses, and forgets lingering leases whose time is up."""
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
                    book.on_status(view.status, moment.now_s)
