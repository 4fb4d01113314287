"""Forwards what the ledger learns from usage records to the parts that use it."""

from collections.abc import Callable

from router.dispatch.scheduler_driver import SchedulerDriver
from router.fleet.predictions import Predictions
from router.records.decisions import Decisions
from router.records.metrics import Metrics
from router.records.outcomes import LedgerListener, UnreportedAttempt
from router.types import Lease, Ticket, Verdict


class UsageFeedback(LedgerListener):
    """Reports verdicts to the scheduler, the predictions, the decisions and the metrics. `charge`
    returns the cost of an ended attempt."""

    def __init__(
        self,
        driver: SchedulerDriver,
        predictions: Predictions,
        decisions: Decisions,
        metrics: Metrics,
        charge: Callable[[Ticket, Lease, UnreportedAttempt], float | None],
    ) -> None:
        self._driver = driver
        self._predictions = predictions
        self._decisions = decisions
        self._metrics = metrics
        self._charge = charge

    def on_prefilled(self, lease: Lease) -> None:
        self._driver.on_prefilled(lease)

    def on_verdict(self, verdict: Verdict, ticket: Ticket) -> None:
        self._driver.on_verdict(verdict)
        ttft_s = verdict.usage.ttft_s if verdict.usage else None
        if not ticket.stream and ttft_s is not None:
            waited_s = verdict.lease.granted_s - ticket.arrived_s
            self._metrics.first_content(verdict.lease, waited_s + ttft_s)
        self._predictions.on_verdict(verdict, ticket.chain)

    def on_disconnected(self, verdict: Verdict, ticket: Ticket) -> None:
        self._predictions.on_verdict(verdict, ticket.chain)

    def on_refused(self, verdict: Verdict) -> None:
        self._decisions.on_verdict(verdict)

    def charge(self, ticket: Ticket, lease: Lease, attempt: UnreportedAttempt) -> float | None:
        return self._charge(ticket, lease, attempt)
