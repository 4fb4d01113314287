"""Settles what limits have reserved for a request by what the ledger learns of its attempts."""

from node.protocol.messages import Finished, FinishReason
from router.limits.limiter import Limiter
from router.records.outcomes import (
    OUTCOME_NODE_FAILED,
    OUTCOME_REFUSED,
    OUTCOME_SERVED,
    UnreportedAttempt,
)
from router.types import Ticket


class Settlement:
    """Reports the attempts of requests whose caller has limits."""

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter

    def opened(self, ticket: Ticket) -> None:
        """An attempt has been sent to a node."""
        self._limiter.opened(ticket.request_id)

    def reported(self, ticket: Ticket, usage: Finished) -> None:
        """A node has reported the usage of an attempt."""
        if usage.reason is FinishReason.REFUSED:
            self._limiter.settled(ticket.request_id, 0, 0)  # a refused request computed nothing
        else:
            self._limiter.settled(ticket.request_id, usage.prompt_tokens, usage.completion_tokens)

    def unreported(self, ticket: Ticket, attempt: UnreportedAttempt) -> None:
        """An attempt has ended for which its node sends no usage record."""
        request_id, tokens = ticket.request_id, attempt.tokens
        if tokens is not None and (attempt.outcome == OUTCOME_SERVED or not attempt.began):
            self._limiter.settled(request_id, tokens.prompt, tokens.completion)
        elif attempt.began:
            made = attempt.events
            self._limiter.settled_unreported(request_id, computed=True, output_tokens=made)
        else:
            computed = attempt.outcome not in (OUTCOME_NODE_FAILED, OUTCOME_REFUSED)
            self._limiter.settled_unreported(request_id, computed=computed)
