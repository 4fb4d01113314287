"""The cost of a request on a node in seconds, as `docs/reference/cost.md` defines its terms.

Reads rates, caches and leases, and changes nothing of them.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from node.protocol.messages import CacheStatus, ModelState, ModelStatus, NodeStatus
from router.coverage import NOT_COVERED, Coverage, Prefixes
from router.scheduler.node_state import NodeBook, NodeBooks
from router.scheduler.rates import NodeRates, Rates
from router.scheduler.residency import displacement, no_room
from router.scheduler.sessions import Session, SessionPace
from router.scheduler.warm_sessions import WarmSessions
from router.states import ACTIVE, KIND_OPENAI, OUT_OF_SERVICE
from router.types import NodeTerms, NodeView, Ticket

FAILED_LOAD_S = 600.0
"""Penalty if the model's last load failed or the model is stalled. It makes the node the last
resort and does not exclude it."""
FAILURE_PENALTY_S = 600.0
TIE_S, TIE_SHARE, TIE_TOKENS = 0.7, 0.02, 512
"""Costs that differ by no more than the larger of both are equal, unless the node has `TIE_TOKENS`
less of the prompt cached: keeping a prefix on one node is worth it even where prefill is fast."""
MIGRATION_SHARE, MIGRATION_PROMPT_SHARE = 0.2, 0.1
LEAST_MIGRATION_S, MOST_MIGRATION_S = TIE_S, 2.0
"""A session moves away from the node where it is warm if another one is better by `MIGRATION_SHARE`
of the cost there, and by `MIGRATION_PROMPT_SHARE` of the time to prefill its whole prompt within
these bounds: a short prompt risks little, but no tie moves a session."""
PENDING_SHARE = 0.85
"""Share of a prefix counted as cached while its prefill is still to come, since its tokens are
estimated."""
PROMISED_SHARE = 0.5
"""Share of it that is promised to the client: the beginning of a prompt may have fewer tokens per
byte than the rest."""
CONTENTION_SHARE, EXTERNALITY_SHARE = 1.5, 0.7
"""Weights of expected waits: that of the session's own next turns, of which there are several, and
that of other sessions."""
UNKNOWN_CACHE_TOKENS = 50_000
"""Cache size assumed for a node that does not report it."""
_NO_WARM = WarmSessions()


class TicketEstimate(msgspec.Struct, frozen=True):
    """A ticket with those of its estimates that are the same on every node."""

    ticket: Ticket
    session: str
    home: Session | None
    prompt_bytes: int
    prompt_tokens: float
    tokens_per_byte: float
    output_tokens: float
    pace: SessionPace
    tried: frozenset[str] = frozenset()
    """Nodes that must not get the ticket again."""
    attempt: int = 1


class HomeCost(NamedTuple):
    """Cached tokens and cost on the node where the ticket's session is warm."""

    cached_tokens: int
    total_s: float


def choose(
    totals_s: Sequence[float], cached: Sequence[int], rank: Callable[[int], tuple[bool, float, int]]
) -> tuple[int, bool]:
    """The index of the least cost, or of the lowest rank among costs that are equally good; and
    True if there were several of those."""
    least_s = min(totals_s)
    limit_s = least_s + max(TIE_S, TIE_SHARE * least_s)
    least_cached = cached[totals_s.index(least_s)] - TIE_TOKENS
    good = [
        index
        for index, total_s in enumerate(totals_s)
        if total_s <= limit_s and cached[index] >= least_cached
    ]
    return (good[0], False) if len(good) == 1 else (min(good, key=rank), True)


def prefill_s(terms: NodeTerms) -> float:
    """Seconds during which the node computes no other prefill."""
    return terms.prefill_s + terms.restore_s


def work_s(terms: NodeTerms) -> float:
    """Seconds of all work for the request until its first token."""
    return prefill_s(terms) + terms.load_s


