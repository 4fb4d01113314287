"""The lines of `--log-requests` and the spans of requests: one for each request, once it has ended
and its usage is known.

Both have names, counts, times and an outcome, and never a prompt, a response or a key.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from http import HTTPStatus

from node.protocol.messages import Finished
from node.protocol.paths import VERSION_PREFIX
from router.errors import RouterError
from router.records.outcomes import reason_of, tokens_of
from router.types import Lease, Ticket, Tokens
from serving.tracing.context import trace_id_of
from serving.tracing.spans import Span, Tracing

log = logging.getLogger("mlx_fleet.requests")

OUTCOME_LEFT = "disconnected"
"""Outcome of a request whose client disconnected before it had sent its body."""
OUTCOME_UNKNOWN = "ended"
"""Outcome of a request of which nothing is reported, such as a count of tokens."""
REFUSED_SPAN = "refused"
"""Name of the span of a request without a ticket, whose path may be any text."""
_ATTRIBUTES = {
    "path": "http.route",
    "status": "http.response.status_code",
    "model": "gen_ai.request.model",
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
}
"""OpenTelemetry's own names of fields of a `RequestLine`."""
_MOST_CHARS = 256
"""Longest path or model name of a client in a line."""


@dataclass(slots=True)
class RequestLine:
    """One request as it is logged. A value that is not known is None."""

    path: str
    key: str
    """Name of its key; empty if it has no valid one."""
    model: str
    """The model's name in the request; empty if its body could not be read."""
    node: str = ""
    """Node of the last attempt; empty if there was none."""
    attempts: int = 0
    status: int | None = None
    """HTTP status of the response; None if none was sent."""
    outcome: str = ""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    queue_s: float | None = None
    """Wait in the router and in the engine."""
    ttft_s: float | None = None
    total_s: float | None = None
    tokens_per_s: float | None = None

    def set_tokens(self, tokens: Tokens) -> None:
        self.prompt_tokens, self.cached_tokens, self.completion_tokens = tokens[:3]
        self.reasoning_tokens = tokens.reasoning

    def set_usage(self, usage: Finished, waited_s: float) -> None:
        """Sets what a node has reported of an attempt that was sent to it after `waited_s`."""
        self.set_tokens(tokens_of(usage))
        self.queue_s = waited_s + usage.queue_s
        self.ttft_s = None if usage.ttft_s is None else waited_s + usage.ttft_s
        if usage.decode_s > 0 and usage.completion_tokens > 1:
            self.tokens_per_s = (usage.completion_tokens - 1) / usage.decode_s

    def text(self) -> str:
        """The line, without the request's id."""
        on = f" on {self.node}" if self.node else ""
        by = f" for {self.key}" if self.key else " without a valid key"
        model = f" {self.model}" if self.model else ""
        parts = [f"{self.path.removeprefix(VERSION_PREFIX)}{model}{on}{by}: {self._ending()}"]
        if self.prompt_tokens is not None:
            parts.append(self._tokens())
        for word, seconds in (
            ("queue", self.queue_s),
            ("first after", self.ttft_s),
            ("total", self.total_s),
        ):
            if seconds is not None:
                parts.append(f"{word} {seconds:.2f} s")
        if self.tokens_per_s is not None:
            parts.append(f"{self.tokens_per_s:.1f} tokens/s")
        if self.attempts > 1:
            parts.append(f"{self.attempts} attempts")
        return ", ".join(parts)

    def _ending(self) -> str:
        return self.outcome if self.status is None else f"{self.status} {self.outcome}"

    def _tokens(self) -> str:
        cached, reasoning = self.cached_tokens or 0, self.reasoning_tokens or 0
        whole = f"{self.prompt_tokens} + {self.completion_tokens or 0} tokens"
        return f"{whole} ({cached} cached, {reasoning} reasoning)"

    def fields(self) -> dict[str, str | int | float]:
        """The known values by their names, for a log of JSON objects."""
        return {name: value for name, value in asdict(self).items() if value not in (None, "")}


@dataclass(slots=True)
class _Open:
    """A request that has not ended, or whose usage is not known yet. All are kept, for those that
    are open when the log is switched on; the line is made of it only where one is written."""

    ticket: Ticket
    span: Span | None
    waits_for: set[str] = field(default_factory=set)
    """Ids, on their nodes, of the attempts whose usage is not known yet."""
    lease: Lease | None = None
    """That of the last attempt; None before the first, as for all that follows on attempts."""
    node: str = ""
    usage: Finished | None = None
    tokens: Tokens | None = None
    """Tokens that a third-party server has reported."""
    ttft_s: float | None = None
    outcome: str = ""
    has_ended: bool = False
    status: int | None = None
    error: str = ""
    """Code of the router's own error with which it ended; empty if there was none."""
    end_s: float = 0.0
    end_unix_s: float = 0.0

    def is_last(self, lease: Lease) -> bool:
        return self.lease is not None and lease.attempt == self.lease.attempt

    def line(self) -> RequestLine:
        ticket, usage = self.ticket, self.usage
        line = RequestLine(ticket.path, ticket.caller.name, ticket.requested_model[:_MOST_CHARS])
        line.status = self.status
        line.outcome = self.error or self.outcome or OUTCOME_UNKNOWN
        if self.has_ended:
            line.total_s = self.end_s - ticket.arrived_s
        if self.tokens is not None:
            line.set_tokens(self.tokens)
        line.ttft_s = self.ttft_s
        if self.lease is not None:
            waited_s = max(0.0, self.lease.granted_s - ticket.arrived_s)
            line.node, line.attempts, line.queue_s = self.node, self.lease.attempt, waited_s
            if usage is not None:
                line.set_usage(usage, waited_s)
        return line


