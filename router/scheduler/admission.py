"""Decides which tickets are granted now, which wait, and which are rejected."""

from math import inf

from msgspec.structs import replace

from router.scheduler import explain, rejects
from router.scheduler.cost import TicketEstimate, exclusion, prefill_s, work_s
from router.scheduler.node_state import NodeBooks, OpenLease
from router.scheduler.placement import Choice, Placement, QueueTimes
from router.scheduler.queue import AdmissionLimits, FairQueue, WaitingTicket
from router.scheduler.queue_scan import FreeNodes, QueueScan, has_free
from router.scheduler.residency import models_to_close
from router.scheduler.sleepers import nodes_to_wake
from router.states import ACTIVE, KIND_AGENT
from router.types import Action, Decision, Grant, Lease, Moment, NodeView, Queued, Reject, Ticket

SCAN_INTERVAL_S = 1.0
"""Longest interval between two scans of the queue; `MIN_SCAN_S` is the shortest."""
MIN_SCAN_S = 0.002
RESUME_S = 0.01
"""Seconds until the scan that goes on with the tickets that the last one had no time for."""
CHANGED_SHARE = 0.1
"""A ticket keeps its place in the queue if its work has changed by less."""


class Admission:
    """Owner of the queue."""

    def __init__(self, books: NodeBooks, placement: Placement, limits: AdmissionLimits) -> None:
        self._books = books
        self._placement = placement
        self._queue = FairQueue(limits)
        self._queue_scan = QueueScan(self._queue)
        self._next_scan_s = inf
        self._rescan_s = -inf
        """When all waiting tickets are compared again, even if no node has become free."""
        self._has_closed_models = False
        self._close_s = inf
        """When some node may have to be closed to some model."""
        self._planned_s: dict[str, float] = {}
        """Prefill seconds that wait here, by the node that is best for them."""
        self._checked_fleet: tuple[NodeView, ...] = ()
        """The last fleet for which each waiting ticket has a node that can serve it."""

    def __len__(self) -> int:
        return len(self._queue)

    def __bool__(self) -> bool:
        return bool(self._queue)

    def wake_s(self) -> float | None:
        """When the next deadline or scan is due; None while nothing waits."""
        return min(self._next_scan_s, self._queue.next_deadline_s()) if self._queue else None

    def set_limits(self, limits: AdmissionLimits) -> None:
        self._queue.limits = limits

    def remove(self, ticket_id: str) -> None:
        """Forgets a ticket whose client has disconnected."""
        self._queue.remove(ticket_id)

    def admit(self, estimate: TicketEstimate, moment: Moment) -> list[Action]:
        """Grants, queues or rejects a new ticket. If it is queued, the actions may grant others,
        too."""
        ticket, now_s = estimate.ticket, moment.now_s
        if ticket.deadline_s <= now_s:
            return [rejects.deadline_passed(ticket)]
        self._close_models(moment)
        choice = self._placement.decide(estimate, moment, {})
        if choice.index < 0:
            return [rejects.no_node(estimate, moment)]
        view = moment.fleet[choice.index]
        may_begin = not self._queue and self._placement.can_begin(view, ticket.model, now_s)
        if may_begin or (view.reachable and not estimate.prompt_bytes):
            return [
                self._too_late(estimate, choice, now_s) or self._grant(estimate, choice, moment)
            ]
        waiting = WaitingTicket(estimate, ticket.arrived_s, _least_work_s(choice))
        waiting.costs = self._placement.costs(choice.terms, ticket.model, moment)
        self._queue.add(waiting)
        actions = self.scan(moment, waiting)
        if ticket.request_id not in self._queue:
            return actions
        return [*self._queued(waiting, choice, moment), *actions]

    def scan(self, moment: Moment, new: WaitingTicket | None = None) -> list[Action]:
        """Grants what can begin now, in the queue's order. A free node that the waiting tickets
        have not taken is offered to the `new` ticket at once."""
        if not self._queue:
            return []
        now_s, scan = moment.now_s, self._queue_scan
        for book in self._books:
            book.settle(now_s)
        self._close_models(moment)
        free = self._free(moment)
        if not 0.0 < self._rescan_s - now_s <= SCAN_INTERVAL_S:
            self._rescan_s = now_s + SCAN_INTERVAL_S
            self._expect_sessions(now_s)
            scan.renew()
        promoted: list[WaitingTicket] = []
        grants: list[Grant] = []
        if scan.has_new(free):
            self._planned_s = {}
            promoted = scan.promoted(free, now_s)
            first = [each for each in scan.first(free) if each not in promoted]
            grants += self._offer_each([*promoted, *first], free, moment, only_new=True)
            if scan.has_new(free):
                scan.decline(free)
        grants += self._offer_each(scan.rest(free), free, moment)
        if new is not None and scan.may_offer(new, free):
            grants += self._offer_each([new], free, moment)
        for grant in grants:
            ticket_id = grant.lease.ticket_id
            is_promoted = any(each.estimate.ticket.request_id == ticket_id for each in promoted)
            self._queue.grant(ticket_id, is_promoted=is_promoted)
        self._plan_scan(moment, is_due=scan.end(free))
        return list(grants)

    def _close_models(self, moment: Moment) -> None:
        """Closes models of a node to new requests if another one has waited too long for their
        memory."""
        if self._queue or self._has_closed_models:
            nodes = {
                view.node_id: (self._books.of(view.node_id), view.status)
                for view in moment.fleet
                if view.status is not None and view.reachable and view.state == ACTIVE
            }
            closed, self._close_s = models_to_close(self._queue.oldest(), nodes, moment.now_s)
            self._has_closed_models = bool(closed)
            for node_id, (book, _) in nodes.items():
                models = closed.get(node_id, frozenset())
                book.version += models != book.closed
                book.closed = models

    def _expect_sessions(self, now_s: float) -> None:
        """Marks the sessions of waiting tickets as certain to need what the node where they are
        warm has cached."""
        for waiting in self._queue.tickets():
            home = waiting.estimate.home
            book = self._books.known(home.node_id) if home is not None else None
            warm = book.warm.get(waiting.estimate.ticket.model) if book is not None else None
            if warm is not None:
                warm.expect(waiting.estimate.session, now_s)

    def _offer_each(
        self, turn: list[WaitingTicket], free: FreeNodes, moment: Moment, *, only_new: bool = False
    ) -> list[Grant]:
        """Grants to those of `turn` that can begin. With `only_new` it stops once nothing is free
        that was not free before."""
        grants: list[Grant] = []
        queue_times = self._placement.queue_times(moment, self._planned_s)
        for waiting in turn:
            if only_new and not self._queue_scan.has_new(free):
                break
            if not has_free(waiting.estimate, free):
                continue
            self._queue_scan.mark_offered(waiting)
            index = self._grant_or_plan(waiting, moment, queue_times, grants)
            if index >= 0:
                self._discard_busy(free, moment.fleet[index], moment.now_s)
        return grants

    def _free(self, moment: Moment) -> FreeNodes:
        """Returns the nodes that would begin a request now, by each model that tickets wait for."""
        can_begin = self._placement.can_begin
        return {
            model: {
                view.node_id
                for view in moment.fleet
                if view.reachable and can_begin(view, model, moment.now_s)
            }
            for model in self._queue.models()
        }

    def _discard_busy(self, free: FreeNodes, view: NodeView, now_s: float) -> None:
        for model, nodes in free.items():
            if view.node_id in nodes and not self._placement.can_begin(view, model, now_s):
                nodes.discard(view.node_id)

    def wakes(self, moment: Moment) -> list[Action]:
        """Wakes the sleeping nodes that waiting tickets need."""
        return list(nodes_to_wake(self._queue, self._placement, moment))

    def reject_unable(self, moment: Moment) -> list[Action]:
        """Rejects the tickets that no node can serve any more."""
        before, self._checked_fleet = self._checked_fleet, moment.fleet
        if not self._queue or not _may_serve_less(before, moment.fleet):
            return []
        return [
            self._reject(waiting, rejects.no_node(waiting.estimate, moment))
            for waiting in self._queue.tickets()
            if not is_servable(waiting.estimate, moment)
        ]

    def reject_late(self, moment: Moment) -> list[Action]:
        """Rejects the tickets whose deadline has passed."""
        return [
            self._reject(waiting, rejects.deadline_passed(waiting.estimate.ticket))
            for waiting in self._queue.overdue(moment.now_s)
        ]

    # --- offers of free nodes ---

    def _grant_or_plan(
        self,
        waiting: WaitingTicket,
        moment: Moment,
        queue_times: QueueTimes,
        grants: list[Grant],
    ) -> int:
        """Adds a grant if the ticket can begin on its best node. Otherwise plans the ticket's work
        there, so that tickets behind it count it, unless it waits for memory. Returns the node's
        index, -1 if there is none."""
        estimate, model, now_s = waiting.estimate, waiting.estimate.ticket.model, moment.now_s
        cost_ttl_s = self._placement.cost_ttl_s(len(self._queue))
        index = self._placement.best_by_cost(
            estimate, waiting.costs, moment, queue_times.of(model), cost_ttl_s
        )
        if index < 0 or estimate.ticket.deadline_s <= now_s:
            return -1
        if self._placement.can_begin(moment.fleet[index], model, now_s):
            choice = self._placement.decide(estimate, moment, self._planned_s)
            index = choice.index
            if index >= 0 and self._placement.can_begin(moment.fleet[index], model, now_s):
                grants.append(self._grant(estimate, choice, moment))
                queue_times.grant(index, choice.chosen, model)
                return index
        if index >= 0:
            view = moment.fleet[index]
            # A ticket that waits for other models to be unloaded does not delay those whose models
            # are loaded.
            if self._placement.has_room(view, model, now_s):
                ahead_s = waiting.costs[index].work_s
                self._planned_s[view.node_id] = self._planned_s.get(view.node_id, 0.0) + ahead_s
                queue_times.plan(index, ahead_s)
            self._reorder(waiting)
        return index

    def _reorder(self, waiting: WaitingTicket) -> None:
        """Moves the ticket in the queue if its work has changed."""
        work_s = min((p.work_s for p in waiting.costs if not p.excluded), default=0.0)
        is_other = abs(work_s - waiting.work_s) > CHANGED_SHARE * waiting.work_s
        if is_other:
            self._queue.set_work(waiting, work_s)

    def _plan_scan(self, moment: Moment, *, is_due: bool) -> None:
        soonest_s = moment.now_s + MIN_SCAN_S
        self._next_scan_s = min(self._rescan_s, max(self._close_s, soonest_s))
        if is_due:
            self._next_scan_s = min(self._next_scan_s, moment.now_s + RESUME_S)
        for view in moment.fleet:
            free_s = self._placement.free_s(view, moment.now_s) if view.reachable else inf
            self._next_scan_s = min(self._next_scan_s, max(free_s, soonest_s))

    def _grant(self, estimate: TicketEstimate, choice: Choice, moment: Moment) -> Grant:
        ticket, terms, now_s = estimate.ticket, choice.chosen, moment.now_s
        view = moment.fleet[choice.index]
        lease = Lease(
            ticket_id=ticket.request_id,
            node_id=terms.node_id,
            model=ticket.model,
            granted_s=now_s,
            attempt=ticket.earlier_attempts + estimate.attempt,
            instance_id=view.status.instance_id if view.status else "",
            predicted_tokens=terms.promised_tokens,
            prompt_tokens=terms.prompt_tokens,
        )
        book = self._books.of(terms.node_id)
        book.settle(now_s)
        open_lease = OpenLease(
            ticket,
            lease,
            estimate.session,
            terms,
            pace=estimate.pace,
            demand=self._placement.demand(estimate.pace, terms, ticket.model),
            rows=book.rows.get(ticket.model, 0) + book.external_rows(ticket.model),
            tried=estimate.tried,
            work_s=prefill_s(terms),
            added_positions=(terms.cached_positions, len(ticket.chain) if ticket.chain else 0),
            was_alone=not book.prefilling and not book.loading,
            reports_prefill_end=ticket.stream or view.kind == KIND_AGENT,
        )
        self._books.open(open_lease, now_s)
        return Grant(lease, decision(ticket, choice, now_s, now_s - ticket.arrived_s))

    def _too_late(self, estimate: TicketEstimate, choice: Choice, now_s: float) -> Reject | None:
        """Rejects a ticket that could begin at once, but would miss its deadline. An idle node
        whose speed is only guessed gets the ticket all the same: nothing else would correct a wrong
        guess."""
        terms = choice.chosen
        if not terms.queue_s and not self._placement.is_learned(
            terms.node_id, estimate.ticket.model
        ):
            return None
        return rejects.too_late(estimate.ticket, terms.queue_s + work_s(terms), now_s)

    # --- waiting tickets ---

    def _queued(self, waiting: WaitingTicket, choice: Choice, moment: Moment) -> list[Action]:
        """Reports a new ticket's place in the queue. Rejects it, or another ticket, if its deadline
        or the queue's limit is exceeded."""
        ticket = waiting.estimate.ticket
        position, wait_s = self._standing(waiting, choice)
        if too_late := rejects.too_late(ticket, wait_s, moment.now_s):
            return [self._reject(waiting, replace(too_late, position=position))]
        queued = Queued(ticket.request_id, position, wait_s)
        if not self._queue.is_overfull(ticket.model):
            return [queued]
        last = (
            self._queue.last_below(ticket.model, ticket.priority)
            or self._queue.last_of_largest(ticket.model, ticket.caller.key_id)
            or waiting
        )
        reject = self._reject_overfull(last, choice)
        return [reject] if last is waiting else [queued, reject]

    def _reject_overfull(self, waiting: WaitingTicket, choice: Choice) -> Reject:
        position, wait_s = self._standing(waiting, choice)
        most = self._queue.limits.max_waiting
        reject = rejects.full(waiting.estimate.ticket, most, position, wait_s)
        return self._reject(waiting, reject)

    def _standing(self, waiting: WaitingTicket, choice: Choice) -> tuple[int, float]:
        """The ticket's position among those of its model, and the estimated wait."""
        ahead, ahead_s = self._queue.ahead(waiting)
        able_nodes = sum(not each.excluded for each in choice.terms)
        wait_s = choice.chosen.queue_s + choice.chosen.wake_s
        return ahead + 1, wait_s + ahead_s / able_nodes

    def _reject(self, waiting: WaitingTicket, reject: Reject) -> Reject:
        self._queue.remove(waiting.estimate.ticket.request_id)
        return reject


