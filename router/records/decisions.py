"""The latest decisions, and what came of them. Pure: told, never asking."""

from collections import OrderedDict
from dataclasses import dataclass, field

from node.protocol.ids import parse_id, response_of
from node.protocol.messages import Finished
from router.types import Decision, NodeTerms, Priority, Reject, Ticket, Verdict, ticket_id_of

KEPT = 2000
TERMS = {
    "queue_s": "queue",
    "prefill_s": "prefill",
    "restore_s": "restore",
    "load_s": "load",
    "eviction_s": "evict",
    "decode_interference_s": "decode_interference",
    "contention_s": "contention",
    "externality_s": "externality",
    "failure_penalty_s": "failure_penalty",
    "migration_s": "migration",
}
"""The terms of a cost, by their fields, as people see them."""
_ALWAYS_SHOWN = frozenset(("prefill_s",))
_LEAST_SHOWN_S = 0.05
"""A term below would be shown as 0.0."""


@dataclass(slots=True)
class Attempt:
    """A request on one node. Only `Decisions` changes it."""

    decision: Decision
    ttft_s: float | None = None
    """From the request's arrival at the router to its first content; None before that."""
    outcome: str = ""
    """Empty while it runs."""
    accounts: Finished | None = None
    """The node's own; None where it has told none of a whole answer."""

    @property
    def expected_ttft_s(self) -> float:
        """What the decision promised for `ttft_s`."""
        terms = self.decision.chosen
        if terms is None:
            return self.decision.waited_s
        work_s = terms.queue_s + terms.prefill_s + terms.restore_s + terms.load_s
        return self.decision.waited_s + work_s

    def take(self, accounts: Finished | None) -> None:
        """The node's accounts; they tell, too, when an answer began that the router saw whole."""
        self.accounts = accounts
        if self.ttft_s is None and accounts is not None and accounts.ttft_s is not None:
            self.ttft_s = self.decision.waited_s + accounts.ttft_s


@dataclass(slots=True)
class Decided:
    """What became of a request. Only `Decisions` changes it."""

    request_id: str
    requested_model: str
    model: str
    path: str
    priority: Priority
    arrived_s: float
    attempts: list[Attempt] = field(default_factory=list)
    """In their order; a later one follows a node's failure."""
    reject: Reject | None = None
    """Why no (other) node took it."""
    why: str = ""
    """How its model was chosen, as a sentence; empty where its name is that of one."""
    failed: list[tuple[str, str]] = field(default_factory=list)
    """Models that were to take it before, each with the code of its error."""


class Decisions:
    """Owner of what is known of the last `KEPT` requests. Without their bodies."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._decided: OrderedDict[str, Decided] = OrderedDict()

    # --- events ---

    def chosen(self, ticket: Ticket, why: str) -> None:
        """Of several models that the request's name may mean, one was chosen."""
        if why:
            self._of(ticket).why = why

    def fell_back(self, ticket: Ticket, failed: str, code: str) -> None:
        """A model has failed the request, which goes on to the ticket's own."""
        decided = self._of(ticket)
        decided.failed.append((failed, code))
        decided.model = ticket.model
        decided.reject = None

    def granted(self, ticket: Ticket, decision: Decision) -> None:
        """A node takes the request, perhaps after another has failed it."""
        self._of(ticket).attempts.append(Attempt(decision))

    def rejected(self, ticket: Ticket, reject: Reject) -> None:
        """No node takes the request, or none any more."""
        self._of(ticket).reject = reject

    def first_content(self, ticket_id: str, ttft_s: float) -> None:
        """The answer has begun, so long after the request's arrival."""
        if attempt := self._latest(ticket_id):
            attempt.ttft_s = ttft_s

    def ended(self, ticket_id: str, outcome: str) -> None:
        """The latest attempt is over."""
        if attempt := self._latest(ticket_id):
            attempt.outcome = outcome

    def on_verdict(self, verdict: Verdict) -> None:
        """A node's accounts of an attempt that has ended."""
        decided = self._decided.get(verdict.lease.ticket_id)
        if decided is None:
            return
        for attempt in reversed(decided.attempts):
            placed = attempt.decision.node_id, attempt.decision.model
            if placed == (verdict.lease.node_id, verdict.lease.model):
                attempt.take(verdict.accounts)
                return

    # --- reading ---

    def find(self, request_id: str) -> Decided | None:
        """By the request's id, or any id that its caller saw: of the answer, or of an item of
        it."""
        if found := self._decided.get(request_id):
            return found
        for text in (request_id, response_of(request_id) or ""):
            parsed = parse_id(text)
            if parsed and (found := self._decided.get(ticket_id_of(parsed.request_id))):
                return found
        return None

    def short(self, ticket_id: str) -> bytes:
        """The request's latest decision on one line of ASCII; empty where none is known."""
        decided, attempt = self._decided.get(ticket_id), self._latest(ticket_id)
        if decided is None or attempt is None:
            return b""
        after = "".join(f"after={model} ({code}); " for model, code in decided.failed)
        return after.encode("ascii", "replace") + short(attempt.decision)

    def __len__(self) -> int:
        return len(self._decided)

    # --- state ---

    def _of(self, ticket: Ticket) -> Decided:
        decided = self._decided.get(ticket.request_id)
        if decided is None:
            decided = Decided(
                ticket.request_id,
                ticket.requested_model,
                ticket.model,
                ticket.path,
                ticket.priority,
                ticket.arrived_s,
            )
            self._decided[ticket.request_id] = decided
            if len(self._decided) > self._kept:
                self._decided.popitem(last=False)
        return decided

    def _latest(self, ticket_id: str) -> Attempt | None:
        decided = self._decided.get(ticket_id)
        return decided.attempts[-1] if decided and decided.attempts else None


def short(decision: Decision) -> bytes:
    """The decision on one line of ASCII: the chosen node with its terms, and the next best."""
    chosen = decision.chosen
    if chosen is None:
        return b"node="
    parts = [f"node={chosen.name}"]
    for term, name in TERMS.items():
        seconds: float = getattr(chosen, term)
        if seconds >= _LEAST_SHOWN_S or term in _ALWAYS_SHOWN:
            parts.append(f"{name}={seconds:.1f}s")
    guessed = " estimated" if chosen.is_estimated else ""
    parts.append(f"cached={chosen.cached_tokens}/{chosen.prompt_tokens}{guessed}")
    parts.append(f"total={chosen.total_s:.1f}s")
    if other := _next_best(decision, chosen):
        parts.append(f"next={other.name} {other.total_s:.1f}s")
    return "; ".join(parts).encode("ascii", "replace")


def _next_best(decision: Decision, chosen: NodeTerms) -> NodeTerms | None:
    others = (terms for terms in decision.nodes if not terms.excluded and terms is not chosen)
    return min(others, key=lambda terms: terms.total_s, default=None)
