"""Messages between the agent and an engine process, all frozen.

Agent to engine: `Load` first, then `Submit`, `Cancel`, `SetLease`, `SetPressure`, `ClearCache`,
`Shutdown`. Engine to agent: `Loading`, `Loaded` or `LoadFailed` once, then `Accepted` or `Refused`
for each `Submit`, `Marked` at once for each `Cancel`, one `Frame` per engine step for all rows, a
`LongStep` before a step that takes seconds, and `EngineStats`; `Broken` is the last message of an
engine that has failed.
"""

from enum import IntEnum, StrEnum

import msgspec

from node.ipc.disk_figures import DiskFigures
from node.ipc.generate import GenerateRequest
from node.ipc.learned_rates import DecodeRate, PrefillRate
from node.ipc.long_step import LongStep
from node.protocol.messages import FinishReason
from node.protocol.overflow import Overflow
from node.settings import Wired


class PartKind(StrEnum):
    CONTENT = "content"
    REASONING = "reasoning"
    TOOL_START = "tool_start"
    """A call begins: `index`, `name` and `call_id`, no text."""
    TOOL_ARGS = "tool_args"
    """A piece of the arguments, as JSON, of the call that began last."""


class Alternative(msgspec.Struct, frozen=True, array_like=True):
    """A token that was sampled, or could have been."""

    text: str
    """Incomplete characters are replaced."""
    data: bytes
    logprob: float
    """Natural logarithm of its probability under the sampled distribution."""


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """A token of content."""

    token: Alternative
    top: tuple[Alternative, ...] = ()
    """Likeliest tokens first; fewer than requested if no others could be sampled."""


class Part(msgspec.Struct, frozen=True, array_like=True):
    """A piece of output. `text` is empty only for `TOOL_START`."""

    kind: PartKind
    text: str
    index: int = 0
    """Number of the call within the output, from 0; also set for `TOOL_ARGS`."""
    name: str = ""
    call_id: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()
    """For `CONTENT`, if requested: the tokens that arrived with it. Their texts need not add up to
    its text, since text that a stop string or markup buffers comes with later parts, or never."""


class RowUsage(msgspec.Struct, frozen=True, array_like=True):
    """The usage of a finished row, by the engine's clock."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    queue_s: float
    prefill_s: float
    decode_s: float
    reasoning_tokens: int = 0
    """Included in `completion_tokens`."""
    reasoning_overflow_tokens: int = 0
    """Included in `reasoning_tokens`: tokens beyond the thinking budget, which are those of the
    forced end and those that completed a character."""


class Delta(msgspec.Struct, frozen=True, array_like=True):
    """The output of one engine step for one choice. The last one of a choice has `finish`; the last
    one of a request also has `usage`, which counts the prompt once and the output of all
    choices."""

    uid: str
    parts: tuple[Part, ...]
    token_count: int
    """Output tokens so far."""
    finish: FinishReason | None = None
    usage: RowUsage | None = None
    error: str | None = None
    """A sentence: why the engine failed, if `finish` is error; otherwise why the output cannot be
    parsed to its end, though the engine completed it."""
    stop: str | None = None
    """The stop string that ended the row."""
    choice: int = 0
    open_choices: int = 0
    """Number of unfinished choices; 0 together with `finish` ends the request."""

    @property
    def is_last(self) -> bool:
        """True if the request ends with this delta."""
        return self.finish is not None and not self.open_choices


# --- agent to engine -------------------------------------------------------------------------


class Load(msgspec.Struct, frozen=True, tag="load"):
    """The first command: the engine to load."""

    spec: "EngineSpec"


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    request: GenerateRequest


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    uid: str


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    pass


class SetLease(msgspec.Struct, frozen=True, tag="set_lease"):
    """The engine's new lease. The engine confirms with an `EngineStats` once it is within the
    lease."""

    lease: "MemoryLease"
    number: int = 0
    """Repeated in the confirmation."""


class SetPressure(msgspec.Struct, frozen=True, tag="set_pressure"):
    """The level of memory pressure."""

    level: "Pressure"


class ClearCache(msgspec.Struct, frozen=True, tag="clear_cache"):
    """Drop all stored KV, on disk and pinned included. Confirmed by an `EngineStats`."""

    number: int = 0
    """Repeated in the confirmation."""


Command = Load | Submit | Cancel | Shutdown | SetLease | SetPressure | ClearCache


# --- engine to agent -------------------------------------------------------------------------


class Loading(msgspec.Struct, frozen=True, tag="loading"):
    """Progress of a load, 0 to 1."""

    fraction: float


class Loaded(msgspec.Struct, frozen=True, tag="loaded"):
    """The engine is ready to serve."""

    weight_bytes: int
    context_tokens: int
    max_rows: int
    vocab_size: int
    snapshot_only: bool = False
    """The model can continue from stored snapshots only, not from any token."""
    stored_bytes_per_token: int = 0
    """Size in the prefix cache; 0 if it does not grow with the tokens, or is unknown."""
    disk_bytes: int = 0
    """Maximum of its prefix cache on disk; 0 without a disk tier."""
    disk_folder: str = ""
    """Folder of the disk tier, which only this engine uses."""


class LoadFailed(msgspec.Struct, frozen=True, tag="load_failed"):
    reason: str
    """A sentence."""


class Accepted(msgspec.Struct, frozen=True, tag="accepted"):
    uid: str
    prompt_tokens: int
    cached_tokens: int


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The engine refuses the request; `param` names the field at fault, if there is one."""

    uid: str
    reason: str
    param: str | None = None
    overflow: Overflow | None = None
    """Set if the prompt is too long."""
    is_fault: bool = False
    """True if the engine failed; the request is not at fault."""
    is_short: bool = False
    """True if the machine has too little memory for it; the request may be retried."""


