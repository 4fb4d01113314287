"""What each node carries by this router's doing: leases, the prefill ahead, and warm sessions."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from node.protocol.messages import ModelState, NodeStatus
from node.protocol.prefix import Chain
from router.scheduler.breaker import Breaker, Circuit
from router.scheduler.external_load import OtherRows
from router.scheduler.sessions import Pace
from router.scheduler.warm_sessions import Demand, WarmSessions
from router.types import Lease, NodeTerms, Ticket

LINGER_S = 2.0
"""After a request's end its node tells within this time what it has kept of it."""
OVERDUE_FACTOR, OVERDUE_S = 2.0, 1.0
"""A prefill that takes longer than so many times its estimate and so much more is taken to be over
though nothing was heard of it: the node may be one that says nothing for long."""


@dataclass(slots=True)
class OpenLease:
    """A ticket that holds a lease, and what was expected of it."""

    ticket: Ticket
    lease: Lease
    session: str
    terms: NodeTerms
    rows: int
    """Other rows of its model that ran there when it was granted."""
    pace: Pace
    """Of its session, this turn counted."""
    demand: Demand
    """Of its session, at its node's speed."""
    tried: frozenset[str] = frozenset()
    """Nodes that failed it before."""
    work_s: float = 0.0
    """Prefill and restore."""
    charged: tuple[int, int] = (0, 0)
    """Positions of its chain that its node will hold once it is prefilled."""
    alone: bool = True
    """Nothing else prefilled there when it was granted."""
    is_told: bool = True
    """Whether its node or its answer tells the end of its prefill."""
    first_content_s: float | None = None
    longest_s: float = field(init=False)
    """What its prefill takes at most."""

    def __post_init__(self) -> None:
        self.longest_s = self.work_s
        if self.is_told:
            self.longest_s = OVERDUE_FACTOR * self.work_s + OVERDUE_S

    @property
    def uncached_tokens(self) -> int:
        return self.terms.prompt_tokens - self.terms.cached_tokens


class Ready(NamedTuple):
    """A load of a model."""

    generation: int
    since_s: float
    """When it was first heard to be ready; minus infinity for one that was so before."""