class CostModel:
    """Computes the cost terms of any request on any node."""

    def __init__(self, prefixes: Prefixes, rates: Rates, books: NodeBooks) -> None:
        self._prefixes = prefixes
        self._rates = rates
        self._books = books

    def all_terms(
        self, estimate: TicketEstimate, fleet: Sequence[NodeView], now_s: float
    ) -> tuple[NodeTerms, ...]:
        """The terms of all nodes, in the fleet's order."""
        at_home = self._home_terms(estimate, fleet, now_s)
        if at_home is None:
            return tuple(self.terms(estimate, each, now_s, None) for each in fleet)
        home = HomeCost(at_home.cached_tokens, at_home.total_s)
        return tuple(
            at_home if each.node_id == at_home.node_id else self.terms(estimate, each, now_s, home)
            for each in fleet
        )

    def _home_terms(
        self, estimate: TicketEstimate, fleet: Sequence[NodeView], now_s: float
    ) -> NodeTerms | None:
        """The terms of the node where the ticket's session is warm; None if there is none."""
        if estimate.home is None:
            return None
        home_id = estimate.home.node_id
        view = next((each for each in fleet if each.node_id == home_id), None)
        terms = self.terms(estimate, view, now_s, None) if view is not None else None
        return terms if terms is not None and terms.cached_tokens else None

    def terms(
        self, estimate: TicketEstimate, view: NodeView, now_s: float, home: HomeCost | None
    ) -> NodeTerms:
        """The terms of one node; `home` is None for the node where the session is warm."""
        model = view.model(estimate.ticket.model)
        excluded = exclusion(estimate, view, model)
        if excluded or model is None or view.status is None:
            # A node that has not responded since the router's start may be woken all the same.
            wake_s = 0.0 if excluded else _wake_s(view, now_s)
            return NodeTerms(view.node_id, view.name, excluded, wake_s=wake_s)
        book, wake_s = self._books.of(view.node_id), _wake_s(view, now_s)
        penalty_s = _failure_penalty_s(book, view, model, now_s)
        rates = self._rates.of(view.status, view.node_id, model)
        load_s = _load_s(book, model, rates)
        if not estimate.prompt_bytes:
            return NodeTerms(
                view.node_id, view.name, load_s=load_s, wake_s=wake_s, failure_penalty_s=penalty_s
            )
        covered, pending = self._cached(estimate, view, book, model)
        cached = covered.usable_tokens + int(PENDING_SHARE * pending)
        restored = covered.usable_tokens - covered.memory_tokens
        prompt_tokens = max(estimate.prompt_tokens, cached + 1.0)
        prefill_s = rates.prefill.seconds(cached, prompt_tokens)
        restore_s = rates.restore_s(restored, model) if restored > 0 else 0.0
        warm = book.warm.get(model.name, _NO_WARM)
        token_s = rates.prefill.token_s
        wait_s, delay_s = warm.waits_s(prefill_s + restore_s, estimate.session, now_s, token_s)
        rows = book.rows.get(model.name, 0) + book.external_rows(model.name)
        return NodeTerms(
            view.node_id,
            view.name,
            queue_s=_queue_s(book, model, rows, rates, now_s)
            + _memory_wait_s(book, view, model, rates.service_s.value, now_s),
            prefill_s=prefill_s,
            restore_s=restore_s,
            load_s=load_s,
            wake_s=wake_s,
            eviction_s=self._eviction_s(estimate, view, model, prompt_tokens - cached, now_s),
            decode_interference_s=rates.decode_interference_s(rows, estimate.output_tokens),
            contention_s=CONTENTION_SHARE * wait_s,
            externality_s=EXTERNALITY_SHARE * delay_s,
            failure_penalty_s=penalty_s,
            migration_s=_migration_s(home, cached, prompt_tokens, rates),
            prompt_tokens=int(prompt_tokens),
            cached_tokens=cached,
            memory_tokens=cached - max(0, restored),
            promised_tokens=covered.usable_tokens + int(PROMISED_SHARE * pending),
            cached_positions=covered.positions,
            is_estimated=view.kind == KIND_OPENAI,
        )

    def _cached(
        self, estimate: TicketEstimate, view: NodeView, book: NodeBook, model: ModelStatus
    ) -> tuple[Coverage, float]:
        """The part of the prompt that the node has cached, and the estimated number of tokens that
        its leases will add once they are prefilled."""
        chain = estimate.ticket.chain
        if chain is None:
            return NOT_COVERED, 0.0
        covered = self._prefixes.coverage(view.node_id, chain)
        pending = book.pending_positions(chain, covered.positions)
        if pending == covered.positions:
            return covered, 0.0
        if model.cache is not None and model.cache.snapshot_only:
            pending = max(
                (end for end in (chain.preamble, *chain.items) if end <= pending), default=0
            )
        begin = chain.sizes[covered.positions - 1] if covered.positions else 0
        added = chain.sizes[pending - 1] - begin if pending > covered.positions else 0
        return covered, estimate.tokens_per_byte * added

    def _eviction_s(
        self,
        estimate: TicketEstimate,
        view: NodeView,
        model: ModelStatus,
        uncached: float,
        now_s: float,
    ) -> float:
        if model.cache is None or not model.cache.bytes_per_token:
            return self._displaced_s(view, model, now_s)
        book, cache = self._books.of(view.node_id), model.cache
        needed = uncached + estimate.output_tokens
        warm = book.warm.get(model.name, _NO_WARM)
        used = cache.memory_used_bytes / cache.bytes_per_token + book.pending_tokens
        # Entries that belong to no known session are evicted first, at no cost.
        free = cache.memory_bytes / cache.bytes_per_token - min(used, warm.tokens)
        lost = needed - free
        if cache.slots and min(cache.slots_used + len(book.prefilling), len(warm)) >= cache.slots:
            lost = max(lost, warm.slot_tokens(estimate.session))
        if lost <= 0.0 or not len(warm):
            return 0.0
        rates = self._rates.known(view.node_id, model.name)
        return _loss_s(warm, lost, estimate.session, now_s, rates, model) if rates else 0.0

    def _displaced_s(self, view: NodeView, model: ModelStatus, now_s: float) -> float:
        """Cost of loading a model to the sessions of those that the node unloads for it."""
        if view.status is None:
            return 0.0
        book, loss_s = self._books.of(view.node_id), 0.0
        unloaded = {each.name for each in displacement(book, view.status, model, now_s).models}
        for other in view.status.models:
            warm = book.warm.get(other.name)
            rates = self._rates.known(view.node_id, other.name)
            if other.name not in unloaded or warm is None or rates is None:
                continue  # stays, or unused since this router's start
            live_share = warm.live_tokens(now_s) / max(1.0, warm.tokens)
            loss_s += _full_load_s(other, rates) * live_share
            loss_s += _loss_s(warm, warm.tokens, "", now_s, rates, other)
        return loss_s


