"""Usage records of the requests that this router dispatched, until they are in the registry.

A node reports every ended request, aborted ones too, and the router accepts reports of requests
that it gave to that node. A request is written without token counts if its node died or a
third-party server served it, and without a node if its client disconnected before a node was
granted.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from node.protocol.messages import Began, Finished, FinishReason
from registry.records import UsageRecord
from router.limits.limiter import Limiter
from router.records.outcomes import (
    IGNORE,
    OUTCOME_CANCELLED,
    OUTCOME_LATE,
    OUTCOME_SERVED,
    Charge,
    LedgerListener,
    UnreportedAttempt,
    tokens_of,
)
from router.records.request_log import RequestLog
from router.records.settlement import Settlement
from router.settings import UNREPORTED_AFTER_S
from router.types import Lease, Ticket, Tokens, Verdict
from router.upstream.origins import Origins
from serving.log_limiter import LogLimiter

log = logging.getLogger("mlx_fleet.router")

MOST_ROWS = 100_000
"""Most rows that may wait to be written, about 50 MB."""
REASON_UNREPORTED = "unreported"


@dataclass(slots=True)
class _Entry:
    ticket: Ticket
    lease: Lease
    instance_id: str
    reported: bool
    """True if the node will send a `Finished` record."""
    ended_s: float | None = None
    outcome: str = ""
    usage: Finished | None = None
    """The usage record, if the node reported it before the relay ended."""
    ttft_s: float | None = None
    """Seconds from the request's arrival to its first content; None before that."""
    tokens: Tokens | None = None
    events: int | None = None


