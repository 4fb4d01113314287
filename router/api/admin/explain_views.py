"""Bodies and rows of `/admin/explain`; the command line reads the same types."""

from typing import Any

from pydantic import Field

from node.protocol.paths import PATH_CHAT
from router.api.admin.views import RequestBody, Row


class ExplainBody(RequestBody):
    """A request as a client would send it."""

    path: str = PATH_CHAT
    headers: dict[str, str] = Field(default_factory=dict)
    body: dict[str, Any]


class CostRow(Row):
    """The cost of the request on one node."""

    node_id: str
    node: str
    chosen: bool
    excluded: str | None
    """Reason why the node is excluded, as a sentence."""
    terms_s: dict[str, float]
    """Cost terms in seconds, by their names in `x-fleet-decision`."""
    total_s: float
    prompt_tokens: int
    cached_tokens: int
    memory_tokens: int
    """Cached tokens that are in memory."""
    estimated: bool
    """True if the cached tokens are an estimate, since the node does not report its cache."""


class DecisionRow(Row):
    model: str
    node: str | None
    """None if no node can take the request."""
    waited_s: float
    reason: str
    target_reason: str = ""
    """Reason for this target among those of the alias; empty if there was no choice."""
    costs: tuple[CostRow, ...]


class RequestUsageRow(Row):
    """A node's usage record of a request."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    queue_s: float
    prefill_s: float
    decode_s: float
    ttft_s: float | None
    reason: str


class AttemptRow(Row):
    decision: DecisionRow
    expected_ttft_s: float
    ttft_s: float | None
    """Like `expected_ttft_s`, measured from the request's arrival at the router; None before the
    first content."""
    outcome: str | None
    """None while it runs."""
    usage: RequestUsageRow | None


class RejectRow(Row):
    kind: str
    reason: str
    position: int
    wait_s: float


class DecidedRow(Row):
    """The decisions for a request, and its outcome."""

    request_id: str
    path: str
    requested_model: str
    model: str
    priority: str
    arrived_ago_s: float
    attempts: tuple[AttemptRow, ...]
    rejected: RejectRow | None
    target_reason: str = ""
    """Reason for the first target of the alias; empty if the name means one model."""
    failed_targets: tuple[str, ...] = ()
    """Targets that failed before this one, with the codes of their errors."""
