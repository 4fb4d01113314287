"""Rows of `/admin`'s responses; the command line reads the same types."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from node.protocol.bounds import NAME_CHARS
from node.protocol.names import is_name


def _shown_name(text: str) -> str:
    if not is_name(text):
        raise ValueError("it has characters that cannot be shown, such as line ends")
    return text


Printable = AfterValidator(_shown_name)
Name = Annotated[
    str, StringConstraints(strip_whitespace=True, min_length=1, max_length=NAME_CHARS), Printable
]
Price = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]


class RequestBody(BaseModel):
    """A request body; an unknown field is refused, since it is probably a typing error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class NodePrices(RequestBody):
    """Prices for a million tokens, in the admin's own currency."""

    input: Price
    output: Price
    cached: Price | None = None
    """Same as `input` if None."""


class Row(BaseModel):
    """A row of a response; times are seconds since the epoch."""

    # A command uses one or two of the row types; building the others would take most of its time.
    model_config = ConfigDict(frozen=True, defer_build=True)


class NodeModel(Row):
    name: str
    state: str


class BreakerRow(Row):
    """A model that has failed on a node; closed breakers have no row."""

    model: str
    state: str
    """"open" means that requests go to other nodes, "half_open" that one of them is a trial."""
    failures: int
    """Failures among its last requests there, of two minutes and at most 64."""
    outcomes: int
    """Number of these requests."""


class NodePressure(Row):
    """A node's memory pressure at this time or until a while ago."""

    level: str
    for_s: float
    """Seconds that it has been at this level."""
    stored_cap_bytes: int | None
    """Most stored KV that its models may keep in memory; None for no limit beyond the usual."""
    effect: str
    """Effect on the node, as the end of a sentence."""


class NodeRow(Row):
    id: str
    name: str
    url: str
    kind: str
    created_at_s: float
    reachable: bool
    error: str | None
    """Reason why it is not reachable, as a sentence."""
    status_age_s: float | None
    """Seconds since its last status; None before the first."""
    version: str | None
    protocol: int | None = None
    """Version of the node protocol in which it and the router speak."""
    installed_by: str = ""
    """The tool by which mlx-fleet is installed there: clone, pip, uv, uv tool, pipx, homebrew."""
    instance_id: str | None = None
    """New at every start of the agent."""
    engine: str | None
    chip: str | None
    memory_budget_bytes: int | None
    memory_leased_bytes: int | None
    in_flight: int
    leases: int = 0
    """Requests that the node itself reports, including those of other routers."""
    state: str = "active"
    """State set by an admin: active, cordoned or maintenance."""
    max_rows: int | None
    """Limit set by an admin; None if there is none."""
    prices: NodePrices | None = None
    breakers: tuple[BreakerRow, ...] = ()
    stalled: tuple[str, ...] = ()
    """Models with which the node makes no progress."""
    too_large: tuple[str, ...] = ()
    """Models for which its memory is too small."""
    pressure: NodePressure | None = None
    """None if it has enough memory."""
    broken: tuple[str, ...] = ()
    """Models whose files on its disk are damaged."""
    unaccepted: tuple[str, ...] = ()
    """Models that a server of kind openai lists and no admin has accepted."""
    macs: tuple[str, ...] = ()
    """MAC addresses at which it is woken."""
    wakes: bool = False
    """True if requests may wake it."""
    is_waking: bool = False
    """True while magic packets are sent to it."""
    models: tuple[NodeModel, ...]


class FoundAgentRow(Row):
    """An agent that announces itself in the local network; nothing of it is proven."""

    name: str
    node_id: str
    urls: tuple[str, ...]
    version: str
    protocol: str
    chip: str
    memory_gib: int
    node: str | None
    """The name of the node that has its id; None if it is not part of the fleet."""
    paired: bool
    models: tuple[str, ...] | None
    """None unless it is a node of this fleet: agents tell their models to paired routers only."""


class PolicyRow(Row):
    model: str
    node: str | None
    """Every node that has the model if None."""
    pinned: bool
    keep_alive_s: float | None
    """0 is forever; None is the default of the node's own settings."""


class ScheduleRow(Row):
    id: str
    model: str
    node: str | None
    """The best node if None."""
    load: str | None
    unload: str | None
    timezone: str
    load_fired_s: float | None
    """Due time that was acted on last."""
    unload_fired_s: float | None
    next_load_s: float | None
    next_unload_s: float | None
    pending: str | None
    """Pending action, "load" or "unload"."""
    pending_error: str | None = None
    """Reason why the pending action failed last."""


class ModelPlace(Row):
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
    """Completed share of a pull or a load."""
    pinned: bool = False
    """True if it stays in memory there."""
    keep_alive_s: float | None = None
    """Seconds that it may be idle there; 0 is forever; None if unknown or not in memory."""
    idle_s: float | None = None
    """Seconds since its last request ended; None while it is in use or not in memory."""
    paid: bool = False
    """True if its requests cost money there."""
    failing: bool = False
    """True if requests go to other nodes, since it failed there or makes no progress."""
    no_room: str | None = None
    """Memory that it lacks on the node, as a sentence."""
    node_state: str = "active"
    """State of the node set by an admin: active, cordoned or maintenance."""
    disk_bytes: int = 0
    """Size of its files there."""
    node_free_bytes: int = 0
    """Free space on the disk of the node's models."""


class ModelRow(Row):
    name: str
    aliases: tuple[str, ...]
    weight_bytes: int
    context_tokens: int | None
    active_requests: int
    nodes: tuple[ModelPlace, ...]


class RegistryRow(Row):
    error: str | None
    """Reason why writes fail, as a sentence; None while they succeed."""
    failing_s: float
    waiting_rows: int
    """Usage rows that are not written yet."""
    lost_rows: int
    """Usage rows that were dropped since the router's start, because too many were waiting."""


class OrderDone(Row):
    """Result of a load or unload."""

    model: str
    nodes: tuple[str, ...]
    took_s: float


class ClearedRow(Row):
    """Stored KV that a node has deleted."""

    node: str
    models: tuple[str, ...]
    """Models whose caches are empty now."""
    memory_bytes: int
    disk_bytes: int
    skipped: tuple[str, ...]
    """Models that were being loaded, or whose engine did not respond."""
    error: str | None
    """Reason why nothing was deleted, as a sentence; None if there is none."""


class NodeCheckRow(Row):
    """Result of contacting a node."""

    node: str
    url: str
    level: str
    finding: str
    message: str
    addresses: tuple[str, ...]
    took_s: float


class OwnCheckRow(Row):
    """Result of a check of the router itself."""

    check: str
    level: str
    """"ok", "warn" or "fail"."""
    message: str


class ChangeRow(Row):
    """A setting that is configured otherwise than before."""

    option: str
    before: str
    after: str


class ReloadRow(Row):
    """The result of reading the settings again."""

    applied: list[ChangeRow]
    needs_restart: list[ChangeRow]