def _migration_s(
    home: HomeCost | None, cached: int, prompt_tokens: float, rates: NodeRates
) -> float:
    """Least advantage for which a session moves to a node that has less of its prompt cached."""
    if home is None or cached >= home.cached_tokens:
        return 0.0
    own_s = min(MOST_MIGRATION_S, MIGRATION_PROMPT_SHARE * rates.prefill.seconds(0, prompt_tokens))
    return max(LEAST_MIGRATION_S, own_s, MIGRATION_SHARE * home.total_s)


def _wake_s(view: NodeView, now_s: float) -> float:
    return 0.0 if view.reachable or view.waking is None else view.waking.rest_s(now_s)


def _loss_s(
    warm: WarmSessions,
    tokens: float,
    excluding: str,
    now_s: float,
    rates: NodeRates,
    model: ModelStatus,
) -> float:
    """Seconds that sessions need to restore or recompute the evicted tokens when they return."""
    if model.cache is not None and model.cache.disk_bytes:
        token_s = rates.restore_s(1.0, model)
        return warm.loss_s(tokens, excluding, now_s, lambda begin, end: (end - begin) * token_s)
    return warm.loss_s(tokens, excluding, now_s, rates.prefill.seconds)


def _queue_s(
    book: NodeBook, model: ModelStatus, rows: int, rates: NodeRates, now_s: float
) -> float:
    """Seconds until the prefill ahead is done and, if all rows are taken, until one is free."""
    ahead_s, most = book.ahead_s(model.name, now_s), max(1, model.max_rows)
    if rows < most:
        return ahead_s
    return max(ahead_s, (rows - most + 1) * rates.service_s.value / most)


