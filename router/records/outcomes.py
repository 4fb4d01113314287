"""Outcomes of requests, and the interface to which the ledger reports what it learns of them."""

from collections.abc import Callable
from dataclasses import dataclass

from node.protocol.messages import Finished
from router.errors import LimitExceeded, RouterError
from router.types import Lease, Ticket, Tokens, Verdict

OUTCOME_SERVED = "served"
OUTCOME_CANCELLED = "cancelled"
OUTCOME_LATE = "deadline_exceeded"
OUTCOME_NODE_FAILED = "node_failed"
OUTCOME_REFUSED = "refused"
OUTCOME_DRAINED = "drained"

BY_DISCONNECT = "disconnect"
"""The client of an aborted request has disconnected."""
BY_CANCEL = "cancel"
"""Its client, or an admin, has cancelled it."""
PHASE_BODY = "body"
PHASE_QUEUE = "queue"
PHASE_PREFILL = "prefill"
PHASE_STREAM = "stream"
"""Phases in which a request is aborted."""


def reason_of(error: RouterError) -> str:
    """Returns the word for an error in metrics and in the log of requests: its code, or the name of
    the limit that refuses the request."""
    limit = error.limit if isinstance(error, LimitExceeded) else ""
    return limit or error.code or f"status_{error.status}"


def tokens_of(finished: Finished) -> Tokens:
    """Returns the counts of a usage record."""
    return Tokens(
        finished.prompt_tokens,
        finished.cached_tokens,
        finished.completion_tokens,
        finished.reasoning_tokens,
    )


@dataclass(slots=True)
class UnreportedAttempt:
    """An ended attempt for which its node keeps no usage record."""

    outcome: str
    began: bool = False
    """True if some of the response had come."""
    tokens: Tokens | None = None
    events: int | None = None
    """Events of its stream that were passed on, about one for each token; None if they were not
    counted."""


Charge = Callable[[Ticket, Lease, UnreportedAttempt], float | None]
"""Charges an ended attempt and returns its cost; None if it was free."""


class LedgerListener:
    """Receives what the ledger learns of requests. This one ignores all of it."""

    def on_prefilled(self, lease: Lease) -> None:
        """A node has reported that a lease's prefill is over."""

    def on_used(
        self, ticket: Ticket, lease: Lease, tokens: Tokens | None, gap_s: float | None
    ) -> None:
        """An attempt has ended. `tokens` and the mean seconds between them are None if they are not
        known."""

    def on_verdict(self, verdict: Verdict, ticket: Ticket) -> None:
        """A node has reported how a lease ended."""

    def on_disconnected(self, verdict: Verdict, ticket: Ticket) -> None:
        """A response has ended whose client disconnected after it had begun. The verdict shows what
        was cached, and says nothing about the node's health."""

    def on_refused(self, verdict: Verdict) -> None:
        """A request was refused, which says nothing about the node."""


IGNORE = LedgerListener()
