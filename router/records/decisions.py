"""The latest decisions and their outcomes. Pure: events are passed in."""

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
    "wake_s": "wake",
    "eviction_s": "evict",
    "decode_interference_s": "decode_interference",
    "contention_s": "contention",
    "externality_s": "externality",
    "failure_penalty_s": "failure_penalty",
    "migration_s": "migration",
}
"""The public names of the cost terms, by their fields."""
_ALWAYS_SHOWN = frozenset(("prefill_s",))
_LEAST_SHOWN_S = 0.05
"""Smaller terms would be shown as 0.0."""


@dataclass(slots=True)
class AttemptRecord:
    """One attempt of a request at a node. Only `Decisions` changes it."""

    decision: Decision
    ttft_s: float | None = None
    """Seconds from the request's arrival at the router to its first content; None before that."""
    outcome: str = ""
    """Empty while the attempt runs."""
    usage: Finished | None = None
    """The node's usage record; None if it has reported none of a whole response."""

    @property
    def expected_ttft_s(self) -> float:
        """The value of `ttft_s` that the decision predicted."""
        terms = self.decision.chosen
        if terms is None:
            return self.decision.waited_s
        work_s = terms.queue_s + terms.prefill_s + terms.restore_s + terms.load_s
        return self.decision.waited_s + work_s

    def set_usage(self, usage: Finished | None) -> None:
        """Stores the node's usage record, which also dates the first content of a response that the
        router received whole."""
        self.usage = usage
        if self.ttft_s is None and usage is not None and usage.ttft_s is not None:
            self.ttft_s = self.decision.waited_s + usage.ttft_s


@dataclass(slots=True)
class DecisionRecord:
    """The decisions about one request, and their outcomes. Only `Decisions` changes it."""

    request_id: str
    requested_model: str
    model: str
    path: str
    priority: Priority
    arrived_s: float
    attempts: list[AttemptRecord] = field(default_factory=list)
    """Attempts in their order; each but the first follows a node's failure."""
    reject: Reject | None = None
    """The rejection, if no (other) node could serve the request."""
    why: str = ""
    """The reason for its model, as a sentence; empty if the name has one target only."""
    failed: list[tuple[str, str]] = field(default_factory=list)
    """Models that failed the request before, each with the code of its error."""


class Decisions:
    """Owner of the last `KEPT` requests' decisions, without the requests' bodies."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._decided: OrderedDict[str, DecisionRecord] = OrderedDict()

    # --- events ---

    def chosen(self, ticket: Ticket, why: str) -> None:
        """Records why one of the name's targets was chosen."""
        if why:
            self._of(ticket).why = why

    def fell_back(self, ticket: Ticket, failed: str, code: str) -> None:
        """Records that a model failed the request, which falls back to the ticket's model."""
        decided = self._of(ticket)
        decided.failed.append((failed, code))
        decided.model = ticket.model
        decided.reject = None

    def granted(self, ticket: Ticket, decision: Decision) -> None:
        """Records an attempt, perhaps after another one has failed."""
        self._of(ticket).attempts.append(AttemptRecord(decision))

    def rejected(self, ticket: Ticket, reject: Reject) -> None:
        """Records that no node, or no other one, can serve the request."""
        self._of(ticket).reject = reject

    def first_content(self, ticket_id: str, ttft_s: float) -> None:
        """Records the seconds from the request's arrival to its first content."""
        if attempt := self._latest(ticket_id):
            attempt.ttft_s = ttft_s

    def ended(self, ticket_id: str, outcome: str) -> None:
        """Records the outcome of the latest attempt."""
        if attempt := self._latest(ticket_id):
            attempt.outcome = outcome

    def on_verdict(self, verdict: Verdict) -> None:
        """Stores the usage record of an ended attempt."""
        decided = self._decided.get(verdict.lease.ticket_id)
        if decided is None:
            return
        for attempt in reversed(decided.attempts):
            placed = attempt.decision.node_id, attempt.decision.model
            if placed == (verdict.lease.node_id, verdict.lease.model):
                attempt.set_usage(verdict.usage)
                return

    # --- reading ---

    def find(self, request_id: str) -> DecisionRecord | None:
        """The request with this id, or with any id that its client saw: of the response, or of an
        item in it."""
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

    def _of(self, ticket: Ticket) -> DecisionRecord:
        decided = self._decided.get(ticket.request_id)
        if decided is None:
            decided = DecisionRecord(
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

    def _latest(self, ticket_id: str) -> AttemptRecord | None:
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
