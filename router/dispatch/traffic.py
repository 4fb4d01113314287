"""What runs on nodes and what waits for one, for those who only look."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from node.protocol.messages import ModelState
from router.fleet.fleet import Fleet
from router.scheduler.breaker import Breaker
from router.scheduler.scheduler import Scheduler
from router.types import (
    Decision,
    Grant,
    Lease,
    Loading,
    Moment,
    Queued,
    Reject,
    Target,
    Ticket,
)


@dataclass(slots=True)
class QueuedTicket:
    """A ticket in the scheduler's queue, and the task that waits for it."""

    ticket: Ticket
    told: Queued
    answer: asyncio.Future[Grant | Reject]


class Traffic:
    """A read-only view of the scheduler and of its queue."""

    def __init__(
        self,
        scheduler: Scheduler,
        fleet: Fleet,
        queue: Mapping[str, QueuedTicket],
        clock: Callable[[], float],
    ) -> None:
        """`queue`: those who wait, by their tickets' ids."""
        self._scheduler = scheduler
        self._fleet = fleet
        self._queue = queue
        self._clock = clock

    def standing(self, ticket_id: str) -> Queued | None:
        """Where a ticket stood when it was queued; None for one that does not wait."""
        waiting = self._queue.get(ticket_id)
        return waiting.told if waiting else None

    def waits_for(self, ticket: Ticket, lease: Lease | None) -> Queued | Loading | None:
        """What the ticket waits for, in the queue or on its lease's node; None where that is its
        answer."""
        standing = self.standing(ticket.request_id)
        anywhere = lease is None or standing is not None
        for view in self._fleet.snapshot:
            if view.status is None or not (anywhere or (lease and view.node_id == lease.node_id)):
                continue
            for model in view.status.models:
                if model.name == ticket.model and model.state is ModelState.LOADING:
                    return Loading(model.name, model.progress)
        return standing

    def explain(self, ticket: Ticket) -> Decision:
        """What would be decided now."""
        return self._scheduler.explain(ticket, Moment(self._clock(), self._fleet.snapshot))

    # --- counts ---

    def in_flight(self, node_id: str) -> int:
        """Requests that hold a lease on the node."""
        return self._scheduler.in_flight(node_id)

    def in_flight_on(self, target: Target) -> int:
        """Requests for the target that are on nodes or wait for one."""
        nodes = [view.node_id for view in self._fleet.snapshot if target.is_on(view)]
        queued = sum(
            each.ticket.model == target.model
            and (each.ticket.cost_bound is not None) is target.is_paid
            and (not target.node_id or each.ticket.pinned_node_id == target.node_id)
            for each in self._queue.values()
        )
        return queued + self._scheduler.rows(target.model, nodes)

    @property
    def open_leases(self) -> int:
        return self._scheduler.open_leases

    def leases_by_node(self) -> dict[str, int]:
        """By the nodes' ids."""
        return {
            view.node_id: self._scheduler.in_flight(view.node_id) for view in self._fleet.snapshot
        }

    def queue_lengths(self) -> list[tuple[tuple[str, str], float]]:
        """Waiting tickets by model and class."""
        counts: dict[tuple[str, str], float] = {}
        for each in self._queue.values():
            labels = (each.ticket.model, each.ticket.priority.name.lower())
            counts[labels] = counts.get(labels, 0.0) + 1.0
        return list(counts.items())

    def queued_models(self) -> frozenset[str]:
        """Models that tickets wait for."""
        return frozenset(each.ticket.model for each in self._queue.values())

    # --- breakers ---

    def breakers(self) -> list[Breaker]:
        """Those that are not closed, by node and model."""
        return self._scheduler.breakers(self._clock())

    def breaker_states(self) -> list[tuple[tuple[str, str, str], float]]:
        """1 for each breaker that is not closed, by node, model and state."""
        return [
            ((view.name, each.model, each.state.value), 1.0)
            for each in self.breakers()
            if (view := self._fleet.node(each.node_id)) is not None
        ]
