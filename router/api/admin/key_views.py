"""Rows of `/admin/keys` and `/admin/teams`; the command line reads the same types."""

from router.api.admin.views import Row


class LimitsRow(Row):
    """Limits of a key or team; None is no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None
    """Tokens in a calendar day, in UTC."""
    concurrent_requests: int | None = None


class LimitUse(Row):
    """Use of a key or team that has limits."""

    requests_left: int | None
    """Requests that it may make at once; None without a limit on requests."""
    tokens_left: int | None
    """Tokens left of the tighter of its limits on tokens; None without one."""
    tokens_today: int
    """Tokens of the requests that ended this day, in UTC."""
    open_requests: int


class KeyRow(Row):
    id: str
    name: str
    prefix: str
    scopes: tuple[str, ...]
    team: str | None = None
    models: tuple[str, ...] | None = None
    """Models and aliases that it may use, or patterns of them; None for all."""
    limits: LimitsRow = LimitsRow()
    use: LimitUse | None = None
    """None if it has no limits of its own."""
    priority: str
    isolated: bool
    paid_budget: float | None
    """Most that its requests to paid servers may cost in a calendar month; None if none are
    allowed."""
    paid_spent: float = 0.0
    """Cost in this month."""
    created_at_s: float
    expires_at_s: float | None
    revoked_at_s: float | None
    rotated_at_s: float | None = None
    old_prefix: str | None = None
    """Prefix of its secret before the last rotation."""
    old_until_s: float | None = None
    """Time until which that secret is accepted."""


class NewKey(KeyRow):
    key: str
    """Shown only once; the router keeps just its digest."""


class RevokedKey(KeyRow):
    already: bool
    """True if it was revoked before."""


class TeamRow(Row):
    id: str
    name: str
    limits: LimitsRow
    use: LimitUse | None
    """None if it has no limits."""
    keys: tuple[str, ...]
    """Names of its valid keys."""
    created_at_s: float
