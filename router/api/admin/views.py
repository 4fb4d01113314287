"""What `/admin` answers; the command line reads the same types."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from node.protocol.bounds import NAME_CHARS
from node.protocol.names import is_name


def _shown_name(text: str) -> str:
    if not is_name(text):
        raise ValueError("it has characters that cannot be shown, such as line ends")
    return text


Shows = AfterValidator(_shown_name)
Name = Annotated[
    str, StringConstraints(strip_whitespace=True, min_length=1, max_length=NAME_CHARS), Shows
]
Price = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]


class Asked(BaseModel):
    """A request body; a field it does not know is refused, since it is a typing error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class NodePrices(Asked):
    """For a million tokens, in the admin's own currency."""

    input: Price
    output: Price
    cached: Price | None = None
    """None: as `input`."""


class Shown(BaseModel):
    """A row of an answer; times are seconds since the epoch."""

    # A command uses one or two of the rows: building the others would be most of its time.
    model_config = ConfigDict(frozen=True, defer_build=True)


class NodeModel(Shown):
    name: str
    state: str


class BreakerRow(Shown):
    """A model that has failed on a node; closed breakers have no row."""

    model: str
    state: str
    """open: requests go elsewhere; half_open: one of them tries."""
    failures: int
    """Of its last requests there: those of two minutes, at most 64."""
    outcomes: int
    """How many these are."""


class NodePressure(Shown):
    """That a node is short of memory, or was until a while ago."""

    level: str
    for_s: float
    """How long it has been at this level."""
    stored_cap_bytes: int | None
    """Most stored KV that its models may keep in memory now; None: as ever."""
    effect: str
    """What it does to the node, as the end of a sentence."""


class NodeRow(Shown):
    id: str
    name: str
    url: str
    kind: str
    created_at_s: float
    reachable: bool
    error: str | None
    """Why it is not reachable, as a sentence."""
    status_age_s: float | None
    """Seconds since its last word; None before the first."""
    version: str | None
    engine: str | None
    chip: str | None
    memory_budget_bytes: int | None
    memory_leased_bytes: int | None
    in_flight: int
    leases: int = 0
    """Requests that the node itself tells of, other routers' too."""
    state: str = "active"
    """What an admin wants of it: active, cordoned or maintenance."""
    max_rows: int | None
    """As an admin has set it."""
    prices: NodePrices | None = None
    breakers: tuple[BreakerRow, ...] = ()
    stalled: tuple[str, ...] = ()
    """Models with which the node makes no progress."""
    too_large: tuple[str, ...] = ()
    """Models for which its memory is too small."""
    pressure: NodePressure | None = None
    """None where it has memory."""
    broken: tuple[str, ...] = ()
    """Models whose files on its disk are damaged."""
    unaccepted: tuple[str, ...] = ()
    """What a server of kind openai lists besides, and no admin has accepted."""
    models: tuple[NodeModel, ...]


class PolicyRow(Shown):
    model: str
    node: str | None
    """None: every node that has the model."""
    pinned: bool
    keep_alive_s: float | None
    """0: for ever; None: as the node's own settings say."""


class ScheduleRow(Shown):
    id: str
    model: str
    node: str | None
    """None: whichever node is best."""
    load: str | None
    unload: str | None
    timezone: str
    load_fired_s: float | None
    """The due time that was acted upon last."""
    unload_fired_s: float | None
    next_load_s: float | None
    next_unload_s: float | None
    pending: str | None
    """What was due, "load" or "unload", and is not done yet."""
    pending_error: str | None = None
    """Why that failed when it was tried last."""


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
    progress: float | None = None
    """Share of a pull or a load that is done."""
    pinned: bool = False
    """Whether it stays in memory there."""
    keep_alive_s: float | None = None
    """How long it may be idle there; 0: for ever; None: nobody can tell, or it is not in memory."""
    idle_s: float | None = None
    """Since the end of its last request; None while it is in use or not in memory."""
    paid: bool = False
    """Whether its requests cost money there."""
    failing: bool = False
    """Whether requests go elsewhere: it failed there, or makes no progress."""
    no_room: str | None = None
    """What it lacks where the node's memory is too small for it, as a sentence."""
    node_state: str = "active"
    """What an admin wants of the node: active, cordoned or maintenance."""
    disk_bytes: int = 0
    """Of its files there."""
    node_free_bytes: int = 0
    """On the disk of the node's models."""


class ModelRow(Shown):
    name: str
    aliases: tuple[str, ...]
    weight_bytes: int
    context_tokens: int | None
    active_requests: int
    nodes: tuple[ModelPlace, ...]


class RegistryRow(Shown):
    error: str | None
    """Why writes fail, as a sentence; None while they succeed."""
    failing_s: float
    waiting_rows: int
    """Of usage, that are not written yet."""
    lost_rows: int
    """Of usage, that were too many to keep, since the router's start."""


class OrderDone(Shown):
    """What a load or unload has done."""

    model: str
    nodes: tuple[str, ...]
    took_s: float


class KeyRow(Shown):
    id: str
    name: str
    prefix: str
    scopes: tuple[str, ...]
    priority: str
    isolated: bool
    paid_budget: float | None
    """What its requests to paid servers may cost in a calendar month; None: none may."""
    paid_spent: float = 0.0
    """This month."""
    created_at_s: float
    expires_at_s: float | None
    revoked_at_s: float | None


class NewKey(KeyRow):
    key: str
    """Shown this once; the router keeps its digest only."""


class RevokedKey(KeyRow):
    already: bool
    """Whether it was revoked before."""


class UsageRow(Shown):
    key_id: str
    key: str
    """The key's name."""
    model: str
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost: float | None
    """At paid servers; None where none was asked."""


class NodeCheckRow(Shown):
    """What came of calling a node."""

    node: str
    url: str
    level: str
    finding: str
    message: str
    addresses: tuple[str, ...]
    took_s: float


class AuditRow(Shown):
    id: int
    at_s: float
    actor: str
    verb: str
    subject: str
    detail: str