def is_servable(estimate: TicketEstimate, moment: Moment) -> bool:
    """True if any node can serve the ticket."""
    return any(
        not exclusion(estimate, view, view.model(estimate.ticket.model)) for view in moment.fleet
    )


def _may_serve_less(before: tuple[NodeView, ...], after: tuple[NodeView, ...]) -> bool:
    """True if some node may have lost the ability to serve something."""
    return len(before) != len(after) or any(
        old is not new
        and (
            old.node_id != new.node_id
            or old.reachable > new.reachable
            or old.may_be_woken > new.may_be_woken
            or old.state != new.state
            or old.model_names() != new.model_names()
        )
        for old, new in zip(before, after, strict=True)
    )


def decision(ticket: Ticket, choice: Choice, now_s: float, waited_s: float) -> Decision:
    if choice.index < 0:
        reason = explain.no_candidate(choice.terms)
        return Decision(ticket.request_id, ticket.model, now_s, "", choice.terms, waited_s, reason)
    chosen = choice.chosen
    others = [each for each in choice.terms if each is not chosen and not each.excluded]
    reason = explain.reason(chosen, others, tied=choice.tied)
    return Decision(
        ticket.request_id, ticket.model, now_s, chosen.node_id, choice.terms, waited_s, reason
    )


def _least_work_s(choice: Choice) -> float:
    return min(work_s(each) for each in choice.terms if not each.excluded)