@dataclass(frozen=True, slots=True)
class EarlyRequest:
    """A request that has no ticket."""

    path: str
    key: str
    """Name of its key; empty if it has no valid one."""
    trace: str
    total_s: float


class RequestLog:
    """Owner of the lines of requests that have not ended, or whose usage is not known yet."""

    def __init__(
        self,
        *,
        is_on: bool = False,
        tracing: Tracing | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.is_on = is_on
        """True if each request that ends from now on is logged."""
        self.tracing = tracing
        """The owner of the requests' spans; None if there are none."""
        self._wall_clock = wall_clock
        self._open: dict[str, _Open] = {}

    # --- a request that has a ticket ---

    def begin_span(self, trace: str) -> Span | None:
        """Begins the span of a request; None if there are no spans."""
        if self.tracing is None:
            return None
        return self.tracing.begin(trace, self._wall_clock())

    def begin(self, ticket: Ticket, span: Span | None = None) -> None:
        """A request has its first ticket."""
        self._open[ticket.request_id] = _Open(ticket, span)

    def sent(self, lease: Lease, node_name: str) -> None:
        """The request has been sent to a node, of whose attempt the usage will be known."""
        if (found := self._open.get(lease.ticket_id)) is not None:
            found.waits_for.add(lease.node_request_id)
            if found.lease is not None:
                found.usage, found.tokens, found.ttft_s, found.outcome = None, None, None, ""
            found.lease, found.node = lease, node_name

    def reported(self, lease: Lease, usage: Finished) -> None:
        """A node has reported the usage of an attempt."""
        if (found := self._open.get(lease.ticket_id)) is None:
            return
        if found.is_last(lease):
            found.usage, found.outcome = usage, usage.reason.value
        self._settle(found, lease)

    def unreported(
        self, lease: Lease, outcome: str, tokens: Tokens | None, ttft_s: float | None
    ) -> None:
        """An attempt has ended of which no usage record comes; `tokens` are those that a
        third-party server has reported."""
        if (found := self._open.get(lease.ticket_id)) is None:
            return
        if found.is_last(lease):
            found.tokens, found.ttft_s, found.outcome = tokens, ttft_s, outcome
        self._settle(found, lease)

    def ended(self, ticket: Ticket, status: int, error: str, now_s: float) -> None:
        """The response to the request has ended. `status` is 0 if none was sent; `error` is the
        code of the router's own error, if it ended with one."""
        if (found := self._open.get(ticket.request_id)) is None:
            return
        found.has_ended, found.status, found.error, found.end_s = True, status or None, error, now_s
        if found.span is not None:
            found.end_unix_s = self._wall_clock()
        self._write_known(found)

    def close(self) -> None:
        """Writes the lines of all requests that have ended, at shutdown."""
        for found in list(self._open.values()):
            found.waits_for.clear()
            self._write_known(found)
        self._open.clear()

    def close_spans(self) -> None:
        """Sends the spans that wait, at shutdown. Blocks while the collector does not respond."""
        if self.tracing is not None:
            self.tracing.close()

    # --- a request that has none ---

    def refused(self, request: EarlyRequest, error: RouterError) -> None:
        """A request has been refused before it had a ticket."""
        line = RequestLine(request.path[:_MOST_CHARS], request.key, error.model[:_MOST_CHARS])
        line.status, line.outcome, line.total_s = error.status, reason_of(error), request.total_s
        self._write_early(line, request.trace)

    def left(self, request: EarlyRequest) -> None:
        """A client has disconnected before it had sent its whole body."""
        line = RequestLine(request.path[:_MOST_CHARS], request.key, "")
        line.outcome, line.total_s = OUTCOME_LEFT, request.total_s
        self._write_early(line, request.trace)

    # --- state ---

    def _write_early(self, line: RequestLine, trace: str) -> None:
        if self.is_on:
            _write(line, trace_id=trace_id_of(trace))
        if self.tracing is not None:
            now_s = self._wall_clock()
            span = self.tracing.begin(trace, now_s - (line.total_s or 0.0))
            _end_span(span, line, REFUSED_SPAN, now_s)

    def _settle(self, found: _Open, lease: Lease) -> None:
        found.waits_for.discard(lease.node_request_id)
        self._write_known(found)

    def _write_known(self, found: _Open) -> None:
        """Writes the line once nothing more will be known."""
        ticket_id = found.ticket.request_id
        if not found.has_ended or found.waits_for or self._open.pop(ticket_id, None) is None:
            return
        if self.is_on:
            _write(found.line(), ticket_id, trace_id_of(found.ticket.trace))
        if found.span is not None:
            line = found.line()
            _end_span(found.span, line, line.path, found.end_unix_s)


def _end_span(span: Span, line: RequestLine, name: str, end_unix_s: float) -> None:
    known = line.fields()
    attributes = {_ATTRIBUTES.get(each, f"mlx_fleet.{each}"): known[each] for each in known}
    failed = line.status is None or line.status >= HTTPStatus.INTERNAL_SERVER_ERROR
    span.end(name, attributes, end_unix_s, failed=failed)


def _write(line: RequestLine, request_id: str = "", trace_id: str = "") -> None:
    extra = {"request": line.fields(), "request_id": request_id, "trace_id": trace_id}
    log.info("%s", line.text(), extra=extra)
