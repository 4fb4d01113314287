"""The state of each node that follows from this router's own actions: leases, prefill ahead, and
warm sessions."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from node.protocol.chain.prefix import Chain
from node.protocol.messages import ModelState, NodeStatus
from router.scheduler.breaker import Breaker, Circuit
from router.scheduler.external_load import ExternalRows
from router.scheduler.sessions import SessionPace
from router.scheduler.warm_sessions import Demand, WarmSessions
from router.types import Lease, NodeTerms, Ticket

LINGER_S = 2.0
"""Time after a request's end within which its node reports what it has kept cached of it."""
OVERDUE_FACTOR, OVERDUE_S = 2.0, 1.0
"""A prefill counts as over after this multiple of its estimate plus this constant, even without a
report: the node may be one that reports nothing for long."""


@dataclass(slots=True)
class OpenLease:
    """A ticket with its lease and the estimates it was granted on."""

    ticket: Ticket
    lease: Lease
    session: str
    terms: NodeTerms
    rows: int
    """Other rows of its model that ran on the node at the grant."""
    pace: SessionPace
    """Pace of its session, with this turn."""
    demand: Demand
    """Demand of its session at the node's speed."""
    tried: frozenset[str] = frozenset()
    """Nodes that failed the ticket before."""
    work_s: float = 0.0
    """Seconds of prefill and restore."""
    added_positions: tuple[int, int] = (0, 0)
    """Range of positions of its chain that the node will have cached once it is prefilled."""
    was_alone: bool = True
    """True if no other prefill ran on the node at the grant."""
    reports_prefill_end: bool = True
    """True if the node or the response shows the end of the prefill."""
    first_content_s: float | None = None
    longest_s: float = field(init=False)
    """Upper bound of the prefill's duration."""

    def __post_init__(self) -> None:
        self.longest_s = self.work_s
        if self.reports_prefill_end:
            self.longest_s = OVERDUE_FACTOR * self.work_s + OVERDUE_S

    @property
    def uncached_tokens(self) -> int:
        return self.terms.prompt_tokens - self.terms.cached_tokens


class Ready(NamedTuple):
    """One load of a model that is ready."""

    generation: int
    since_s: float
    """When a status first showed it ready; minus infinity if the first status of the node did."""