@dataclass(slots=True)
class NodeBook:
    """One node. Prefills are taken to run one after the other, in the order of their grants."""

    status: NodeStatus | None = None
    """The last one that was noted."""
    instance_id: str = ""
    leases: dict[str, OpenLease] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    """Leases by model."""
    others: dict[str, OtherRows] = field(default_factory=dict)
    """By model."""
    prefilling: dict[str, OpenLease] = field(default_factory=dict)
    behind_s: float = 0.0
    """Work of those that prefill, the first one's too."""
    coming_tokens: int = 0
    """What they add to its caches."""
    since_s: float = 0.0
    """When the first of them began."""
    loading: dict[str, OpenLease] = field(default_factory=dict)
    """Those whose model is not ready yet: they are in nobody's way but each other's."""
    positions: dict[int, int] = field(default_factory=dict)
    """Hashes that leases bring, each with how many bring it."""
    lingering: deque[tuple[float, OpenLease]] = field(default_factory=deque)
    """Ended leases of which the node may not have told what it kept, and until when."""
    warm: dict[str, WarmSessions] = field(default_factory=dict)
    """By model."""
    circuits: dict[str, Circuit] = field(default_factory=dict)
    """By model."""
    ready: dict[str, Ready] = field(default_factory=dict)
    """By model, of those that are."""
    closed: frozenset[str] = frozenset()
    """Models that get no more of it, since another one is to have their room."""
    last_grant: int = 0
    """Number of its latest grant, counted over all nodes; 0 before the first."""
    version: int = 0
    """Grows whenever its costs may have changed otherwise than by time."""

    def open(self, opened: OpenLease, now_s: float) -> None:
        ticket_id, model = opened.lease.ticket_id, opened.lease.model
        circuit = self.circuits.get(model)
        if circuit is not None and not circuit.is_closed and not circuit.bars(now_s):
            circuit.trial = ticket_id
        self.leases[ticket_id] = opened
        self.rows[model] = own = self.rows.get(model, 0) + 1
        if model in self.others:
            self.others[model].most_own = max(own, self.others[model].most_own)
        if opened.terms.load_s > 0.0 or self.loads(model):
            self.loading[ticket_id] = opened
        else:
            self._begin_prefill(opened, now_s)
        for each in _hashes(opened):
            self.positions[each] = self.positions.get(each, 0) + 1
        if opened.ticket.chain is not None:
            self.touch(opened, opened.terms.prompt_tokens, now_s)
        self.version += 1

    def loads(self, model: str) -> list[OpenLease]:
        """The leases that wait for its load, the one that it began with first."""
        return [each for each in self.loading.values() if each.lease.model == model]

    def load_until_s(self, model: str) -> float:
        """When its load and who waits for it are expected to be done; minus infinity for none."""
        begins_s = (each.lease.granted_s + each.terms.load_s for each in self.loads(model))
        return next(begins_s, -inf) + sum(each.work_s for each in self.loads(model))

    def _begin_prefill(self, opened: OpenLease, now_s: float) -> None:
        if opened.work_s > 0.0:
            if not self.prefilling:
                self.since_s = now_s
            self.prefilling[opened.lease.ticket_id] = opened
            self.behind_s += opened.work_s
            self.coming_tokens += opened.uncached_tokens

    def circuit(self, model: str) -> Circuit:
        found = self.circuits.get(model)
        if found is None:
            found = self.circuits[model] = Circuit()
        return found

    def touch(self, opened: OpenLease, tokens: int, now_s: float) -> None:
        """The lease's session is served here, and has so many tokens."""
        warm = self.warm.setdefault(opened.lease.model, WarmSessions())
        warm.touch(opened.session, tokens, opened.demand, now_s)
        self.version += 1

    def close(self, ticket_id: str, now_s: float, *, lingers: bool) -> OpenLease:
        """`lingers`: its node is likely to keep what it has prefilled of it."""
        opened = self.leases.pop(ticket_id)
        model = opened.lease.model
        circuit = self.circuits.get(model)
        if circuit is not None and circuit.trial == ticket_id:
            circuit.trial = ""
        self.rows[model] -= 1
        if not self.rows[model]:
            del self.rows[model]
        self.end_prefill(ticket_id, now_s)
        if lingers and opened.first_content_s is not None:
            self.lingering.append((now_s + LINGER_S, opened))
        else:
            self._drop_positions(opened)
        self.version += 1
        return opened

    def _drop_positions(self, opened: OpenLease) -> None:
        for each in _hashes(opened):
            count = self.positions.get(each, 0) - 1
            if count > 0:
                self.positions[each] = count
            else:
                self.positions.pop(each, None)

    def end_prefill(self, ticket_id: str, now_s: float) -> None:
        self.loading.pop(ticket_id, None)
        opened = self.prefilling.get(ticket_id)
        if opened is None:
            return
        if opened is next(iter(self.prefilling.values())):
            self.since_s = now_s
        del self.prefilling[ticket_id]
        # No rest of a rounding error stays behind.
        self.behind_s = self.behind_s - opened.work_s if self.prefilling else 0.0
        self.coming_tokens -= opened.uncached_tokens
        self.version += 1

    def settle(self, now_s: float) -> None:
        """Ends the prefills that are over by all that is known, and what lingers no longer."""
        while self.lingering and self.lingering[0][0] <= now_s:
            self._drop_positions(self.lingering.popleft()[1])
            self.version += 1
        while self.prefilling:
            first = next(iter(self.prefilling.values()))
            if now_s - self.since_s < first.longest_s:
                return
            # A clock that jumped would be wrong for the next one's beginning, too.
            self.end_prefill(first.lease.ticket_id, min(now_s, self.since_s + first.work_s))

    def ahead_s(self, model: str, now_s: float) -> float:
        """Work that a new request for the model would wait for, without what `settle` would end:
        the prefills of those that are loaded, or its own load and who waits for that."""
        if self.loading and (waiting := self.loads(model)):
            behind_s = sum(each.work_s for each in waiting)
            return max(behind_s, self.load_until_s(model) - now_s)
        behind_s, since_s = self.behind_s, self.since_s
        for first in self.prefilling.values():
            spent_s = now_s - since_s
            if spent_s < first.longest_s:
                return max(0.0, behind_s - min(first.work_s, max(0.0, spent_s)))
            behind_s -= first.work_s
            since_s = min(now_s, since_s + first.work_s)
        return 0.0

    def falls_below_s(self, ahead_s: float, now_s: float) -> float:
        """When no more than so much prefill is expected to be ahead, or else the first one is over
        at the latest; infinite if nothing prefills. Always to come in a book that is settled: what
        is overdue gets no shorter by waiting."""
        if not self.prefilling:
            return inf
        first = next(iter(self.prefilling.values()))
        falls_s = self.since_s + self.behind_s - ahead_s
        if self.behind_s - first.work_s <= ahead_s and falls_s > now_s:
            return falls_s
        return self.since_s + first.longest_s

    def coming(self, chain: Chain, held: int) -> int:
        """How many of the chain's positions the node will hold once its leases are prefilled,
        where it holds the first `held` already."""
        positions, hashes = self.positions, chain.hashes
        if not positions:
            return held
        until = len(hashes)
        while held < until and hashes[held] in positions:
            held += 1
        return held

    def hear(self, status: NodeStatus, now_s: float) -> None:
        """The node's latest word."""
        is_first = self.status is None
        self.status = status
        if self.instance_id != status.instance_id:
            self.restart(status.instance_id)
        for model in status.models:
            others = self.others.setdefault(model.name, OtherRows())
            before = others.count
            others.hear(model.active_requests, self.rows.get(model.name, 0))
            self.version += before != others.count
        before_ready, self.ready = self.ready, {}
        for model in status.models:
            if model.state is ModelState.READY:
                ready = before_ready.get(model.name)
                if ready is None or ready.generation != model.generation:
                    ready = Ready(model.generation, -inf if is_first else now_s)
                self.ready[model.name] = ready
                for opened in self.loads(model.name):
                    del self.loading[opened.lease.ticket_id]
                    self._begin_prefill(opened, now_s)

    def others_rows(self, model: str) -> int:
        """Rows of others, as far as they are certain."""
        others = self.others.get(model)
        return others.count if others is not None else 0

    def restart(self, instance_id: str) -> None:
        """Another instance of the agent: what the one before was told to do, it does not."""
        self.instance_id = instance_id
        self.prefilling.clear()
        self.loading.clear()
        self.behind_s = 0.0
        self.coming_tokens = 0
        self.positions.clear()
        self.lingering.clear()
        self.warm.clear()
        self.circuits.clear()
        self.others.clear()
        self.ready.clear()
        self.closed = frozenset()
        for opened in self.leases.values():
            opened.charged = (0, 0)
        self.version += 1


