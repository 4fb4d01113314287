"""The messages between a router and a node agent.

The agent responds to `GET /fleet/status` with a `NodeStatus`, and streams `Event`s as one JSON
object a line from `GET /fleet/events?instance=ID&after=SEQ`. A stream begins with a `StatusEvent`;
`Finished` records newer than `after` of the same instance follow, so that a router that was
disconnected gets all that the agent still keeps, and then a `PrefixSnapshot` of each loaded model.
Every request names its version in `HEADER_PROTOCOL` (`node.protocol.versions`). All numbers and
texts have bounds (`node.protocol.bounds`); a message that exceeds one is not decoded.
"""

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from node.protocol.bounds import (
    MAX_DEPTHS,
    MAX_MACS,
    MAX_MODELS,
    Count,
    Fraction,
    Id,
    Mac,
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

PROTOCOL_VERSION = 6
OLDEST_PROTOCOL_VERSION = 6
"""The version before, once there is a newer one than the first that was released: 6."""

PATH_STATUS = "/fleet/status"
PATH_EVENTS = "/fleet/events"
PATH_LOAD = "/fleet/load"
PATH_WARM = "/fleet/warm"
PATH_METRICS = "/metrics"

MAX_CHAIN_BYTES = 2**31
"""Largest chain of a stored response in canonical bytes; a chain that continues it counts them in
32 bits."""

HEARTBEAT_S = 2.0
"""Longest silence of a healthy event stream in seconds."""


class ModelState(StrEnum):
    """Residency of one model on one node. A model that is not on the node is not reported."""

    PULLING = "pulling"
    ON_DISK = "on_disk"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"
    UNKNOWN = "unknown"
    """Any that this side does not know; a router leaves such a model out."""

    @classmethod
    def _missing_(cls, _value: object) -> "ModelState":
        return cls.UNKNOWN


IN_MEMORY = (ModelState.READY, ModelState.LOADING, ModelState.DRAINING)
"""States in which a model occupies memory."""
NOT_LOADED = (ModelState.ON_DISK, ModelState.FAILED)
"""States in which a model is complete on disk and occupies no memory."""


class CacheStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """The prefix cache of one loaded model, as far as a router's cost model needs it."""

    memory_bytes: Count
    """Most bytes that it may use in memory."""
    memory_used_bytes: Count
    bytes_per_token: Count
    """Stored KV bytes of one token; 0 if they do not grow with the tokens."""
    disk_bytes: Count = 0
    """Most bytes that it may use on disk; 0: no disk tier."""
    disk_used_bytes: Count = 0
    snapshot_only: bool = False
    """The model can continue from stored snapshots only, not from any token."""
    slots: Count = 0
    """Most prompts in memory, however short; 0: limited by bytes only, as in all of this package's
    engines."""
    slots_used: Count = 0


class DepthSpeed(msgspec.Struct, frozen=True, array_like=True):
    """Prefill speed from this depth up to the next one."""

    depth_tokens: Count
    tokens_per_s: Rate


class ModelSpeed(msgspec.Struct, frozen=True, omit_defaults=True):
    """Speeds that an engine has measured."""

    prefill: Annotated[tuple[DepthSpeed, ...], Meta(max_length=MAX_DEPTHS)] = ()
    """Prefill speed by depth, the shallowest first."""
    step_s: StepSeconds | None = None
    """Seconds of a decode step."""
    step_rows: Annotated[int, Meta(ge=1, le=4096)] = 1
    """Rows of that decode step."""


class ModelStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """One model on a node."""

    name: Name
    state: ModelState
    weight_bytes: Count
    context_tokens: Count | None = None
    active_requests: Count = 0
    """Requests that the engine has accepted and not finished, running or waiting."""
    max_rows: Count = 1
    """Most requests that the engine decodes at once."""
    since_unix_s: UnixSeconds = 0.0
    reason: Sentence | None = None
    """A sentence if the state is `failed`, or if a pull is interrupted."""
    retry_after_s: Seconds = 0.0
    """If the state is `failed`, seconds until a load may be retried; if a pull is interrupted,
    seconds until its retry, 0 if there is none."""
    wants_peer: bool = False
    """True for an interrupted pull from a peer, which resumes once a router names a peer."""
    progress: Fraction | None = None
    """Fraction done, 0 to 1, while the state is `pulling` or `loading`."""
    generation: Count = 0
    """Number of this load of the model, new at each load and across restarts of the agent. A
    conditional unload names it."""
    leases: Count = 0
    """Requests that lease the model or wait for it, whether the engine has accepted them or not."""
    idle_s: Seconds | None = None
    """Seconds since its last request ended, or since its load; None while it is leased or not
    loaded."""
    work_tokens: Count = 0
    """Tokens prefilled and decoded since the load, plus an amount for time spent in steps of
    several seconds. It grows while the engine makes progress."""
    prefilled_tokens: Count | None = None
    """Tokens prefilled since the load; None while it is not loaded."""
    decoded_tokens: Count | None = None
    """Tokens of responses since the load; None while it is not loaded."""
    pinned: bool = False
    """Never unloaded to make room or for being idle."""
    keep_alive_s: Seconds | None = None
    """Idle seconds until it is unloaded; None: never."""
    disk_bytes: Count = 0
    """Bytes of its files."""
    memory_bytes: Count = 0
    """Bytes that a load needs permanently: weights, live KV and the process; 0: unknown."""
    load_s: Seconds | None = None
    """Seconds of its last load; None before the first."""
    unload_cost_s: Seconds = 0.0
    """Expected cost of unloading it while its state is `ready`: its load and the prefill of its KV
    that is in memory alone, weighted by the chance that it is requested again."""
    capabilities: Annotated[tuple[Word, ...], Meta(max_length=16)] = ()
    """Abilities: `completion`, `tools`, `reasoning`."""
    tool_parser: Word = ""
    """Name of the parser for its tool calls; empty if none was detected."""
    reasoning_parser: Word = ""
    cache: CacheStatus | None = None
    """None while the model is not loaded, or if it has no prefix cache."""
    speed: ModelSpeed | None = None
    """None until an engine of this agent has measured it."""
    family: Word = ""
    """The architecture, as its `config.json` names it; empty if unknown."""
    parameters: Count = 0
    """Number of its weights; 0 if unknown."""
    quantization: Word = ""
    """The precision of its weights, such as `4-bit` or `bfloat16`; empty if unknown."""


class MemoryPressure(msgspec.Struct, frozen=True, omit_defaults=True):
    """Memory pressure on a node's machine, present or recent."""

    level: Word
    """`soft`, `hard`, or `none` while the reduced limits grow back."""
    for_s: Seconds
    """Seconds at this level."""
    stored_cap_bytes: Count | None = None
    """Most bytes of stored KV in memory for all models together; None: no reduced limit."""

    @property
    def effect(self) -> str:
        """Effect on the node, as the second part of a sentence."""
        size = "" if self.stored_cap_bytes is None else gib(self.stored_cap_bytes)
        if self.level == "hard":
            return "it stores no KV, loads no model, and serves small requests only"
        if self.level == "soft":
            return "its stored KV is reduced step by step" + (f", to {size} now" if size else "")
        return (
            f"its stored KV grows back, to {size} now"
            if size
            else ("nothing is reduced or refused")
        )


class BrokenModel(msgspec.Struct, frozen=True):
    """A model's folder that cannot be served."""

    name: Name
    reason: Sentence


class NodeStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node agent's whole state at one moment."""

    protocol: Count
    node_id: Id
    """Stable across restarts."""
    instance_id: Id
    """New at every start of the agent."""
    version: Word
    engine: Word
    chip: Word
    memory_budget_bytes: Count
    memory_leased_bytes: Count
    """Leased memory without stored KV, which is evicted for a load."""
    models: Annotated[tuple[ModelStatus, ...], Meta(max_length=MAX_MODELS)]
    disk_free_bytes: Count = 0
    """Free space of the disk with the models."""
    min_residency_s: Seconds = 0.0
    """Minimum residency: seconds that a loaded model stays before it is unloaded for another."""
    max_swap_wait_s: Seconds = 0.0
    """Seconds after which a request that waits for a swap goes first."""
    in_maintenance: bool = False
    """A router has put the node under maintenance: no pin has an effect, other routers'
    included."""
    pressure: MemoryPressure | None = None
    """None if the machine has enough memory, and has had it for a while."""
    now_unix_s: UnixSeconds = 0.0
    """The time by the node's clock; 0 if it does not tell."""
    broken: Annotated[tuple[BrokenModel, ...], Meta(max_length=MAX_MODELS)] = ()
    """Folders on its disk that look like models and cannot be served."""
    installed_by: Word = ""
    """The tool by which mlx-fleet is installed there, as `serving.installer` names it."""
    macs: Annotated[tuple[Mac, ...], Meta(max_length=MAX_MACS)] = ()
    """MAC addresses of its network interfaces, at which it can be woken."""


class FinishReason(StrEnum):
    """Outcome of a request, as recorded in usage. The client's `finish_reason` is stop or
    length."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"
    REFUSED = "refused"
    """The request itself was at fault: nothing was computed for it, or none of it counts."""
    UNKNOWN = "unknown"
    """Any that this side does not know."""

    @classmethod
    def _missing_(cls, _value: object) -> "FinishReason":
        return cls.UNKNOWN


class StatusEvent(msgspec.Struct, frozen=True, tag="status"):
    """Sent first, at each change of residency, and at least every `HEARTBEAT_S`."""

    status: NodeStatus


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """The usage record of one request, aborted ones included. `seq` grows by one within an
    instance."""

    seq: Count
    request_id: Id
    origin: Origin
    model: Name
    prompt_tokens: Tokens
    cached_tokens: Tokens
    completion_tokens: Tokens
    reasoning_tokens: Tokens
    queue_s: Seconds
    """Seconds from acceptance by the engine until its prefill began."""
    ttft_s: Seconds | None
    """Seconds from the request's arrival at the agent to its first content; None if none came."""
    prefill_s: Seconds
    decode_s: Seconds
    reason: FinishReason
    finished_unix_s: UnixSeconds
    proof: Proof = ""
    """The value of `HEADER_PROOF`. A router ignores records without it."""


class Began(msgspec.Struct, frozen=True, tag="began"):
    """A request's first token exists, so its prefill is over. Sent only if its response does not
    show this at once. It is not kept: a router that misses it estimates."""

    request_id: Id
    origin: Origin


class Stored(msgspec.Struct, frozen=True, tag="stored"):
    """A response is stored, and later requests may continue it. With the end of its prefix hash
    chain the router knows what those begin with. It is not kept: a router that misses it knows
    their own items only."""

    response_id: Annotated[str, Meta(max_length=128)]
    origin: Origin
    hash: int
    """With the next two fields, the `node.protocol.chain.prefix.Head` of the chain."""
    front: int
    size_bytes: Annotated[int, Meta(ge=0, le=MAX_CHAIN_BYTES)]

    def __post_init__(self) -> None:
        # `Meta` accepts no bound beyond 63 bits.
        if not (0 <= self.hash < 1 << 64 and 0 <= self.front < 1 << 64):
            raise ValueError("a hash has 64 bits")


class CancelMarked(msgspec.Struct, frozen=True, tag="cancel_marked"):
    """The engine process has marked the request as cancelled, at a time of its own monotonic
    clock."""

    request_id: Id
    marked_monotonic_s: Seconds


class PrefixSnapshot(msgspec.Struct, frozen=True, tag="prefix_snapshot"):
    """One piece of all prefixes that a loaded model has cached. The first piece (`part` 0)
    invalidates everything that a router knew of the model. Deltas continue from the last piece's
    `seq`."""

    model: Name
    epoch: Count
    """New at each load of the model; grows within an instance of the agent."""
    seq: Count
    """Number of the last delta that the snapshot includes, the same in all its pieces."""
    part: Count
    parts: Count
    entries: PackedEntries
    """Packed by `node.protocol.prefixes.pack_entries`; at most `MAX_ENTRIES`."""


class PrefixDelta(msgspec.Struct, frozen=True, tag="prefix_delta"):
    """A change of a model's cached prefixes. Within an epoch `seq` grows by one. After a gap a
    router needs a snapshot, and reconnects to get one."""

    model: Name
    epoch: Count
    seq: Count
    changed: PackedEntries
    """New entries, and old ones with new values; at most `MAX_ENTRIES`."""
    removed: PackedHashes
    """Hashes that are no longer cached, packed by `pack_hashes`; at most `MAX_ENTRIES`."""


class PrefixGone(msgspec.Struct, frozen=True, tag="prefix_gone"):
    """The model's engine has ended, and all its prefixes are void."""

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
    """Body of `PATH_LOAD` and of paths of `node.protocol.lifecycle`: names a model."""

    model: Name


class ControlError(msgspec.Struct, frozen=True):
    """Body of a refused control request."""

    message: Sentence
    code: Word = ""
    """Names the reason, as `node.errors` does."""


encode_event = msgspec.json.Encoder().encode
decode_event = msgspec.json.Decoder(Event).decode
encode_status = msgspec.json.Encoder().encode
decode_status = msgspec.json.Decoder(NodeStatus).decode