@dataclass(slots=True)
class NodeBook:
    """The bookkeeping of one node. It assumes that prefills run one after the other, in the order
    of their grants."""

    status: NodeStatus | None = None
    """The last status that was applied."""
    instance_id: str = ""
    leases: dict[str, OpenLease] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    """Number of leases by model."""
    external: dict[str, ExternalRows] = field(default_factory=dict)
    """Rows of other clients, by model."""
    prefilling: dict[str, OpenLease] = field(default_factory=dict)
    backlog_s: float = 0.0
    """Seconds of work of all in `prefilling`, the first one included."""
    pending_tokens: int = 0
    """Tokens that they will add to the node's caches."""
    prefill_since_s: float = 0.0
    """When the first of them began."""
    loading: dict[str, OpenLease] = field(default_factory=dict)
    """Leases whose model is not ready yet; they delay only each other."""
    pending_hashes: dict[int, int] = field(default_factory=dict)
    """Chain hashes that open leases will have cached, each with the number of these leases."""
    lingering: deque[tuple[float, OpenLease]] = field(default_factory=deque)
    """Ended leases of which the node may not have reported yet what it keeps, each after the time
    until which it counts."""
    warm: dict[str, WarmSessions] = field(default_factory=dict)
    """Warm sessions by model."""
    circuits: dict[str, Circuit] = field(default_factory=dict)
    """Circuit breakers by model."""
    ready: dict[str, Ready] = field(default_factory=dict)
    """The loads of ready models, by model."""
    closed: frozenset[str] = frozenset()
    """Models that get no more requests here, so that another one can have their memory."""
    last_grant: int = 0
    """Number of the latest grant to this node, counted over all nodes; 0 before the first."""
    version: int = 0
    """Grows whenever the node's costs may have changed by anything but time."""

    def open(self, open_lease: OpenLease, now_s: float) -> None:
        ticket_id, model = open_lease.lease.ticket_id, open_lease.lease.model
        circuit = self.circuits.get(model)
        if circuit is not None and not circuit.is_closed and not circuit.blocks(now_s):
            circuit.trial = ticket_id
        self.leases[ticket_id] = open_lease
        self.rows[model] = own = self.rows.get(model, 0) + 1
        if model in self.external:
            self.external[model].most_own = max(own, self.external[model].most_own)
        if open_lease.terms.load_s > 0.0 or self.loads(model):
            self.loading[ticket_id] = open_lease
        else:
            self._begin_prefill(open_lease, now_s)
        for each in _hashes(open_lease):
            self.pending_hashes[each] = self.pending_hashes.get(each, 0) + 1
        if open_lease.ticket.chain is not None:
            self.touch(open_lease, open_lease.terms.prompt_tokens, now_s)
        self.version += 1

    def loads(self, model: str) -> list[OpenLease]:
        """The leases that wait for the model's load, first the one that it was begun for."""
        return [each for each in self.loading.values() if each.lease.model == model]

    def load_until_s(self, model: str) -> float:
        """When the model's load and the prefills that wait for it will be done; minus infinity if
        it is not being loaded."""
        begins_s = (each.lease.granted_s + each.terms.load_s for each in self.loads(model))
        return next(begins_s, -inf) + sum(each.work_s for each in self.loads(model))

    def _begin_prefill(self, open_lease: OpenLease, now_s: float) -> None:
        if open_lease.work_s > 0.0:
            if not self.prefilling:
                self.prefill_since_s = now_s
            self.prefilling[open_lease.lease.ticket_id] = open_lease
            self.backlog_s += open_lease.work_s
            self.pending_tokens += open_lease.uncached_tokens

    def circuit(self, model: str) -> Circuit:
        found = self.circuits.get(model)
        if found is None:
            found = self.circuits[model] = Circuit()
        return found

    def touch(self, open_lease: OpenLease, tokens: int, now_s: float) -> None:
        """Marks the lease's session as warm here, with so many tokens."""
        warm = self.warm.setdefault(open_lease.lease.model, WarmSessions())
        warm.touch(open_lease.session, tokens, open_lease.demand, now_s)
        self.version += 1

    def close(self, ticket_id: str, now_s: float, *, lingers: bool) -> OpenLease:
        """Ends the lease; with `lingers` the node is likely to keep its prefix cached."""
        open_lease = self.leases.pop(ticket_id)
        model = open_lease.lease.model
        circuit = self.circuits.get(model)
        if circuit is not None and circuit.trial == ticket_id:
            circuit.trial = ""
        self.rows[model] -= 1
        if not self.rows[model]:
            del self.rows[model]
        self.end_prefill(ticket_id, now_s)
        if lingers and open_lease.first_content_s is not None:
            self.lingering.append((now_s + LINGER_S, open_lease))
        else:
            self._drop_hashes(open_lease)
        self.version += 1
        return open_lease

    def _drop_hashes(self, open_lease: OpenLease) -> None:
        for each in _hashes(open_lease):
            count = self.pending_hashes.get(each, 0) - 1
            if count > 0:
                self.pending_hashes[each] = count
            else:
                self.pending_hashes.pop(each, None)

    def end_prefill(self, ticket_id: str, now_s: float) -> None:
        self.loading.pop(ticket_id, None)
        open_lease = self.prefilling.get(ticket_id)
        if open_lease is None:
            return
        if open_lease is next(iter(self.prefilling.values())):
            self.prefill_since_s = now_s
        del self.prefilling[ticket_id]
        # Clears what rounding has left.
        self.backlog_s = self.backlog_s - open_lease.work_s if self.prefilling else 0.0
        self.pending_tokens -= open_lease.uncached_tokens
        self.version += 1

    def settle(self, now_s: float) -> None:
        """Ends the prefills that must be over by now, and forgets lingering leases whose time is
        up."""
        while self.lingering and self.lingering[0][0] <= now_s:
            self._drop_hashes(self.lingering.popleft()[1])
            self.version += 1
        while self.prefilling:
            first = next(iter(self.prefilling.values()))
            if now_s - self.prefill_since_s < first.longest_s:
                return
            # After a jump of the clock, `now_s` would be too late as the next one's beginning.
            self.end_prefill(first.lease.ticket_id, min(now_s, self.prefill_since_s + first.work_s))

    def ahead_s(self, model: str, now_s: float) -> float:
        """Seconds that a new request for the model would wait, not counting what `settle` would
        end: for the prefills of loaded models, or for its own model's load and the prefills that
        wait for it."""
        if self.loading and (waiting := self.loads(model)):
            backlog_s = sum(each.work_s for each in waiting)
            return max(backlog_s, self.load_until_s(model) - now_s)
        backlog_s, since_s = self.backlog_s, self.prefill_since_s
        for first in self.prefilling.values():
            spent_s = now_s - since_s
            if spent_s < first.longest_s:
                return max(0.0, backlog_s - min(first.work_s, max(0.0, spent_s)))
            backlog_s -= first.work_s
            since_s = min(now_s, since_s + first.work_s)
        return 0.0

    def falls_below_s(self, ahead_s: float, now_s: float) -> float:
        """When the prefill ahead will have shrunk to `ahead_s`, or else when the first prefill ends
        at the latest; infinite if nothing prefills. Lies in the future if the book is settled,
        since an overdue prefill has no known end."""
        if not self.prefilling:
            return inf
        first = next(iter(self.prefilling.values()))
        falls_s = self.prefill_since_s + self.backlog_s - ahead_s
        if self.backlog_s - first.work_s <= ahead_s and falls_s > now_s:
            return falls_s
        return self.prefill_since_s + first.longest_s

    def pending_positions(self, chain: Chain, cached: int) -> int:
        """Number of the chain's leading positions that the node will have cached once its leases
        are prefilled; it has the first `cached` already."""
        pending, hashes = self.pending_hashes, chain.hashes
        if not pending:
            return cached
        until = len(hashes)
        while cached < until and hashes[cached] in pending:
            cached += 1
        return cached

    def on_status(self, status: NodeStatus, now_s: float) -> None:
        """Applies the node's latest status."""
        is_first = self.status is None
        self.status = status
        if self.instance_id != status.instance_id:
            self.restart(status.instance_id)
        for model in status.models:
            external = self.external.setdefault(model.name, ExternalRows())
            before = external.count
            external.update(model.active_requests, self.rows.get(model.name, 0))
            self.version += before != external.count
        before_ready, self.ready = self.ready, {}
        for model in status.models:
            if model.state is ModelState.READY:
                ready = before_ready.get(model.name)
                if ready is None or ready.generation != model.generation:
                    ready = Ready(model.generation, -inf if is_first else now_s)
                self.ready[model.name] = ready
                for open_lease in self.loads(model.name):
                    del self.loading[open_lease.lease.ticket_id]
                    self._begin_prefill(open_lease, now_s)

    def external_rows(self, model: str) -> int:
        """Number of rows of other clients that is certain."""
        external = self.external.get(model)
        return external.count if external is not None else 0

    def restart(self, instance_id: str) -> None:
        """Forgets what the previous instance of the agent was doing; the new one does not continue
        it."""
        self.instance_id = instance_id
        self.prefilling.clear()
        self.loading.clear()
        self.backlog_s = 0.0
        self.pending_tokens = 0
        self.pending_hashes.clear()
        self.lingering.clear()
        self.warm.clear()
        self.circuits.clear()
        self.external.clear()
        self.ready.clear()
        self.closed = frozenset()
        for open_lease in self.leases.values():
            open_lease.added_positions = (0, 0)
        self.version += 1


