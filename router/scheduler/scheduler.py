"""Which node serves a request. Pure: events and the fleet's last words in, actions out.

The estimate is the least expected wait: how long the requests that a node already holds, of all
its models, keep a new one from its one GPU, plus the load of a model that is not resident. Service
times are learned per (node, model) from finished requests.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from node.protocol.messages import ModelState, ModelStatus
from router.types import Action, Grant, Lease, NodeView, Reject, Ticket, Verdict

PRIOR_SERVICE_S = 2.0
"""Seconds that a request is taken to last before any has been seen."""
LEARNING_RATE = 0.2
"""Weight of the newest request in the running mean of service times."""
LOAD_BYTES_PER_S = 1e9
"""Speed of reading weights from an SSD into memory, a cautious figure for Apple laptops."""
LOAD_FIXED_S = 3.0
"""Start of an engine process."""
FAILED_LOAD_S = 600.0
"""Added where the last load failed: such a node is the last resort, not ruled out."""
FIRST_BLAME_S = 1.0
MAX_BLAME_S = 30.0
"""A node that failed is the last resort for this long, twice as long after each failure in a row;
without it a node that fails at once would look idle and draw all requests."""
BLAME_WAIT_S = 600.0
MAX_ATTEMPTS = 2
RETRY_AFTER_S = 5


@dataclass(slots=True)
class _Load:
    """What one (node, model) carries."""

    in_flight: int = 0
    max_rows: int = 1
    """As the node said at the latest grant."""
    mean_service_s: float = PRIOR_SERVICE_S
    last_grant: int = 0
    """Number of its latest grant, counted over all nodes; 0 before the first."""
    failures: int = 0
    """In a row."""
    blamed_until_s: float = 0.0

    def blame(self, now_s: float) -> None:
        doubled_s = FIRST_BLAME_S * 2.0 ** min(self.failures, 16)
        self.blamed_until_s = now_s + min(MAX_BLAME_S, doubled_s)
        self.failures += 1

    def learn(self, seconds: float) -> None:
        """A request was served in that time."""
        self.failures = 0
        self.blamed_until_s = 0.0
        self.mean_service_s += LEARNING_RATE * (max(0.0, seconds) - self.mean_service_s)


@dataclass(slots=True)
class _Open:
    """A ticket that holds a lease, and the nodes that have failed it."""

    ticket: Ticket
    lease: Lease
    tried: set[str] = field(default_factory=set)


_NO_LOADS: dict[str, _Load] = {}


class Scheduler:
    """Owner of the leases. Methods are plain functions: state changes without an await between."""

    def __init__(self) -> None:
        self._loads: dict[str, dict[str, _Load]] = {}
        """By node and model."""
        self._open: dict[str, _Open] = {}
        self._grants = 0

    # --- events ---

    def on_request(self, ticket: Ticket, fleet: Iterable[NodeView], now_s: float) -> list[Action]:
        """A new request: granted to the node with the least expected wait, or to the one that it
        is pinned to, or rejected."""
        return [self._place(ticket, fleet, now_s, tried=set())]

    def on_failed(
        self, lease: Lease, fleet: Iterable[NodeView], now_s: float, *, answered: bool
    ) -> list[Action]:
        """A lease's node failed before any content was sent.

        Granted once more, elsewhere; on the same node only where it had not `answered` (its
        connection broke: a kept-alive one may have been stale) and no other is left.
        """
        opened = self._open[lease.ticket_id]
        self._release(lease).blame(now_s)
        if lease.attempt >= MAX_ATTEMPTS:
            return [self._reject(opened.ticket, known=True)]
        tried = opened.tried | {lease.node_id}
        views = tuple(fleet)
        action = self._place(opened.ticket, views, now_s, tried, attempt=lease.attempt + 1)
        if isinstance(action, Reject) and not answered:
            action = self._place(
                opened.ticket, views, now_s, opened.tried, attempt=lease.attempt + 1
            )
        return [action]

    def on_done(
        self, lease: Lease, now_s: float, *, served: bool, failed: bool = False
    ) -> list[Action]:
        """A lease has ended; one that was served to its end teaches the node's service time, one
        that the node failed counts against it. Neither: its node's verdict is still to come."""
        load = self._release(lease)
        if failed:
            load.blame(now_s)
        if served:
            load.learn(now_s - lease.granted_s)
        return []

    def on_verdict(self, verdict: Verdict) -> list[Action]:
        """The node's own word on a lease that has ended: what was sent whole may have failed."""
        load = self._loads.get(verdict.lease.node_id, {}).get(verdict.lease.model)
        if load is not None and verdict.failed:
            load.blame(verdict.ended_s)
        elif load is not None:
            load.learn(verdict.ended_s - verdict.lease.granted_s)
        return []

    def on_node_removed(self, node_id: str) -> None:
        """Forgets what was learned of a node; its open leases end by themselves."""
        loads = self._loads.pop(node_id, {})
        busy = {model: load for model, load in loads.items() if load.in_flight}
        if busy:
            self._loads[node_id] = busy

    # --- reading ---

    def in_flight(self, node_id: str) -> int:
        return sum(load.in_flight for load in self._loads.get(node_id, {}).values())

    @property
    def open_leases(self) -> int:
        return len(self._open)

    def expected_wait_s(self, view: NodeView, model: ModelStatus, now_s: float) -> float:
        """Seconds until a new request would get a row on that node."""
        return _expected_wait_s(self._loads.get(view.node_id, _NO_LOADS), model, now_s)

    # --- deciding ---

    def _place(
        self,
        ticket: Ticket,
        fleet: Iterable[NodeView],
        now_s: float,
        tried: set[str],
        attempt: int = 1,
    ) -> Action:
        best: tuple[float, int] | None = None
        chosen: tuple[NodeView, ModelStatus] | None = None
        known = False
        for view in fleet:
            model = _model_of(view, ticket.model)
            if model is None:
                known = known or (view.status is None and ticket.model in view.remembered)
                continue
            known = True
            if not view.reachable or view.node_id in tried:
                continue
            if ticket.pinned_node_id and view.node_id != ticket.pinned_node_id:
                continue
            loads = self._loads.get(view.node_id, _NO_LOADS)
            load = loads.get(ticket.model)
            rank = (_expected_wait_s(loads, model, now_s), load.last_grant if load else 0)
            if best is None or rank < best:
                best, chosen = rank, (view, model)
        if best is None or chosen is None:
            return self._reject(ticket, known=known)
        view, model = chosen
        lease = Lease(ticket.request_id, view.node_id, ticket.model, now_s, attempt)
        self._hold(ticket, lease, tried).max_rows = model.max_rows or 1
        return Grant(lease)

    def _reject(self, ticket: Ticket, *, known: bool) -> Reject:
        reason = (
            f"No node that has the model {ticket.model!r} can be reached now; "
            "`router nodes` shows why."
            if known
            else f"No node of the fleet has the model {ticket.model!r} now; "
            "`router models` lists those there are."
        )
        return Reject(ticket.request_id, known, reason, RETRY_AFTER_S)

    def _hold(self, ticket: Ticket, lease: Lease, tried: set[str]) -> _Load:
        loads = self._loads.setdefault(lease.node_id, {})
        load = loads.get(lease.model)
        if load is None:
            load = loads[lease.model] = _Load()
        load.in_flight += 1
        self._grants += 1
        load.last_grant = self._grants
        self._open[ticket.request_id] = _Open(ticket, lease, tried)
        return load

    def _release(self, lease: Lease) -> _Load:
        """Raises `KeyError` for a lease that is not held: it would be released twice."""
        del self._open[lease.ticket_id]
        load = self._loads[lease.node_id][lease.model]
        load.in_flight -= 1
        return load


def _expected_wait_s(loads: dict[str, _Load], model: ModelStatus, now_s: float) -> float:
    wait_s = 0.0
    for load in loads.values():
        if load.in_flight:
            wait_s += load.in_flight * load.mean_service_s / load.max_rows
    if model.state in (ModelState.ON_DISK, ModelState.LOADING, ModelState.DRAINING):
        wait_s += LOAD_FIXED_S + model.weight_bytes / LOAD_BYTES_PER_S
    elif model.state is ModelState.FAILED:
        wait_s += FAILED_LOAD_S
    own = loads.get(model.name)
    if own is not None and now_s < own.blamed_until_s:
        wait_s += BLAME_WAIT_S
    return wait_s


def _model_of(view: NodeView, name: str) -> ModelStatus | None:
    if view.status is None:
        return None
    return next((model for model in view.status.models if model.name == name), None)