class Broken(msgspec.Struct, frozen=True, tag="broken"):
    """The engine has failed and its process ends. Everything sent before is complete; open rows get
    nothing more."""

    reason: str
    """A sentence."""
    is_overload: bool = False
    """True if one GPU command took too long."""


class Marked(msgspec.Struct, frozen=True, tag="marked"):
    """A `Cancel` has reached the engine process; the row is dropped before its next step."""

    uid: str
    monotonic_s: float


class Progress(msgspec.Struct, frozen=True, array_like=True):
    """Progress of one row's prefill."""

    uid: str
    done_tokens: int
    """Includes cached tokens."""
    total_tokens: int


class CacheEventKind(StrEnum):
    STORED = "stored"
    """Added in memory."""
    SPLIT = "split"
    """`entry` keeps the tokens from `begin_tokens` on; those before move to `parent`."""
    EVICTED = "evicted"
    """Dropped from memory and from disk."""
    SPILLED = "spilled"
    """Dropped from memory; still on disk."""
    PROMOTED = "promoted"
    """Restored from disk into memory."""
    FILED = "filed"
    """In memory, and being written to disk."""


class CacheEvent(msgspec.Struct, frozen=True, array_like=True):
    """A change of one entry of the prefix cache: the KV of a run of tokens that continues
    `parent`'s. Entries form a tree; an id is never used twice within an engine's life."""

    kind: CacheEventKind
    entry: int
    parent: int
    """0 for an entry that begins a prompt."""
    begin_tokens: int
    end_tokens: int
    """The entry covers the tokens of its prompt from `begin_tokens` to here."""
    usable_tokens: int
    """Longest prefix that a prompt through this entry can reuse: `end_tokens`, or less if some
    layers can be restored only at a snapshot."""
    uid: str = ""
    """The stored request, whose tokens are those of this entry and its parents."""
    file: int = 0
    """Name of the file with the entry's tokens, on disk or being written: a hash of them and all
    tokens before, so it is the same after a restart. Files and entries may be split at different
    tokens. 0 if there is none."""


class Frame(msgspec.Struct, frozen=True, tag="frame"):
    """The output of one engine step."""

    deltas: tuple[Delta, ...]
    progress: tuple[Progress, ...] = ()
    cache_events: tuple[CacheEvent, ...] = ()