def _hashes(open_lease: OpenLease) -> Iterator[int]:
    begin, end = open_lease.added_positions
    chain = open_lease.ticket.chain
    if chain is not None and begin < end:
        yield from chain.hashes[begin:end]


class NodeBooks:
    """Owner of the books of all nodes."""

    def __init__(self) -> None:
        self._nodes: dict[str, NodeBook] = {}
        self._grants = 0

    def of(self, node_id: str) -> NodeBook:
        book = self._nodes.get(node_id)
        if book is None:
            book = self._nodes[node_id] = NodeBook()
        return book

    def known(self, node_id: str) -> NodeBook | None:
        return self._nodes.get(node_id)

    def open(self, open_lease: OpenLease, now_s: float) -> None:
        """Charges the lease to its node, before the node reports anything of it."""
        book = self.of(open_lease.lease.node_id)
        self._grants += 1
        book.last_grant = self._grants
        book.open(open_lease, now_s)

    def fail(self, lease: Lease, now_s: float) -> None:
        """Records that the node failed the lease."""
        book = self._nodes.get(lease.node_id)
        if book is not None and book.instance_id in ("", lease.instance_id):
            book.circuit(lease.model).fail(lease.granted_s, now_s)
            book.version += 1

    def reject(self, lease: Lease, now_s: float, retry_after_s: float | None) -> None:
        """Records that the node rejected the lease's request; `retry_after_s` is None without a
        `Retry-After`."""
        book = self._nodes.get(lease.node_id)
        if book is not None and book.instance_id in ("", lease.instance_id):
            book.circuit(lease.model).back_off(now_s, retry_after_s)
            book.version += 1

    def serve(self, lease: Lease, now_s: float) -> None:
        """Records that the node served the lease to its end."""
        book = self._nodes.get(lease.node_id)
        if book is not None:
            circuit = book.circuit(lease.model)
            book.version += circuit.serve(now_s) + circuit.end_back_off(lease.granted_s)

    def breakers(self, now_s: float) -> list[Breaker]:
        """The breakers that are not closed."""
        return [
            Breaker(node_id, model, circuit.state(now_s), *circuit.counts(), circuit.until_s)
            for node_id, book in self._nodes.items()
            for model, circuit in book.circuits.items()
            if not circuit.is_closed
        ]

    def forget_node(self, node_id: str) -> None:
        """Forgets the node, but keeps its open leases until they end."""
        book = self._nodes.pop(node_id, None)
        if book is not None and book.leases:
            kept = self.of(node_id)
            kept.leases, kept.rows = book.leases, book.rows
            kept.prefilling, kept.backlog_s = book.prefilling, book.backlog_s
            kept.pending_tokens = book.pending_tokens
            kept.prefill_since_s, kept.pending_hashes = book.prefill_since_s, book.pending_hashes
            kept.loading = book.loading
            kept.lingering = book.lingering

    def find(self, lease: Lease) -> OpenLease | None:
        """The lease's record; None if it is not open."""
        book = self._nodes.get(lease.node_id)
        open_lease = book.leases.get(lease.ticket_id) if book is not None else None
        return open_lease if open_lease is not None and open_lease.lease == lease else None

    def close(self, lease: Lease, now_s: float, *, lingers: bool) -> OpenLease:
        """Ends the lease, as in `NodeBook.close`. Raises `KeyError` if it is not open, since it
        would be released twice."""
        if self.find(lease) is None:
            raise KeyError(lease)
        return self._nodes[lease.node_id].close(lease.ticket_id, now_s, lingers=lingers)

    def forget_session(self, open_lease: OpenLease) -> None:
        """Forgets that the lease's session is warm on its node."""
        book = self._nodes.get(open_lease.lease.node_id)
        warm = book.warm.get(open_lease.lease.model) if book is not None else None
        if warm is not None:
            warm.forget(open_lease.session)

    def __iter__(self) -> Iterator[NodeBook]:
        return iter(self._nodes.values())