def _hashes(opened: OpenLease) -> Iterator[int]:
    begin, end = opened.charged
    chain = opened.ticket.chain
    if chain is not None and begin < end:
        yield from chain.hashes[begin:end]


class Books:
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

    def open(self, opened: OpenLease, now_s: float) -> None:
        """Charges the lease to its node, before its node says anything of it."""
        book = self.of(opened.lease.node_id)
        self._grants += 1
        book.last_grant = self._grants
        book.open(opened, now_s)

    def fail(self, lease: Lease, now_s: float) -> None:
        """Its node failed it."""
        book = self._nodes.get(lease.node_id)
        if book is not None and book.instance_id in ("", lease.instance_id):
            book.circuit(lease.model).fail(lease.granted_s, now_s)
            book.version += 1

    def turn_away(self, lease: Lease, now_s: float, retry_after_s: float | None) -> None:
        """Its node did not take it, and told to wait so long, if anything."""
        book = self._nodes.get(lease.node_id)
        if book is not None and book.instance_id in ("", lease.instance_id):
            book.circuit(lease.model).hold(now_s, retry_after_s)
            book.version += 1

    def serve(self, lease: Lease, now_s: float) -> None:
        """Its node served it."""
        book = self._nodes.get(lease.node_id)
        if book is not None:
            circuit = book.circuit(lease.model)
            book.version += circuit.serve(now_s) + circuit.end_hold(lease.granted_s)

    def breakers(self, now_s: float) -> list[Breaker]:
        """Those that are not closed."""
        return [
            Breaker(node_id, model, circuit.state(now_s), *circuit.counts(), circuit.until_s)
            for node_id, book in self._nodes.items()
            for model, circuit in book.circuits.items()
            if not circuit.is_closed
        ]

    def forget_node(self, node_id: str) -> None:
        """Its open leases stay until they end."""
        book = self._nodes.pop(node_id, None)
        if book is not None and book.leases:
            kept = self.of(node_id)
            kept.leases, kept.rows = book.leases, book.rows
            kept.prefilling, kept.behind_s = book.prefilling, book.behind_s
            kept.coming_tokens = book.coming_tokens
            kept.since_s, kept.positions = book.since_s, book.positions
            kept.loading = book.loading
            kept.lingering = book.lingering

    def opened(self, lease: Lease) -> OpenLease | None:
        """None where the lease is not held."""
        book = self._nodes.get(lease.node_id)
        opened = book.leases.get(lease.ticket_id) if book is not None else None
        return opened if opened is not None and opened.lease == lease else None

    def close(self, lease: Lease, now_s: float, *, lingers: bool) -> OpenLease:
        """As `NodeBook.close`. Raises `KeyError` for a lease that is not held: it would be released
        twice."""
        if self.opened(lease) is None:
            raise KeyError(lease)
        return self._nodes[lease.node_id].close(lease.ticket_id, now_s, lingers=lingers)

    def forget_session(self, opened: OpenLease) -> None:
        """The lease's session is not served where it is."""
        book = self._nodes.get(opened.lease.node_id)
        warm = book.warm.get(opened.lease.model) if book is not None else None
        if warm is not None:
            warm.forget(opened.session)

    def __iter__(self) -> Iterator[NodeBook]:
        return iter(self._nodes.values())
