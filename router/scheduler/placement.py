"""Finds the best node for a ticket, and checks if the ticket can begin there now."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat

import msgspec
from msgspec.structs import replace

from node.protocol.messages import ModelStatus, NodeStatus
from node.protocol.paths import PATH_COUNT_TOKENS
from node.protocol.swap_rule import NO_DISPLACEMENT
from router.coverage import Prefixes
from router.scheduler.cost import (
    CostModel,
    HomeCost,
    TicketEstimate,
    choose,
    occupancy,
    work_s,
)
from router.scheduler.node_state import NodeBook, NodeBooks
from router.scheduler.rates import Rates, tokens_per_byte
from router.scheduler.residency import displacement
from router.scheduler.sessions import NEW_PACE, SessionPace, Sessions
from router.scheduler.warm_sessions import Demand
from router.types import Moment, NodeTerms, NodeView, Ticket
from router.waking import Waking

MAX_AHEAD_S = 0.25
"""A node gets more prefill while it has no more than this ahead of it, so that it does not run dry
before its next report."""
COST_TTL_S, COST_TTL_TICKETS = 1.0, 16
"""A waiting ticket's cost stays valid for `COST_TTL_S` while up to `COST_TTL_TICKETS` wait, and
proportionally longer while more do. On a node that could begin, any change of the node voids it; on
a busy one only time does. It is computed anew before a grant."""


class Choice(msgspec.Struct, frozen=True):
    """The terms of all nodes, and the best one."""

    terms: tuple[NodeTerms, ...]
    index: int = -1
    """Index of the chosen node; -1 if none can serve the ticket."""
    tied: bool = False

    @property
    def chosen(self) -> NodeTerms:
        return self.terms[self.index]


@dataclass(slots=True)
class CachedCost:
    """A node's cost for a waiting ticket, cached while it is valid."""

    node_id: str
    reachable: bool
    waking: Waking | None
    version: int
    made_s: float
    excluded: bool
    base_s: float
    """Sum of all terms without the prefill ahead."""
    work_s: float
    cached_tokens: int


class QueueTimes:
    """Seconds of work ahead of a request on each of the fleet's nodes during one scan, with the
    work that waits in the router for that node."""

    def __init__(self, books: NodeBooks, moment: Moment, planned_s: Mapping[str, float]) -> None:
        self._books = books
        self._moment = moment
        self._planned_s = planned_s
        self._found_s: dict[str, list[float]] = {}

    def of(self, model: str) -> list[float]:
        found_s = self._found_s.get(model)
        if found_s is None:
            found_s = self._found_s[model] = [
                self._books.of(view.node_id).ahead_s(model, self._moment.now_s)
                + self._planned_s.get(view.node_id, 0.0)
                for view in self._moment.fleet
            ]
        return found_s

    def grant(self, index: int, terms: NodeTerms, model: str) -> None:
        """Adds the granted work. A load delays only requests for the same model."""
        for name, found_s in self._found_s.items():
            if name == model or not terms.load_s:
                found_s[index] += work_s(terms)

    def plan(self, index: int, ahead_s: float) -> None:
        for found_s in self._found_s.values():
            found_s[index] += ahead_s


