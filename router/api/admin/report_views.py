"""Rows of `/admin/status`, `/admin/usage`, `/admin/audit` and `/admin/logs`; commands read the same
types."""

from router.api.admin.views import NodeRow, RegistryRow, Row


class LoadedRow(Row):
    """A model in the memory of one node."""

    model: str
    node: str
    state: str
    """"ready", "loading" or "draining"."""
    progress: float | None
    """Share of its load that is done."""
    running: int
    """Requests that its engine has accepted and not finished, those of other routers included."""
    waiting: int
    """Requests that wait on the node for the model."""
    max_rows: int
    """Most requests that it serves at once."""
    decode_tokens_per_s: float | None
    """Tokens of responses over the last seconds; None if unknown, as for servers of kind openai."""
    prefill_tokens_per_s: float | None
    memory_bytes: int
    """Weights, and what is stored of prompts in memory."""
    context_tokens: int | None
    pinned: bool
    keep_alive_s: float | None
    """Seconds that it may be idle; 0 is forever; None if unknown."""
    unload_in_s: float | None
    """Seconds until it is unloaded for being idle; None if it is in use or stays."""


class QueueRow(Row):
    """Requests of one class that wait in the router for a node with the model."""

    model: str
    priority: str
    waiting: int
    oldest_s: float
    """Seconds that the oldest of them has waited."""


class FailedModelRow(Row):
    """A model that a node could not load."""

    model: str
    node: str
    reason: str


class StatusRow(Row):
    """The fleet at one moment."""

    version: str
    """Version of the router."""
    protocol: int
    """Newest version of the node protocol that it speaks."""
    oldest_protocol: int
    installed_by: str
    """The tool by which it is installed, as for a node."""
    nodes: tuple[NodeRow, ...]
    loaded: tuple[LoadedRow, ...]
    """Models in memory, by node."""
    queue: tuple[QueueRow, ...]
    failed: tuple[FailedModelRow, ...]
    known_models: int
    """Models that requests may name, loaded or not, without aliases."""
    in_flight: int
    """Requests that this router has on nodes."""
    decode_tokens_per_s: float
    """Sum over the loaded models."""
    prefill_tokens_per_s: float
    registry: RegistryRow


class UsageRow(Row):
    """Sums over a group of requests; what they are not grouped by is None."""

    key_id: str | None = None
    key: str | None = None
    """Name of the key; its id if nobody knows it any more."""
    key_revoked: bool | None = None
    team: str | None = None
    """Name of the team that the key belongs to now; empty if to none."""
    model: str | None = None
    node: str | None = None
    """Name of the node, or its id once it is removed; empty for requests that no node got."""
    day: str | None = None
    """Calendar day in UTC, as 2026-12-31."""
    requests: int
    prompt_tokens: int
    cached_tokens: int
    """The prompt tokens that were cached."""
    completion_tokens: int
    reasoning_tokens: int
    """The completion tokens that were reasoning."""
    cost: float | None
    """Cost at paid servers; None if none served a request."""


class AuditRow(Row):
    id: int
    at_s: float
    actor: str
    """Name of the key; for the router's own actions, their reason; empty if no valid key was
    given."""
    client: str
    """Address that the request came from; empty for the router's own actions."""
    verb: str
    subject: str
    detail: str
    outcome: str
    """"done", or the code of the error that it ended with."""


class LogLineRow(Row):
    at_s: float
    text: str
    """The line in the form of its log, text or JSON."""


class LogRow(Row):
    """New lines of one log."""

    node: str | None
    """Name of the agent's node; None for the router's own log."""
    cursor: str
    """Where the next lines begin, for the parameter `after`; empty with an error."""
    has_gap: bool
    """True if there were more lines since the last ones that were read."""
    error: str | None
    """Reason why the log cannot be read, as a sentence; None if it can."""
    lines: tuple[LogLineRow, ...]