class EngineStats(msgspec.Struct, frozen=True, tag="engine_stats"):
    """The state of an engine: sent at least every `STATS_S` while it works, and to confirm a
    command."""

    weight_bytes: int
    live_kv_bytes: int
    stored_kv_bytes: int
    """KV and snapshots of the prefix cache, in memory."""
    snapshot_bytes: int
    """Included in `stored_kv_bytes`."""
    disk_kv_bytes: int
    active_bytes: int
    """Memory that MLX reports as in use."""
    free_bytes: int
    """Memory that MLX keeps for reuse."""
    entries: int
    """Entries of the prefix cache, in memory or on disk."""
    waiting_rows: int
    prefilling_rows: int
    decoding_rows: int
    prefill_tokens: int
    """Tokens prefilled since the load."""
    cached_tokens: int
    """Tokens reused from the prefix cache since the load."""
    prefill_rates: tuple[PrefillRate, ...] = ()
    decode_rates: tuple[DecodeRate, ...] = ()
    lease: "MemoryLease | None" = None
    """The lease that the engine keeps within."""
    pinned_kv_bytes: int = 0
    """Included in `stored_kv_bytes`: never evicted."""
    stored_cap_bytes: int | None = None
    """Limit of stored KV due to memory pressure, present or recent; None if only the lease limits
    it."""
    disk: DiskFigures = DiskFigures()
    confirmed: tuple[int, ...] = ()
    """Numbers of the `SetLease` and `ClearCache` commands that this confirms; set by the worker."""


STATS_S = 1.0

WITHOUT_MLX = frozenset({"scripted"})
"""Engines without slow imports."""

BROKEN_STATUS = 75
"""Exit status of a process that has sent `Broken`."""

LoadReport = Loading | Loaded | LoadFailed
Report = LoadReport | Accepted | Refused | Broken | Marked | LongStep | Frame | EngineStats


class Pressure(IntEnum):
    """The level of memory pressure."""

    NONE = 0
    SOFT = 1
    """Stored KV is evicted step by step; no request is refused."""
    HARD = 2
    """Nothing is stored, nothing is loaded, and only small requests are accepted."""


class MemoryLease(msgspec.Struct, frozen=True):
    """Bytes that the agent grants to one engine."""

    weight_bytes: int
    live_kv_bytes: int
    """KV of rows that are being prefilled or decoded."""
    stored_kv_bytes: int
    """The prefix cache in memory."""
    overhead_bytes: int = 0
    """Interpreter, MLX, compiled graphs, scratch of a step."""

    @property
    def total_bytes(self) -> int:
        return self.weight_bytes + self.live_kv_bytes + self.stored_kv_bytes + self.overhead_bytes


class DiskCache(msgspec.Struct, frozen=True):
    """The disk tier, where evicted KV is spilled."""

    folder: str
    """`<home>/kv`, which has a folder for each model, named by its fingerprint."""
    max_bytes: int
    max_files: int = 100_000
    max_bytes_per_day: int = 0
    """Limit of daily writes, to spare the SSD; 0 means no limit."""


class EngineSpec(msgspec.Struct, frozen=True):
    """Start parameters of an engine process."""

    engine: str
    """`text` or `scripted`."""
    model: str
    folder: str
    """Real path of the model folder; empty for the scripted engine."""
    max_rows: int
    lease: MemoryLease
    script_json: str = ""
    """The scripted engine's script, JSON."""
    prefill_chunk_tokens: int = 2048
    """Limit for one prompt in one step while no row decodes."""
    decode_stall_target_ms: int = 200
    """Longest wait of decoding rows for one prefill chunk."""
    score_bytes_per_pair: int = 0
    """Bytes that attention materializes for each pair of a query of the chunk and a key; 0 for
    none."""
    prefill_scratch_bytes: int = 0
    """Maximum of these in total; part of the lease's overhead."""
    kv_cache_bits: int | None = None
    """Bits per value of stored KV, 4 or 8; None leaves it unquantized."""
    kv_live_bits: int | None = None
    """The same for the KV of running rows."""
    snapshot_bytes: int = 0
    """Maximum of snapshots within the stored KV; 0 means half."""
    disk: DiskCache | None = None
    wired: Wired = "off"
    warm_up: bool = True
    """True runs a short computation before the engine serves. Not needed if a request waits, since
    that warms the engine up."""
