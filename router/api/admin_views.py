"""What `/admin` takes and answers; the command line reads the same types."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

NODE_NAME_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,62}$"

MAX_ROWS = 4096

Name = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=200)]
NodeName = Annotated[str, StringConstraints(pattern=NODE_NAME_PATTERN)]


class Asked(BaseModel):
    """A request body; a field it does not know is refused, since it is a typing error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class AddNode(Asked):
    url: Name
    name: NodeName | None = None
    """None: the host name of the URL."""
    token: str = ""
    kind: Annotated[str, StringConstraints(pattern="^(agent|openai)$")] = "agent"
    allow_plain_http: bool = False
    max_rows: Annotated[int, Field(ge=1, le=MAX_ROWS)] | None = None
    """How many requests a server of kind openai serves at once; None: a usual number."""


class ModelOrder(Asked):
    """Body of load and unload."""

    model: Name
    node: Name | None = None


class SetAlias(Asked):
    target: Name
    force: bool = False
    """Whether the target may be a model that no node has reported yet."""


class CreateKey(Asked):
    name: Annotated[
        str, StringConstraints(strip_whitespace=True, min_length=1, max_length=64, pattern=r"^\S+$")
    ]
    scopes: tuple[str, ...] = ("inference",)
    expires_in_days: Annotated[float, Field(gt=0, le=3650)] | None = None
    priority: str = "default"
    """The best class that its requests may have."""
    isolate: bool = False
    """Whether its prompts share no cached prefix with those of other keys."""


class Shown(BaseModel):
    """A row of an answer; times are seconds since the epoch."""

    model_config = ConfigDict(frozen=True)


class NodeModel(Shown):
    name: str
    state: str


class NodeRow(Shown):
    id: str
    name: str
    url: str
    kind: str
    created_at_s: float
    reachable: bool
    error: str | None
    """Why it is not reachable, as a sentence."""
    heard_ago_s: float | None
    """Seconds since its last word; None before the first."""
    version: str | None
    engine: str | None
    chip: str | None
    memory_budget_bytes: int | None
    memory_leased_bytes: int | None
    in_flight: int
    max_rows: int | None
    """As an admin has set it."""
    models: tuple[NodeModel, ...]


class ModelPlace(Shown):
    """A model on one node."""

    node: str
    reachable: bool
    state: str
    weight_bytes: int
    context_tokens: int | None
    active_requests: int
    since_s: float
    reason: str | None


class ModelRow(Shown):
    name: str
    aliases: tuple[str, ...]
    weight_bytes: int
    context_tokens: int | None
    active_requests: int
    nodes: tuple[ModelPlace, ...]


class OrderDone(Shown):
    """What a load or unload has done."""

    model: str
    nodes: tuple[str, ...]
    took_s: float


class AliasRow(Shown):
    name: str
    target: str
    known: bool
    """Whether any node has reported the target."""
    created_at_s: float


class KeyRow(Shown):
    id: str
    name: str
    prefix: str
    scopes: tuple[str, ...]
    priority: str
    isolated: bool
    created_at_s: float
    expires_at_s: float | None
    revoked_at_s: float | None


class NewKey(KeyRow):
    key: str
    """Shown this once; the router keeps its digest only."""


class UsageRow(Shown):
    key_id: str
    key: str
    """The key's name."""
    model: str
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


class AuditRow(Shown):
    id: int
    at_s: float
    actor: str
    verb: str
    subject: str
    detail: str
