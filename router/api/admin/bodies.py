"""Bodies of requests to `/admin`."""

from typing import Annotated

from pydantic import Field, StringConstraints

from router.api.admin.views import Name, NodePrices, Printable, RequestBody

NODE_NAME_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,62}$"

MAX_ROWS = 4096

GroupName = Annotated[
    str,
    StringConstraints(strip_whitespace=True, min_length=1, max_length=64, pattern=r"^\S+$"),
    Printable,
]
Limit = Annotated[int, Field(ge=1, le=1_000_000_000_000)]
Models = Annotated[tuple[Name, ...], Field(min_length=1, max_length=100)]
Days = Annotated[float, Field(gt=0, le=3650)]
NodeName = Annotated[str, StringConstraints(pattern=NODE_NAME_PATTERN)]


MacText = Annotated[str, StringConstraints(max_length=32)]
PairingCodeText = Annotated[str, StringConstraints(max_length=64)]


class AddNode(RequestBody):
    url: Name
    name: NodeName | None = None
    """The URL's host name if None."""
    token: str = ""
    code: PairingCodeText | None = None
    """The one-time code of an agent to pair with, in place of a token."""
    kind: Annotated[str, StringConstraints(pattern="^(agent|openai)$")] = "agent"
    allow_plain_http: bool = False
    max_rows: Annotated[int, Field(ge=1, le=MAX_ROWS)] | None = None
    """Requests that a server of kind openai serves at once; a usual number if None."""
    prices: NodePrices | None = None
    """Prices of a paid server; None for a free one."""
    models: Annotated[tuple[Name, ...], Field(min_length=1, max_length=1000)] | None = None
    """Models of a server of kind openai that requests may go to; all that it lists at this time if
    None."""
    wake_mac: MacText | None = None
    """The MAC address at which requests may wake it; None if they may not."""


class WakeOrder(RequestBody):
    """Body of `/nodes/wake`."""

    node: Name


class SetWaking(RequestBody):
    """Body of `/nodes/waking`; what is None stays as it is."""

    node: Name
    mac: MacText | None = None
    """The MAC address at which it is woken, in place of those that its agent reports."""
    wakes: bool | None = None
    """Requests may wake it."""


class RotateNode(RequestBody):
    """Body of `/nodes/rotate`."""

    node: Name
    code: PairingCodeText | None = None
    """The one-time code of an agent that has to be paired anew; without it, the agent makes a new
    secret for the router that it knows."""


class AcceptModels(RequestBody):
    """Body of `/nodes/accept`."""

    node: Name
    models: Annotated[tuple[Name, ...], Field(min_length=1, max_length=1000)]


class ModelOrder(RequestBody):
    """Body of load and unload."""

    model: Name
    node: Name | None = None


class ClearCache(RequestBody):
    """Body of `/cache/clear`; None stands for every node or model."""

    node: Name | None = None
    model: Name | None = None


class NodeOrder(RequestBody):
    """Body of `/nodes/state`."""

    node: Name
    state: Annotated[str, StringConstraints(pattern="^(active|cordoned|maintenance)$")]


class NodeNamed(RequestBody):
    node: Name


class PolicyChange(RequestBody):
    """A change of a policy; fields that are not given are kept."""

    model: Name
    node: Name | None = None
    """Every node that has the model if None."""
    pinned: bool | None = None
    keep_alive_s: Annotated[float, Field(ge=0, le=3.2e7, allow_inf_nan=False)] | None = None
    """0 is forever; null is the default of the node's own settings."""


class AddSchedule(RequestBody):
    model: Name
    node: Name | None = None
    """The best node if None."""
    load: Name | None = None
    unload: Name | None = None
    timezone: Name = "UTC"


class LimitChange(RequestBody):
    """Limits of a key or team; null is no limit, and where limits are changed, one that is not
    given stays."""

    requests_per_minute: Limit | None = None
    tokens_per_minute: Limit | None = None
    tokens_per_day: Limit | None = None
    """Tokens in a calendar day, in UTC."""
    concurrent_requests: Limit | None = None


class CreateTeam(RequestBody):
    name: GroupName
    limits: LimitChange = LimitChange()
    """Limits that the team's keys share."""


class ChangeTeam(RequestBody):
    limits: LimitChange


class CreateKey(RequestBody):
    name: GroupName
    scopes: tuple[str, ...] = ("inference", "external")
    team: Name | None = None
    models: Models | None = None
    """Models and aliases that it may use, by name or by pattern with `*`; all if None."""
    limits: LimitChange = LimitChange()
    expires_in_days: Days | None = None
    priority: str = "default"
    """The best priority class that its requests may have."""
    isolate: bool = False
    """True if its prompts share no cached prefix with those of other keys."""


class ChangeKey(RequestBody):
    """A change of a key; fields that are not given are kept."""

    scopes: tuple[str, ...] = ()
    team: Name | None = None
    models: Models | None = None
    limits: LimitChange = LimitChange()
    expires_in_days: Days | None = None
    """Days from now; null is never."""
    priority: str = ""
    paid_budget: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] | None = None
    """Most that its requests to paid servers may cost in a calendar month; null: it may use
    none."""


class RotateKey(RequestBody):
    key: Name
    """The key's name or id."""
    grace_s: Annotated[float, Field(ge=0, le=3.2e7, allow_inf_nan=False)] = 0.0
    """Seconds for which the old secret is still accepted."""