class Placement:
    """Compares nodes. It reads the other parts' state and has none of its own."""

    def __init__(
        self, prefixes: Prefixes, rates: Rates, books: NodeBooks, sessions: Sessions
    ) -> None:
        self._rates = rates
        self._books = books
        self._sessions = sessions
        self._cost_model = CostModel(prefixes, rates, books)

    def estimate(self, ticket: Ticket, now_s: float) -> TicketEstimate:
        averages = self._rates.averages(ticket.model)
        token_share = averages.tokens_per_byte.value
        prompt_bytes = 0
        if ticket.path != PATH_COUNT_TOKENS:
            prompt_bytes = ticket.chain.sizes[-1] if ticket.chain else len(ticket.body)
        key = self._sessions.key(ticket)
        home = self._sessions.find(ticket, now_s)
        prompt_tokens = prompt_bytes * token_share
        if home is not None and 0 < home.prompt_bytes <= prompt_bytes and home.prompt_tokens:
            known_share = tokens_per_byte(home.prompt_tokens, home.prompt_bytes)
            prompt_tokens = home.prompt_tokens + (prompt_bytes - home.prompt_bytes) * known_share
        pace = NEW_PACE
        if home is not None and home.key == key:
            pace = home.pace.after_gap(ticket.arrived_s - home.arrived_s)
            added_tokens = min(pace.tokens, prompt_tokens)
            if 0 < home.prompt_bytes < prompt_bytes:
                added_tokens = prompt_tokens * (1.0 - home.prompt_bytes / prompt_bytes)
            pace = pace.after_turn(added_tokens)
        return TicketEstimate(
            ticket=ticket,
            session=key,
            home=home,
            prompt_bytes=prompt_bytes,
            prompt_tokens=prompt_tokens,
            tokens_per_byte=token_share,
            output_tokens=averages.output_tokens.value,
            pace=pace,
        )

    def demand(self, pace: SessionPace, terms: NodeTerms, model: str) -> Demand:
        """Demand of the ticket's session at the speed of the node that the terms are for."""
        rates, tokens = self._rates.known(terms.node_id, model), terms.prompt_tokens
        if rates is None:
            return pace.demand(1.0)
        prefill = rates.prefill
        return pace.demand(prefill.seconds(tokens, tokens + 1.0) / prefill.token_s)

    def is_learned(self, node_id: str, model: str) -> bool:
        """True if requests have shown how fast the node prefills the model."""
        rates = self._rates.known(node_id, model)
        return rates is not None and rates.prefill.is_learned

    def decide(
        self, estimate: TicketEstimate, moment: Moment, planned_s: Mapping[str, float]
    ) -> Choice:
        """Compares all nodes; `planned_s` is the prefill that waits here and goes to a node before
        this ticket."""
        terms = self._cost_model.all_terms(estimate, moment.fleet, moment.now_s)
        if planned_s:
            terms = tuple(
                replace(each, queue_s=each.queue_s + planned_s[each.node_id])
                if each.node_id in planned_s
                else each
                for each in terms
            )
        candidates = [
            (index, each.total_s, each.cached_tokens)
            for index, each in enumerate(terms)
            if not each.excluded
        ]
        return Choice(terms, *self._cheapest(candidates, moment, estimate.ticket.model))

    def cost_ttl_s(self, waiting: int) -> float:
        """Seconds that costs stay valid while so many tickets wait."""
        return COST_TTL_S * max(1.0, waiting / COST_TTL_TICKETS)

    def costs(self, terms: Sequence[NodeTerms], model: str, moment: Moment) -> list[CachedCost]:
        """Costs from terms without planned work."""
        return list(
            map(self._cached_cost, terms, repeat(model), moment.fleet, repeat(moment.now_s))
        )

    def queue_times(self, moment: Moment, planned_s: Mapping[str, float]) -> QueueTimes:
        return QueueTimes(self._books, moment, planned_s)

    def best_by_cost(
        self,
        estimate: TicketEstimate,
        costs: list[CachedCost],
        moment: Moment,
        queue_times_s: Sequence[float],
        cost_ttl_s: float,
    ) -> int:
        """Index of the best node for a waiting ticket by its costs, after renewing those that are
        no longer valid; -1 if none can serve it."""
        self._renew(estimate, costs, moment, queue_times_s, cost_ttl_s)
        candidates = [
            (index, cost.base_s + queue_s, cost.cached_tokens)
            for index, (cost, queue_s) in enumerate(zip(costs, queue_times_s, strict=True))
            if not cost.excluded
        ]
        return self._cheapest(candidates, moment, estimate.ticket.model)[0]

    def can_begin(self, view: NodeView, model: str, now_s: float) -> bool:
        """True if the node would begin with another request at once."""
        status = view.model(model)
        if status is None or view.status is None or not view.reachable:
            return False
        book = self._books.of(view.node_id)
        if not _has_room(book, view.status, status, now_s):
            return False
        # If other clients take all rows, one request of ours waits in the node's own queue: with
        # many more of theirs there would never be a free row.
        if book.rows.get(model, 0) >= max(1, status.max_rows - book.external_rows(model)):
            return False
        return status.cache is None or book.ahead_s(model, now_s) <= MAX_AHEAD_S

    def has_room(self, view: NodeView, model: str, now_s: float) -> bool:
        """True if no other model must be unloaded from the node first."""
        status = view.model(model)
        if status is None or view.status is None:
            return True
        return _has_room(self._books.of(view.node_id), view.status, status, now_s)

    def free_s(self, view: NodeView, now_s: float) -> float:
        """When the prefill ahead of the node will be small enough; infinite if only a report from
        the node can show it."""
        return self._books.of(view.node_id).falls_below_s(MAX_AHEAD_S, now_s)

    def _renew(
        self,
        estimate: TicketEstimate,
        costs: list[CachedCost],
        moment: Moment,
        queue_times_s: Sequence[float],
        cost_ttl_s: float,
    ) -> None:
        fleet, model, now_s = moment.fleet, estimate.ticket.model, moment.now_s
        if len(costs) != len(fleet):
            costs[:] = self.costs(self._cost_model.all_terms(estimate, fleet, now_s), model, moment)
            return
        stale = [
            index
            for index, (cost, view, queue_s) in enumerate(
                zip(costs, fleet, queue_times_s, strict=True)
            )
            if cost.node_id != view.node_id
            or cost.reachable is not view.reachable
            or cost.waking is not view.waking
            or not 0.0 <= now_s - cost.made_s < cost_ttl_s
            or (queue_s <= MAX_AHEAD_S and cost.version != self._books.of(view.node_id).version)
        ]
        if not stale:
            return
        home = None
        if estimate.home is not None:
            home_id = estimate.home.node_id
            at_home = next((i for i, each in enumerate(fleet) if each.node_id == home_id), -1)
            if at_home in stale:
                stale.remove(at_home)
                terms = self._cost_model.terms(estimate, fleet[at_home], now_s, None)
                costs[at_home] = self._cached_cost(terms, model, fleet[at_home], now_s)
            if at_home >= 0 and costs[at_home].cached_tokens:
                cost, book = costs[at_home], self._books.of(home_id)
                home = HomeCost(cost.cached_tokens, cost.base_s + book.ahead_s(model, now_s))
        for index in stale:
            terms = self._cost_model.terms(estimate, fleet[index], now_s, home)
            costs[index] = self._cached_cost(terms, model, fleet[index], now_s)

    def _cached_cost(
        self, terms: NodeTerms, model: str, view: NodeView, now_s: float
    ) -> CachedCost:
        book = self._books.of(view.node_id)
        return CachedCost(
            node_id=view.node_id,
            reachable=view.reachable,
            waking=view.waking,
            version=book.version,
            made_s=now_s,
            excluded=bool(terms.excluded),
            base_s=terms.total_s - book.ahead_s(model, now_s),
            work_s=work_s(terms),
            cached_tokens=terms.cached_tokens,
        )

    def _cheapest(
        self, candidates: Sequence[tuple[int, float, int]], moment: Moment, model: str
    ) -> tuple[int, bool]:
        """The index of the best node, -1 if there is none, and True if others are equally good.
        `candidates` has the index, the cost in seconds and the cached tokens of each node that can
        serve the ticket."""
        if not candidates:
            return -1, False
        able, totals_s, cached = zip(*candidates, strict=True)
        best, tied = choose(totals_s, cached, self._rank(able, moment, model))
        return able[best], tied

    def _rank(
        self, able: Sequence[int], moment: Moment, model: str
    ) -> Callable[[int], tuple[bool, float, int]]:
        """Ranks equally good nodes: first those that can begin now, then by the occupancy of their
        caches, then by the age of their last grant. Full caches are equal however much more they
        should have kept."""

        def rank(number: int) -> tuple[bool, float, int]:
            view = moment.fleet[able[number]]
            book = self._books.of(view.node_id)
            waits = not self.can_begin(view, model, moment.now_s)
            status = view.model(model)
            full = occupancy(status.cache if status else None, book.warm.get(model), moment.now_s)
            return waits, round(min(full, 1.0), 2), book.last_grant

        return rank


def _has_room(book: NodeBook, node: NodeStatus, model: ModelStatus, now_s: float) -> bool:
    if model.name in book.closed:
        return False
    needed = displacement(book, node, model, now_s)
    return needed is NO_DISPLACEMENT or needed.can_unload(now_s)
