"""What `/admin/explain` takes and answers; the command line reads the same types."""

from typing import Any

from pydantic import Field

from router.api.admin.views import Asked, Shown


class AskDecision(Asked):
    """A request as a client would send it."""

    path: str = "/v1/chat/completions"
    headers: dict[str, str] = Field(default_factory=dict)
    body: dict[str, Any]


class CostRow(Shown):
    """What the request costs on one node."""

    node_id: str
    node: str
    chosen: bool
    excluded: str | None
    """Why the node is out of the question, as a sentence."""
    terms_s: dict[str, float]
    """By their names in `x-fleet-decision`."""
    total_s: float
    prompt_tokens: int
    cached_tokens: int
    memory_tokens: int
    """Share of the cached ones that need not be read from disk."""
    estimated: bool
    """Whether the cached ones are a guess, since the node tells nothing of its cache."""


class DecisionRow(Shown):
    model: str
    node: str | None
    """None: no node can take the request."""
    waited_s: float
    reason: str
    target_reason: str = ""
    """Why this model of those that the name means; empty where there was no choice."""
    costs: tuple[CostRow, ...]


class RequestUsageRow(Shown):
    """What the node says of a request that it has answered."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    queue_s: float
    prefill_s: float
    decode_s: float
    ttft_s: float | None
    reason: str


class AttemptRow(Shown):
    decision: DecisionRow
    expected_ttft_s: float
    ttft_s: float | None
    """Both from the request's arrival at the router; None: its answer has not begun."""
    outcome: str | None
    """None while it runs."""
    usage: RequestUsageRow | None


class RejectRow(Shown):
    kind: str
    reason: str
    position: int
    wait_s: float


class DecidedRow(Shown):
    """What was decided for a request, and what came of it."""

    request_id: str
    path: str
    requested_model: str
    model: str
    priority: str
    arrived_ago_s: float
    attempts: tuple[AttemptRow, ...]
    rejected: RejectRow | None
    target_reason: str = ""
    """How the first of the models that its name means was chosen; empty where it means one."""
    failed_targets: tuple[str, ...] = ()
    """Models that were to take it before, with the codes of their errors."""
