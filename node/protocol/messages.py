"""Everything that a router and a node agent say to each other.

The agent answers `GET /fleet/status` with a `NodeStatus`, and streams `Event`s as one JSON
object a line from `GET /fleet/events?instance=ID&after=SEQ`. A stream begins with a `StatusEvent`;
`Finished` records newer than `after` of the same instance follow, so a router that was away loses
none that the agent still keeps, and then a `PrefixSnapshot` of each loaded model. Every request
carries `HEADER_PROTOCOL`; an agent refuses another version with 426 and says which one it speaks.
All numbers and texts have bounds (`node.protocol.bounds`): what exceeds one is not decoded.
"""

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from node.protocol.bounds import (
    MAX_DEPTHS,
    MAX_MODELS,
    Count,
    Fraction,
    Id,
    Name,
    Origin,
    Proof,
    Rate,
    Seconds,
    Sentence,
    StepSeconds,
    Tokens,
    UnixSeconds,
    Word,
)
from node.protocol.prefixes import PackedEntries, PackedHashes
from serving.units import gib

PROTOCOL_VERSION = 5

HEADER_PROTOCOL = "x-fleet-protocol"
HEADER_REQUEST_ID = "x-request-id"
HEADER_REQUESTED_MODEL = "x-fleet-requested-model"
"""The name the caller asked for; the agent writes it in its answers in place of its own."""
HEADER_ORIGIN = "x-fleet-origin"
"""`<router id>/<key id>`: opaque to the agent, which repeats it in `Finished.origin`."""

HEADER_PROOF = "x-fleet-proof"
"""That the router gave this request to this node: opaque too, and repeated in `Finished.proof`."""

HEADER_IGNORED = "x-fleet-ignored"
"""Of an answer: paths in the body of what it was answered without."""

HEADER_SALT = "x-fleet-salt"
"""What parts the caller's prefixes from everybody else's; none for most callers."""

HEADER_PROMPT_TOKENS = "x-fleet-prompt-tokens"
HEADER_CACHED_TOKENS = "x-fleet-cached-tokens"
"""Of an answer: how long its prompt is, and how much of that is not computed anew."""

PATH_STATUS = "/fleet/status"
PATH_EVENTS = "/fleet/events"
PATH_LOAD = "/fleet/load"
PATH_WARM = "/fleet/warm"
PATH_CLEAR_CACHE = "/fleet/cache/clear"

MAX_CHAIN_BYTES = 2**31
"""Of what a stored response's chain stands for; whoever goes on from it counts in 32 bits."""

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

    memory_bytes: Count
    """Most that it may hold in memory."""
    memory_used_bytes: Count
    bytes_per_token: Count
    """KV of one token, stored; 0 where it does not grow with the tokens."""
    disk_bytes: Count = 0
    """Most that it may hold on disk; 0: no such tier."""
    disk_used_bytes: Count = 0
    snapshot_only: bool = False
    """The model can go on from stored snapshots only, not from any token."""
    slots: Count = 0
    """How many prompts it may hold in memory, however short; 0: as many as fit, as in all of this
    package's engines."""
    slots_used: Count = 0


class DepthSpeed(msgspec.Struct, frozen=True, array_like=True):
    """The speed of prefill from a depth on, to that of the next."""

    depth_tokens: Count
    tokens_per_s: Rate


class ModelSpeed(msgspec.Struct, frozen=True, omit_defaults=True):
    """How fast an engine has found itself to be."""

    prefill: Annotated[tuple[DepthSpeed, ...], Meta(max_length=MAX_DEPTHS)] = ()
    """By depth, the shallowest first."""
    step_s: StepSeconds | None = None
    """Of a step of decoding."""
    step_rows: Annotated[int, Meta(ge=1, le=4096)] = 1
    """Rows that it decoded."""


class ModelStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """One model as its node sees it."""

    name: Name
    state: ModelState
    weight_bytes: Count
    context_tokens: Count | None = None
    active_requests: Count = 0
    """Requests that the engine has accepted and not finished, running or waiting."""
    max_rows: Count = 1
    """How many requests the engine decodes at once."""
    since_unix_s: UnixSeconds = 0.0
    reason: Sentence | None = None
    """A sentence, where the state is `failed`, or where a pull is interrupted."""
    retry_after_s: Seconds = 0.0
    """Where the state is `failed`, until a load may be tried again; where a pull is interrupted,
    until it is tried again, if it is."""
    wants_peer: bool = False
    """Where a pull is interrupted: it came from a peer, and goes on once a router names one."""
    progress: Fraction | None = None
    """Share that is done, 0 to 1, while the state is `pulling` or `loading`."""
    generation: Count = 0
    """Number of its load, new at each, over restarts of the agent too; an unload on a condition
    names it."""
    leases: Count = 0
    """Requests that hold it or wait for it, accepted by the engine or not."""
    idle_s: Seconds | None = None
    """Since the end of its last request, or its load; None while it is held or not loaded."""
    work_tokens: Count = 0
    """Prefilled and decoded since its load, and some for the time of steps that take seconds: grows
    while the engine makes progress."""
    pinned: bool = False
    """Never unloaded to make room or for being idle."""
    keep_alive_s: Seconds | None = None
    """How long it may be idle; None: for ever."""
    disk_bytes: Count = 0
    """Of its files."""
    memory_bytes: Count = 0
    """What a load of it takes for good: weights, live KV and the process; 0: not known."""
    load_s: Seconds | None = None
    """What its last load took; None before the first."""
    capabilities: Annotated[tuple[Word, ...], Meta(max_length=16)] = ()
    """What it can do: `completion`, `tools`, `reasoning`."""
    tool_parser: Word = ""
    """How its tool calls are read; empty where nothing tells."""
    reasoning_parser: Word = ""
    cache: CacheStatus | None = None
    """None while the model is not loaded, and where nothing is kept."""
    speed: ModelSpeed | None = None
    """None before an engine of this agent has learned it."""


class MemoryPressure(msgspec.Struct, frozen=True, omit_defaults=True):
    """That a node's machine is short of memory, or was until a while ago."""

    level: Word
    """`soft`, `hard`, or `none` while what was cut grows again."""
    for_s: Seconds
    """How long it has been at this level."""
    stored_cap_bytes: Count | None = None
    """Most stored KV that all models may keep in memory now; None: as ever."""

    @property
    def effect(self) -> str:
        """What it does to the node, as the end of a sentence."""
        size = "" if self.stored_cap_bytes is None else gib(self.stored_cap_bytes)
        if self.level == "hard":
            return "it stores no KV, loads no model, and answers small requests only"
        if self.level == "soft":
            return "its stored KV is cut step by step" + (f", to {size} now" if size else "")
        return f"its stored KV grows back, to {size} now" if size else "nothing is cut or refused"


class BrokenModel(msgspec.Struct, frozen=True):
    """A model's folder that cannot be served."""

    name: Name
    reason: Sentence


class NodeStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node agent's whole state at one moment."""

    protocol: Count
    node_id: Id
    """Stable over restarts."""
    instance_id: Id
    """New at every start of the agent."""
    version: Word
    engine: Word
    chip: Word
    memory_budget_bytes: Count
    memory_leased_bytes: Count
    """Without stored KV, which is given back for a load."""
    models: Annotated[tuple[ModelStatus, ...], Meta(max_length=MAX_MODELS)]
    disk_free_bytes: Count = 0
    """Where models are stored."""
    min_residency_s: Seconds = 0.0
    """A model that is loaded stays so long before it gives way to another one."""
    max_swap_wait_s: Seconds = 0.0
    """A request whose model has to wait for another one's to leave goes first after so long."""
    rests: bool = False
    """A router has it under maintenance: no pin holds, also none of other routers."""
    pressure: MemoryPressure | None = None
    """None where the machine has memory, and has had for a while."""
    broken: Annotated[tuple[BrokenModel, ...], Meta(max_length=MAX_MODELS)] = ()
    """What is on its disk besides the models, and is to be one."""


