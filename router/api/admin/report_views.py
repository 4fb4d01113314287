"""Rows of `/admin/usage` and `/admin/audit`; the command line reads the same types."""

from router.api.admin.views import Row


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
