"""Bodies of requests to `/admin`."""

from typing import Annotated

from pydantic import Field, StringConstraints

from router.api.admin.views import Name, NodePrices, Printable, RequestBody

NODE_NAME_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,62}$"

MAX_ROWS = 4096

NodeName = Annotated[str, StringConstraints(pattern=NODE_NAME_PATTERN)]


class AddNode(RequestBody):
    url: Name
    name: NodeName | None = None
    """The URL's host name if None."""
    token: str = ""
    kind: Annotated[str, StringConstraints(pattern="^(agent|openai)$")] = "agent"
    allow_plain_http: bool = False
    max_rows: Annotated[int, Field(ge=1, le=MAX_ROWS)] | None = None
    """Requests that a server of kind openai serves at once; a usual number if None."""
    prices: NodePrices | None = None
    """Prices of a paid server; None for a free one."""
    models: Annotated[tuple[Name, ...], Field(min_length=1, max_length=1000)] | None = None
    """Models of a server of kind openai that requests may go to; all that it lists at this time if
    None."""


class AcceptModels(RequestBody):
    """Body of `/nodes/accept`."""

    node: Name
    models: Annotated[tuple[Name, ...], Field(min_length=1, max_length=1000)]


class ModelOrder(RequestBody):
    """Body of load and unload."""

    model: Name
    node: Name | None = None


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


class CreateKey(RequestBody):
    name: Annotated[
        str,
        StringConstraints(strip_whitespace=True, min_length=1, max_length=64, pattern=r"^\S+$"),
        Printable,
    ]
    scopes: tuple[str, ...] = ("inference", "external")
    expires_in_days: Annotated[float, Field(gt=0, le=3650)] | None = None
    priority: str = "default"
    """The best priority class that its requests may have."""
    isolate: bool = False
    """True if its prompts share no cached prefix with those of other keys."""


class SetBudget(RequestBody):
    paid_budget: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] | None
