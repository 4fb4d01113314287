"""Rejections of tickets that no node can serve."""

from math import ceil

from msgspec.structs import replace

from router.scheduler import explain
from router.scheduler.cost import TicketEstimate, exclusion, ineligible
from router.scheduler.residency import fits
from router.states import ACTIVE
from router.types import Moment, NodeView, Reject, RejectKind, Ticket

RETRY_AFTER_S = 5
"""Seconds after which a client should try again if no node can serve it now."""
MAX_RETRY_AFTER_S = 60
LATE_FACTOR, LATE_S = 2.0, 1.0
"""An estimated wait longer than this multiple of the remaining time plus this constant is certain
to miss the deadline."""


def no_node(estimate: TicketEstimate, moment: Moment) -> Reject:
    """Rejects a ticket that no node can serve now, or none ever could since none has its model."""
    ticket = estimate.ticket
    if estimate.tried:
        names = {view.node_id: view.name for view in moment.fleet}
        failed = [
            names.get(node_id, "a node that was removed") for node_id in sorted(estimate.tried)
        ]
        return _reject(ticket, RejectKind.NO_NODE, explain.failed(failed))
    holders = [view for view in moment.fleet if ticket.model in view.model_names()]
    if not holders:
        return _reject(ticket, RejectKind.UNKNOWN_MODEL, explain.unknown_model(ticket.model))
    why = {view.name: exclusion(estimate, view, view.model(ticket.model)) for view in holders}
    reason = explain.no_node(ticket.model, why)
    if any(_may_serve_later(estimate, view) for view in holders):
        return _reject(ticket, RejectKind.NO_NODE, reason)
    return replace(_reject(ticket, RejectKind.NOT_TAKEN, reason), retry_after_s=None)


def _may_serve_later(estimate: TicketEstimate, view: NodeView) -> bool:
    """True if a node that has the model may serve the ticket later without anybody's
    intervention."""
    if view.state != ACTIVE or ineligible(estimate.ticket, view):
        return False
    model = view.model(estimate.ticket.model)
    return view.status is None or model is None or fits(view.status, model)


def too_late(ticket: Ticket, wait_s: float, now_s: float) -> Reject | None:
    """Rejects a ticket if it would begin so late that it is certain to miss its deadline; None if
    not."""
    if wait_s <= LATE_FACTOR * (ticket.deadline_s - now_s) + LATE_S:
        return None
    return replace(_reject(ticket, RejectKind.DEADLINE, explain.too_late(wait_s)), wait_s=wait_s)


def deadline_passed(ticket: Ticket) -> Reject:
    return _reject(ticket, RejectKind.DEADLINE, explain.DEADLINE_PASSED)


def full(ticket: Ticket, max_waiting: int, position: int, wait_s: float) -> Reject:
    """Rejects the ticket at that position since too many wait."""
    return replace(
        _reject(ticket, RejectKind.QUEUE_FULL, explain.queue_full(ticket.model, max_waiting)),
        retry_after_s=max(RETRY_AFTER_S, min(MAX_RETRY_AFTER_S, ceil(wait_s))),
        position=position,
        wait_s=wait_s,
    )


def _reject(ticket: Ticket, kind: RejectKind, reason: str) -> Reject:
    return Reject(ticket.request_id, kind, reason, RETRY_AFTER_S)
