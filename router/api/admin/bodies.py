"""What `/admin` takes."""

from typing import Annotated

from pydantic import Field, StringConstraints

from router.api.admin.views import Asked, Name, NodePrices, Shows

NODE_NAME_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,62}$"

MAX_ROWS = 4096

NodeName = Annotated[str, StringConstraints(pattern=NODE_NAME_PATTERN)]


class AddNode(Asked):
    url: Name
    name: NodeName | None = None
    """None: the host name of the URL."""
    token: str = ""
    kind: Annotated[str, StringConstraints(pattern="^(agent|openai)$")] = "agent"
    allow_plain_http: bool = False
    max_rows: Annotated[int, Field(ge=1, le=MAX_ROWS)] | None = None
    """How many requests a server of kind openai serves at once; None: a usual number."""
    prices: NodePrices | None = None
    """Of a paid server; None: it is free."""
    models: Annotated[tuple[Name, ...], Field(min_length=1, max_length=1000)] | None = None
    """Of a server of kind openai: those that requests may go to; None: all that it lists now."""


class AcceptModels(Asked):
    """Body of `/nodes/accept`."""

    node: Name
    models: Annotated[tuple[Name, ...], Field(min_length=1, max_length=1000)]


class ModelOrder(Asked):
    """Body of load and unload."""

    model: Name
    node: Name | None = None


class NodeOrder(Asked):
    """Body of `/nodes/state`."""

    node: Name
    state: Annotated[str, StringConstraints(pattern="^(active|cordoned|maintenance)$")]


class NodeNamed(Asked):
    node: Name


class PolicyChange(Asked):
    """Fields that are not given stay as they are."""

    model: Name
    node: Name | None = None
    """None: every node that has the model."""
    pinned: bool | None = None
    keep_alive_s: Annotated[float, Field(ge=0, le=3.2e7, allow_inf_nan=False)] | None = None
    """0: for ever; null: as the node's own settings say."""


class AddSchedule(Asked):
    model: Name
    node: Name | None = None
    """None: whichever node is best."""
    load: Name | None = None
    unload: Name | None = None
    timezone: Name = "UTC"


class CreateKey(Asked):
    name: Annotated[
        str,
        StringConstraints(strip_whitespace=True, min_length=1, max_length=64, pattern=r"^\S+$"),
        Shows,
    ]
    scopes: tuple[str, ...] = ("inference", "external")
    expires_in_days: Annotated[float, Field(gt=0, le=3650)] | None = None
    priority: str = "default"
    """The best class that its requests may have."""
    isolate: bool = False
    """Whether its prompts share no cached prefix with those of other keys."""


class SetBudget(Asked):
    paid_budget: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] | None
