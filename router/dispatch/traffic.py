"""A read-only view of the requests that run on nodes or wait for one, and of their decisions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil

from node.protocol.messages import ModelState
from router.client.framing import Loading
from router.fleet.fleet import Fleet
from router.records.decisions import Decisions
from router.scheduler.breaker import Breaker
from router.scheduler.scheduler import Scheduler
from router.types import (
    Decision,
    Grant,
    Lease,
    Moment,
    Queued,
    Reject,
    Target,
    Ticket,
)


@dataclass(slots=True)
class QueuedTicket:
    """A ticket in the scheduler's queue, and the future that its request awaits."""

    ticket: Ticket
    queued: Queued
    decided: asyncio.Future[Grant | Reject]


class Traffic:
    """A read-only view of the scheduler, its queue and its decisions."""

    def __init__(
        self,
        scheduler: Scheduler,
        fleet: Fleet,
        queue: Mapping[str, QueuedTicket],
        decisions: Decisions,
        clock: Callable[[], float],
    ) -> None:
        """`queue` maps the ids of waiting tickets to them."""
        self._scheduler = scheduler
        self._fleet = fleet
        self._queue = queue
        self._decisions = decisions
        self._clock = clock

    def queued(self, ticket_id: str) -> Queued | None:
        """Returns a ticket's position at the time it was queued; None if it does not wait."""
        waiting = self._queue.get(ticket_id)
        return waiting.queued if waiting else None

    def waits_for(self, ticket: Ticket, lease: Lease | None) -> Queued | Loading | None:
        """Returns what the ticket waits for: its place in the queue or a model's load; None if it
        waits for its response only."""
        standing = self.queued(ticket.request_id)
        anywhere = lease is None or standing is not None
        for view in self._fleet.snapshot:
            if not (anywhere or (lease and view.node_id == lease.node_id)):
                continue
            model = view.model(ticket.model)
            if model is not None and model.state is ModelState.LOADING:
                return Loading(model.name, model.progress)
        return standing

    def node_name(self, lease: Lease) -> str:
        return self._fleet.name_of(lease.node_id)

    def decision_line(self, ticket_id: str) -> bytes:
        """Returns the ticket's latest decision on one line of ASCII; empty where none is known."""
        return self._decisions.short(ticket_id)

    def explain(self, ticket: Ticket) -> Decision:
        """Returns the decision that would be made at this time."""
        return self._scheduler.explain(ticket, Moment(self._clock(), self._fleet.snapshot))

    def prompt_tokens(self, model: str, prompt_bytes: int) -> int:
        """Estimates the tokens of a prompt whose chain covers so many bytes."""
        return ceil(self._scheduler.prompt_tokens(model, prompt_bytes))

    # --- counts ---

    def in_flight(self, node_id: str) -> int:
        """Returns the number of requests that have a lease on the node."""
        return self._scheduler.in_flight(node_id)

    def in_flight_on(self, target: Target) -> int:
        """Counts the requests for the target that run on nodes or wait for one."""
        nodes = [view.node_id for view in self._fleet.snapshot if target.is_on(view)]
        queued = sum(
            each.ticket.model == target.model
            and (each.ticket.cost_bound is not None) is target.is_paid
            and (not target.node_id or each.ticket.pinned_node_id == target.node_id)
            for each in self._queue.values()
        )
        return queued + self._scheduler.rows(target.model, nodes)

    def leases_by_node(self) -> dict[str, int]:
        """Returns the number of open leases by node id."""
        return {
            view.node_id: self._scheduler.in_flight(view.node_id) for view in self._fleet.snapshot
        }

    def queue_lengths(self) -> list[tuple[tuple[str, str], float]]:
        """Counts waiting tickets by model and class."""
        counts: dict[tuple[str, str], float] = {}
        for each in self._queue.values():
            labels = (each.ticket.model, each.ticket.priority.name.lower())
            counts[labels] = counts.get(labels, 0.0) + 1.0
        return list(counts.items())

    def oldest_waits(self) -> dict[tuple[str, str], float]:
        """Returns the seconds that the oldest waiting ticket has waited, by model and class."""
        now_s, waits = self._clock(), dict[tuple[str, str], float]()
        for each in self._queue.values():
            labels = (each.ticket.model, each.ticket.priority.name.lower())
            waits[labels] = max(waits.get(labels, 0.0), now_s - each.ticket.arrived_s)
        return waits

    def queued_models(self) -> frozenset[str]:
        """Returns the models that tickets wait for."""
        return frozenset(each.ticket.model for each in self._queue.values())

    # --- breakers ---

    def breakers(self) -> list[Breaker]:
        """Lists the breakers that are not closed, by node and model."""
        return self._scheduler.breakers(self._clock())

    def breaker_states(self) -> list[tuple[tuple[str, str, str], float]]:
        """Returns 1 for each breaker that is not closed, by node, model and state."""
        return [
            ((view.name, each.model, each.state.value), 1.0)
            for each in self.breakers()
            if (view := self._fleet.node(each.node_id)) is not None
        ]
