"""Decides which sleeping nodes are woken for the tickets that wait: a node that would have one of
them served sooner than the nodes that are awake, after all that waits before it."""

from collections.abc import Iterable, Mapping

from router.scheduler.placement import Choice, Placement
from router.scheduler.queue import FairQueue, WaitingTicket
from router.types import Moment
from router.waking import WakeNode


def nodes_to_wake(queue: FairQueue, placement: Placement, moment: Moment) -> list[WakeNode]:
    """The nodes that are to be woken and are not yet."""
    if not queue:
        return []
    asleep = {
        view.node_id
        for view in moment.fleet
        if view.may_be_woken and view.waking is not None and view.waking.since_s is None
    }
    if not asleep:
        return []
    wanted = {_wanted(waiting, queue, placement, moment) for waiting in _last_of_each(queue)}
    return [WakeNode(node_id) for node_id in sorted(wanted & asleep)]


def _last_of_each(queue: FairQueue) -> Iterable[WaitingTicket]:
    """The newest ticket of each model and, where a stored response needs one, of each node: no
    other one of these waits for more."""
    newest: Mapping[tuple[str, str], WaitingTicket] = {
        (each.estimate.ticket.model, each.estimate.ticket.pinned_node_id): each
        for each in queue.tickets()
    }
    return newest.values()


def _wanted(waiting: WaitingTicket, queue: FairQueue, placement: Placement, moment: Moment) -> str:
    """The node that is best for the ticket if those that are awake serve all that waits before it;
    empty if there is none."""
    estimate = waiting.estimate
    choice = placement.decide(estimate, moment, {})
    awake = [
        each.node_id
        for each, view in zip(choice.terms, moment.fleet, strict=True)
        if view.reachable and not each.excluded
    ]
    if awake:
        _, ahead_s = queue.ahead(waiting)
        planned_s = dict.fromkeys(awake, ahead_s / len(awake))
        choice = placement.decide(estimate, moment, planned_s)
    return _node_of(choice)


def _node_of(choice: Choice) -> str:
    return choice.chosen.node_id if choice.index >= 0 else ""