class FinishReason(StrEnum):
    """How a request ended, as accounted (the client's `finish_reason` is stop or length)."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"
    REFUSED = "refused"
    """The request itself was at fault: nothing was computed for it, or none of it counts."""


class StatusEvent(msgspec.Struct, frozen=True, tag="status"):
    """Sent first, at each change of residency, and at least every `HEARTBEAT_S`."""

    status: NodeStatus


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """The accounts of one request, aborted ones too. `seq` grows by one within an instance."""

    seq: Count
    request_id: Id
    origin: Origin
    model: Name
    prompt_tokens: Tokens
    cached_tokens: Tokens
    completion_tokens: Tokens
    reasoning_tokens: Tokens
    queue_s: Seconds
    """From acceptance by the engine until its prefill began."""
    ttft_s: Seconds | None
    """From the request's arrival at the agent to its first content; None if none came."""
    prefill_s: Seconds
    decode_s: Seconds
    reason: FinishReason
    finished_unix_s: UnixSeconds
    proof: Proof = ""
    """As `HEADER_PROOF` had it: without it a router takes no accounts."""


class Began(msgspec.Struct, frozen=True, tag="began"):
    """The first token of a request is there, so its prefill is over. Told where its answer does not
    say so at once. Not kept: a router that misses it estimates."""

    request_id: Id
    origin: Origin


class Stored(msgspec.Struct, frozen=True, tag="stored"):
    """A response is kept for later ones to go on from; by where its prefix chain ends its router
    knows what those begin with. Not kept: a router that misses it knows their own items only."""

    response_id: Annotated[str, Meta(max_length=128)]
    origin: Origin
    hash: int
    """With the next two as in `node.protocol.prefix.Head`."""
    front: int
    size_bytes: Annotated[int, Meta(ge=0, le=MAX_CHAIN_BYTES)]

    def __post_init__(self) -> None:
        # A bound beyond 63 bits cannot be a `Meta`.
        if not (0 <= self.hash < 1 << 64 and 0 <= self.front < 1 << 64):
            raise ValueError("a hash has 64 bits")


class CancelMarked(msgspec.Struct, frozen=True, tag="cancel_marked"):
    """The engine process has marked the request as cancelled, at its own monotonic clock."""

    request_id: Id
    marked_monotonic_s: Seconds


class PrefixSnapshot(msgspec.Struct, frozen=True, tag="prefix_snapshot"):
    """A piece of all prefixes that a loaded model holds; what a router knew of it is void at the
    first piece (`part` 0). Deltas go on from the last piece's `seq`."""

    model: Name
    epoch: Count
    """New at each load of the model; grows within an instance of the agent."""
    seq: Count
    """Number of the last delta that the snapshot includes, the same in all its pieces."""
    part: Count
    parts: Count
    entries: PackedEntries
    """As `node.protocol.prefixes.pack_entries` has them, at most `MAX_ENTRIES`."""


class PrefixDelta(msgspec.Struct, frozen=True, tag="prefix_delta"):
    """A change of the prefixes that a model holds. Within an epoch `seq` grows by one; where a
    number is missing, a router needs a snapshot, which a new event stream begins with."""

    model: Name
    epoch: Count
    seq: Count
    changed: PackedEntries
    """New entries, and old ones with new values; at most `MAX_ENTRIES`."""
    removed: PackedHashes
    """Hashes that hold no longer, as `pack_hashes` has them; at most `MAX_ENTRIES`."""


class PrefixGone(msgspec.Struct, frozen=True, tag="prefix_gone"):
    """The model's engine has ended: all its prefixes are void."""

    model: Name
    epoch: Count


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

    model: Name


class ClearedCache(msgspec.Struct, frozen=True):
    """What the engines of a node have forgotten: the answer of `PATH_CLEAR_CACHE`."""

    models: Annotated[tuple[Name, ...], Meta(max_length=MAX_MODELS)]
    memory_bytes: Count
    disk_bytes: Count
    skipped: Annotated[tuple[Name, ...], Meta(max_length=MAX_MODELS)] = ()
    """Models that were being loaded, or whose engines did not answer: theirs stays."""


class ControlError(msgspec.Struct, frozen=True):
    """Body of a refused control request."""

    message: Sentence


encode_event = msgspec.json.Encoder().encode
decode_event = msgspec.json.Decoder(Event).decode
encode_status = msgspec.json.Encoder().encode
decode_status = msgspec.json.Decoder(NodeStatus).decode
