"""Everything that a router and a node agent say to each other.

The agent answers `GET /fleet/status` with a `NodeStatus`, and streams `Event`s as one JSON
object a line from `GET /fleet/events?instance=ID&after=SEQ`. A stream begins with a `StatusEvent`;
`Finished` records newer than `after` of the same instance follow, so a router that was away loses
none that the agent still keeps, and then a `PrefixSnapshot` of each loaded model. Every request
carries `HEADER_PROTOCOL`; an agent refuses another version with 426 and says which one it speaks.
"""

from enum import StrEnum

import msgspec

PROTOCOL_VERSION = 4

HEADER_PROTOCOL = "x-fleet-protocol"
HEADER_REQUEST_ID = "x-request-id"
HEADER_REQUESTED_MODEL = "x-fleet-requested-model"
"""The name the caller asked for; the agent writes it in its answers in place of its own."""
HEADER_ORIGIN = "x-fleet-origin"
"""`<router id>/<key id>`: opaque to the agent, which repeats it in `Finished.origin`."""

HEADER_SALT = "x-fleet-salt"
"""What parts the caller's prefixes from everybody else's; none for most callers."""

PATH_STATUS = "/fleet/status"
PATH_EVENTS = "/fleet/events"
PATH_LOAD = "/fleet/load"
PATH_WARM = "/fleet/warm"
PATH_CLEAR_CACHE = "/fleet/cache/clear"

HEARTBEAT_S = 2.0
"""Longest silence of a healthy event stream."""


class ModelState(StrEnum):
    """Residency of one model on one node; one that is absent is not told of."""

    PULLING = "pulling"
    ON_DISK = "on_disk"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


class CacheStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """The prefix cache of one loaded model, for what a router has to reckon with."""

    memory_bytes: int
    """Most that it may hold in memory."""
    memory_used_bytes: int
    bytes_per_token: int
    """KV of one token, stored; 0 where it does not grow with the tokens."""
    disk_bytes: int = 0
    """Most that it may hold on disk; 0: no such tier."""
    disk_used_bytes: int = 0
    snapshot_only: bool = False
    """The model can go on from stored snapshots only, not from any token."""
    slots: int = 0
    """How many prompts it may hold in memory, however short; 0: as many as fit, as in all of this
    package's engines."""
    slots_used: int = 0


class ModelStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """One model as its node sees it."""

    name: str
    state: ModelState
    weight_bytes: int
    context_tokens: int | None = None
    active_requests: int = 0
    """Requests that the engine has accepted and not finished, running or waiting."""
    max_rows: int = 1
    """How many requests the engine decodes at once."""
    since_unix_s: float = 0.0
    reason: str | None = None
    """A sentence, where the state is `failed`, or where a pull is interrupted."""
    retry_after_s: float = 0.0
    """Where the state is `failed`, until a load may be tried again; where a pull is interrupted,
    until it is tried again, if it is."""
    wants_peer: bool = False
    """Where a pull is interrupted: it came from a peer, and goes on once a router names one."""
    progress: float | None = None
    """Share that is done, 0 to 1, while the state is `pulling` or `loading`."""
    generation: int = 0
    """Number of its load, new at each, over restarts of the agent too; an unload on a condition
    names it."""
    leases: int = 0
    """Requests that hold it or wait for it, accepted by the engine or not."""
    idle_s: float | None = None
    """Since the end of its last request, or its load; None while it is held or not loaded."""
    work_tokens: int = 0
    """Prefilled and decoded since its load: grows while the engine makes progress."""
    pinned: bool = False
    """Never unloaded to make room or for being idle."""
    keep_alive_s: float | None = None
    """How long it may be idle; None: for ever."""
    disk_bytes: int = 0
    """Of its files."""
    memory_bytes: int = 0
    """What a load of it takes for good: weights, live KV and the process; 0: not known."""
    load_s: float | None = None
    """What its last load took; None before the first."""
    capabilities: tuple[str, ...] = ()
    """What it can do: `completion`, `tools`, `reasoning`."""
    tool_parser: str = ""
    """How its tool calls are read; empty where nothing tells."""
    reasoning_parser: str = ""
    cache: CacheStatus | None = None
    """None while the model is not loaded, and where nothing is kept."""


class NodeStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node agent's whole state at one moment."""

    protocol: int
    node_id: str
    """Stable over restarts."""
    instance_id: str
    """New at every start of the agent."""
    version: str
    engine: str
    chip: str
    memory_budget_bytes: int
    memory_leased_bytes: int
    """Without stored KV, which is given back for a load."""
    models: tuple[ModelStatus, ...]
    disk_free_bytes: int = 0
    """Where models are stored."""
    min_residency_s: float = 0.0
    """A model that is loaded stays so long before it gives way to another one."""
    max_swap_wait_s: float = 0.0
    """A request whose model has to wait for another one's to leave goes first after so long."""
    rests: bool = False
    """A router has it under maintenance: no pin holds, also none of other routers."""


class FinishReason(StrEnum):
    """How a request ended, as accounted (the client's `finish_reason` is stop or length)."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


class StatusEvent(msgspec.Struct, frozen=True, tag="status"):
    """Sent first, at each change of residency, and at least every `HEARTBEAT_S`."""

    status: NodeStatus


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """The accounts of one request, aborted ones too. `seq` grows by one within an instance."""

    seq: int
    request_id: str
    origin: str
    model: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    queue_s: float
    """From acceptance by the engine until its prefill began."""
    ttft_s: float | None
    """From the request's arrival at the agent to its first content; None if none came."""
    prefill_s: float
    decode_s: float
    reason: FinishReason
    finished_unix_s: float


class Began(msgspec.Struct, frozen=True, tag="began"):
    """The first token of a request is there, so its prefill is over. Told where its answer does not
    say so at once. Not kept: a router that misses it estimates."""

    request_id: str
    origin: str


class Stored(msgspec.Struct, frozen=True, tag="stored"):
    """A response is kept for later ones to go on from; by where its prefix chain ends its router
    knows what those begin with. Not kept: a router that misses it knows their own items only."""

    response_id: str
    origin: str
    hash: int
    """With the next two as in `node.protocol.prefix.Head`."""
    front: int
    size_bytes: int


class CancelMarked(msgspec.Struct, frozen=True, tag="cancel_marked"):
    """The engine process has marked the request as cancelled, at its own monotonic clock."""

    request_id: str
    marked_monotonic_s: float


class PrefixSnapshot(msgspec.Struct, frozen=True, tag="prefix_snapshot"):
    """A piece of all prefixes that a loaded model holds; what a router knew of it is void at the
    first piece (`part` 0). Deltas go on from the last piece's `seq`."""

    model: str
    epoch: int
    """New at each load of the model; grows within an instance of the agent."""
    seq: int
    """Number of the last delta that the snapshot includes, the same in all its pieces."""
    part: int
    parts: int
    entries: bytes
    """As `node.protocol.prefixes.pack_entries` has them, at most `MAX_ENTRIES`."""


class PrefixDelta(msgspec.Struct, frozen=True, tag="prefix_delta"):
    """A change of the prefixes that a model holds. Within an epoch `seq` grows by one; where a
    number is missing, a router needs a snapshot, which a new event stream begins with."""

    model: str
    epoch: int
    seq: int
    changed: bytes
    """New entries, and old ones with new values; at most `MAX_ENTRIES`."""
    removed: bytes
    """Hashes that hold no longer, as `pack_hashes` has them; at most `MAX_ENTRIES`."""


class PrefixGone(msgspec.Struct, frozen=True, tag="prefix_gone"):
    """The model's engine has ended: all its prefixes are void."""

    model: str
    epoch: int


Event = (
    StatusEvent
    | Finished
    | Began
    | Stored
    | CancelMarked
    | PrefixSnapshot
    | PrefixDelta
    | PrefixGone
)


class ModelCommand(msgspec.Struct, frozen=True):
    """Names a model: the body of `PATH_LOAD`, and of the paths of `node.protocol.lifecycle`."""

    model: str


class ClearedCache(msgspec.Struct, frozen=True):
    """What the engines of a node have forgotten: the answer of `PATH_CLEAR_CACHE`."""

    models: tuple[str, ...]
    memory_bytes: int
    disk_bytes: int
    skipped: tuple[str, ...] = ()
    """Models that were being loaded, or whose engines did not answer: theirs stays."""


class ControlError(msgspec.Struct, frozen=True):
    """Body of a refused control request."""

    message: str


encode_event = msgspec.json.Encoder().encode
decode_event = msgspec.json.Decoder(Event).decode
encode_status = msgspec.json.Encoder().encode
decode_status = msgspec.json.Decoder(NodeStatus).decode