def _load_s(book: NodeBook, model: ModelStatus, rates: NodeRates) -> float:
    # A load that another lease began is part of that lease's work.
    if model.state is ModelState.READY or book.loads(model.name):
        return 0.0
    reported_s = _full_load_s(model, rates)
    if model.state is ModelState.LOADING and model.progress is not None:
        return (1.0 - model.progress) * reported_s
    return reported_s


def _full_load_s(model: ModelStatus, rates: NodeRates) -> float:
    """The node's own measure of its last load is better than the one seen from here."""
    return model.load_s if model.load_s is not None else rates.load_s.value


def _memory_wait_s(
    book: NodeBook, view: NodeView, model: ModelStatus, service_s: float, now_s: float
) -> float:
    """Estimated seconds until other models can be unloaded for this one."""
    if view.status is None:
        return 0.0
    if model.name in book.closed:
        return view.status.min_residency_s
    displaced = displacement(book, view.status, model, now_s)
    return max(0.0, displaced.evictable_s - now_s) + (service_s if displaced.leases else 0.0)


def _failure_penalty_s(book: NodeBook, view: NodeView, model: ModelStatus, now_s: float) -> float:
    circuit = book.circuits.get(model.name)
    is_out = model.state is ModelState.FAILED or model.name in view.stalled
    failed_s = FAILED_LOAD_S if is_out else 0.0
    return failed_s + (FAILURE_PENALTY_S if circuit is not None and circuit.blocks(now_s) else 0.0)


def occupancy(cache: CacheStatus | None, warm: WarmSessions | None, now_s: float) -> float:
    """Share of a node's cache that sessions are likely to need again."""
    if warm is None:
        return 0.0
    tokens = warm.live_tokens(now_s)
    if cache is None or not cache.bytes_per_token or not cache.memory_bytes:
        return tokens / UNKNOWN_CACHE_TOKENS
    return tokens * cache.bytes_per_token / cache.memory_bytes


def exclusion(estimate: TicketEstimate, view: NodeView, model: ModelStatus | None) -> str:
    """The reason why the node cannot serve the ticket, as a sentence; empty if it can."""
    ticket = estimate.ticket
    if view.status is None and ticket.model not in view.remembered:
        return "It has not reported a status yet."
    if model is None and view.status is not None:
        return "It does not have the model."
    if not view.reachable and not view.may_be_woken:
        return "It cannot be reached."
    if view.status is not None and model is not None and (unfit := _unfit(view.status, model)):
        return unfit
    if view.state != ACTIVE:
        return f"It is {OUT_OF_SERVICE[view.state]}."
    if bar := ineligible(ticket, view):
        return bar
    if view.node_id in estimate.tried:
        return "It failed this request before."
    return ""


def _unfit(status: NodeStatus, model: ModelStatus) -> str:
    """The reason why the model cannot be loaded there, as a sentence; empty if it can be, or is
    loaded."""
    if model.state is ModelState.PULLING:
        return "It is still pulling the model."
    return no_room(status, model)


def ineligible(ticket: Ticket, view: NodeView) -> str:
    """The reason why the ticket may not go to the node in any state of it, as a sentence; empty if
    it may."""
    if view.is_paid is not (ticket.cost_bound is not None):
        return "It costs money." if view.is_paid else "The request is for a paid server."
    if view.kind == KIND_OPENAI and not ticket.caller.may_use_servers:
        return "It is a server of kind openai, and the key lacks the scope external."
    if ticket.pinned_node_id and view.node_id != ticket.pinned_node_id:
        return "Only another node can serve this request."
    return ""