class Ledger:
    """Owner of the open requests by node and request id, and of the rows that wait to be
    written."""

    def __init__(
        self,
        origins: Origins,
        listener: LedgerListener = IGNORE,
        charge: Charge | None = None,
        settlement: Settlement | None = None,
        *,
        request_log: RequestLog | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.origins = origins
        self._listener = listener
        self._charge = charge
        self._settlement = settlement or Settlement(Limiter())
        self._log_limiter = LogLimiter()
        self.request_log = request_log or RequestLog()
        self._wall_clock = wall_clock
        self._open: dict[tuple[str, str], _Entry] = {}
        self._ended: dict[tuple[str, str], None] = {}
        self._rows: list[UsageRecord] = []
        self.lost_rows = 0
        """Rows lost since the router's start, while the registry could not be written."""

    def opened(
        self, ticket: Ticket, lease: Lease, node_name: str, instance_id: str, *, reported: bool
    ) -> None:
        """Records that the request has been sent to the lease's node."""
        entry = _Entry(ticket, lease, instance_id, reported)
        self._open[lease.node_id, lease.node_request_id] = entry
        self.request_log.sent(lease, node_name)
        if ticket.caller.quotas:
            self._settlement.opened(ticket)

    def began(self, lease: Lease, ttft_s: float) -> None:
        """Records that the request's first content has come, `ttft_s` seconds after its arrival."""
        entry = self._open.get((lease.node_id, lease.node_request_id))
        if entry is not None:
            entry.ttft_s = ttft_s

    def ended(
        self,
        lease: Lease,
        now_s: float,
        outcome: str,
        tokens: Tokens | None = None,
        events: int | None = None,
    ) -> None:
        """Records that the request's relay has ended with this outcome; its usage record may still
        come. `tokens` are those that a third-party server reported in its response, `events` the
        events of its stream."""
        key = (lease.node_id, lease.node_request_id)
        entry = self._open.get(key)
        if entry is None:
            return
        entry.ended_s = now_s
        entry.outcome = outcome
        entry.tokens, entry.events = tokens, events
        if entry.usage is not None:
            del self._open[key]
            self._judge(entry, now_s, entry.usage)
        elif entry.reported:
            self._ended[key] = None
        else:
            self._close_unreported(key, entry)

    def on_began(self, node_id: str, instance_id: str, began: Began) -> None:
        """Reports that a node has the first token of a request. Reports about other routers'
        requests are ignored."""
        if not self.origins.is_own(began.origin):
            return
        entry = self._open.get((node_id, began.request_id))
        if entry is not None and entry.instance_id == instance_id:
            self._listener.on_prefilled(entry.lease)

    def on_finished(self, node_id: str, instance_id: str, finished: Finished) -> None:
        """Records the usage record of an own request; others are ignored. One for a request that
        the node was never given, or with impossible counts, is dropped with a line in the log."""
        if not self.origins.is_own(finished.origin):
            return
        key_id = self.origins.key_of(node_id, finished)
        if key_id is None or not _is_possible(finished):
            self._drop(
                node_id, "was never given to it" if key_id is None else "has impossible counts"
            )
            return
        key = (node_id, finished.request_id)
        entry = self._open.get(key)
        self._rows.append(reported_row(node_id, instance_id, key_id, finished))
        if entry is None:
            return
        if entry.usage is None:
            self._count(entry, finished)
        self.request_log.reported(entry.lease, finished)
        if entry.ended_s is None:
            entry.usage = finished
            return
        del self._open[key]
        self._ended.pop(key, None)
        self._judge(entry, entry.ended_s, finished)

    def _count(self, entry: _Entry, finished: Finished) -> None:
        """Counts an attempt's usage, the first time that its node reports it."""
        if entry.ticket.caller.quotas:
            self._settlement.reported(entry.ticket, finished)
        if finished.reason is not FinishReason.REFUSED:  # a refused one computed nothing
            used = tokens_of(finished)
            self._listener.on_used(entry.ticket, entry.lease, used, gap_s(finished))

    def _drop(self, node_id: str, why: str) -> None:
        if self._log_limiter.due(node_id):
            more = self._log_limiter.suppressed(node_id)
            log.warning(
                "dropped a usage record of node %s for a request that %s%s", node_id, why, more
            )

    def _judge(self, entry: _Entry, ended_s: float, usage: Finished) -> None:
        """Reports the node's verdict, unless the relay has seen a failure, which has been reported
        already."""
        if usage.reason is FinishReason.REFUSED:
            self._listener.on_refused(Verdict(entry.lease, ended_s, failed=False, usage=usage))
            return
        if entry.outcome not in (OUTCOME_SERVED, OUTCOME_CANCELLED, OUTCOME_LATE):
            return
        failed = usage.reason is FinishReason.ERROR
        whole = usage.reason in (FinishReason.STOP, FinishReason.LENGTH)
        if failed or (whole and entry.outcome == OUTCOME_SERVED):
            self._listener.on_verdict(Verdict(entry.lease, ended_s, failed, usage), entry.ticket)
        elif usage.ttft_s is not None:
            self._listener.on_disconnected(
                Verdict(entry.lease, ended_s, failed, usage), entry.ticket
            )

    def expire(self, now_s: float) -> None:
        """Writes requests without usage record that ended more than `UNREPORTED_AFTER_S` ago."""
        for key in list(self._ended):
            entry = self._open[key]
            if entry.ended_s is None or now_s - entry.ended_s < UNREPORTED_AFTER_S:
                break
            del self._ended[key]
            self._close_unreported(key, entry)

    def pop_rows(self, most: int = MOST_ROWS) -> list[UsageRecord]:
        """Removes and returns the rows to write, the oldest first."""
        rows, self._rows = self._rows[:most], self._rows[most:]
        return rows

    def push_back_rows(self, rows: list[UsageRecord]) -> None:
        """Takes back rows that could not be written, to be tried again. Above `MOST_ROWS` the
        oldest are lost."""
        self._rows = rows + self._rows
        if (too_many := len(self._rows) - MOST_ROWS) > 0:
            del self._rows[:too_many]
            self.lost_rows += too_many

    @property
    def waiting_rows(self) -> int:
        """Number of rows that are not written yet."""
        return len(self._rows)

    def close_all(self) -> None:
        """Writes all open requests without usage records, at shutdown."""
        for key, entry in list(self._open.items()):
            if entry.usage is None:
                self._close_unreported(key, entry)
        self._open.clear()
        self._ended.clear()
        self.request_log.close()

    def left(self, ticket: Ticket) -> None:
        """Writes a row without a node for a request whose client disconnected before one was
        granted."""
        self._rows.append(
            unreported_row(ticket, ticket.request_id, OUTCOME_CANCELLED, self._wall_clock())
        )

    def _close_unreported(self, key: tuple[str, str], entry: _Entry) -> None:
        del self._open[key]
        lease, reason = entry.lease, entry.outcome or REASON_UNREPORTED
        prompt, cached, completion, reasoning = entry.tokens or (None, None, None, None)
        row = unreported_row(entry.ticket, lease.node_request_id, reason, self._wall_clock())
        ended = UnreportedAttempt(reason, entry.ttft_s is not None, entry.tokens, entry.events)
        if entry.ticket.caller.quotas:
            self._settlement.unreported(entry.ticket, ended)
        self._listener.on_used(entry.ticket, lease, entry.tokens, _unreported_gap_s(entry))
        self._rows.append(
            replace(
                row,
                node_id=lease.node_id,
                instance_id=entry.instance_id,
                prompt_tokens=prompt,
                cached_tokens=cached,
                completion_tokens=completion,
                reasoning_tokens=reasoning,
                cost=self._charge(entry.ticket, lease, ended) if self._charge else None,
            )
        )
        self.request_log.unreported(lease, reason, entry.tokens, entry.ttft_s)


def gap_s(finished: Finished) -> float | None:
    """The mean seconds between tokens; None without two of them."""
    later = finished.completion_tokens - 1
    return finished.decode_s / later if later > 0 and finished.ttft_s is not None else None


def _unreported_gap_s(entry: _Entry) -> float | None:
    made = entry.tokens.completion if entry.tokens is not None else entry.events
    if entry.ended_s is None or entry.ttft_s is None or made is None or made < 2:
        return None
    first_s = entry.ticket.arrived_s + entry.ttft_s
    return max(0.0, entry.ended_s - first_s) / (made - 1)


def unreported_row(ticket: Ticket, request_id: str, reason: str, now_s: float) -> UsageRecord:
    """The row of a request without a usage record: without a node and without token counts."""
    return UsageRecord(
        request_id=request_id,
        node_id="",
        instance_id="",
        seq=0,
        key_id=ticket.caller.key_id,
        model=ticket.model,
        reason=reason,
        prompt_tokens=None,
        cached_tokens=None,
        completion_tokens=None,
        reasoning_tokens=None,
        queue_s=None,
        ttft_s=None,
        prefill_s=None,
        decode_s=None,
        finished_at_s=now_s,
    )


def _is_possible(finished: Finished) -> bool:
    """True if no part exceeds its whole."""
    return (
        finished.cached_tokens <= finished.prompt_tokens
        and finished.reasoning_tokens <= finished.completion_tokens
    )


def reported_row(node_id: str, instance_id: str, key_id: str, finished: Finished) -> UsageRecord:
    return UsageRecord(
        request_id=finished.request_id,
        node_id=node_id,
        instance_id=instance_id,
        seq=finished.seq,
        key_id=key_id,
        model=finished.model,
        reason=finished.reason.value,
        # A refused request computed nothing.
        prompt_tokens=None if finished.reason is FinishReason.REFUSED else finished.prompt_tokens,
        cached_tokens=finished.cached_tokens,
        completion_tokens=finished.completion_tokens,
        reasoning_tokens=finished.reasoning_tokens,
        queue_s=finished.queue_s,
        ttft_s=finished.ttft_s,
        prefill_s=finished.prefill_s,
        decode_s=finished.decode_s,
        finished_at_s=finished.finished_unix_s,
    )
