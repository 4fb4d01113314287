"""What crosses between the agent and an engine process, frozen and in one place.

Agent to engine: `Submit`, `Cancel`, `SetLease`, `SetPressure`, `ClearCache`, `Shutdown`. Engine
to agent: `Loading`, `Loaded` or `LoadFailed` once, then `Accepted` or `Refused` for each `Submit`,
`Marked` at once for each `Cancel`, one `Frame` per engine step for all rows, a `LongStep` before
one that takes seconds, and `EngineStats`; `Broken` is the last word of an engine that is of no use
any more.
"""

from enum import IntEnum, StrEnum

import msgspec

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
    """A piece of the JSON of the arguments of the call that began last."""


class Alternative(msgspec.Struct, frozen=True, array_like=True):
    """A token that could have been, or was."""

    text: str
    """Torn characters replaced."""
    data: bytes
    logprob: float
    """Natural logarithm of its probability under the distribution that was sampled from."""


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """A token of content."""

    token: Alternative
    top: tuple[Alternative, ...] = ()
    """The likeliest first; fewer than asked for where no other could be sampled."""


class Part(msgspec.Struct, frozen=True, array_like=True):
    """A piece of output. `text` is never empty, but of a `TOOL_START`."""

    kind: PartKind
    text: str
    index: int = 0
    """Number of the call within the answer, from 0; also of `TOOL_ARGS`."""
    name: str = ""
    call_id: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()
    """Of `CONTENT`, if asked for: the tokens that it came with. Their texts need not be its text:
    what a stop string or markup holds back comes with later parts, or never."""


class RowUsage(msgspec.Struct, frozen=True, array_like=True):
    """The accounts of a finished row, from the engine's own clock."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    queue_s: float
    prefill_s: float
    decode_s: float
    reasoning_tokens: int = 0
    """Share of `completion_tokens`."""
    reasoning_overflow_tokens: int = 0
    """Share of `reasoning_tokens` that a budget has not room for: the forced end's, and those that
    completed a torn character."""


class Delta(msgspec.Struct, frozen=True, array_like=True):
    """What one engine step brought for one choice. The last one of a choice has `finish`, the last
    one of a request `usage` too: prompt counted once, output of all choices."""

    uid: str
    parts: tuple[Part, ...]
    token_count: int
    """Tokens of the output so far."""
    finish: FinishReason | None = None
    usage: RowUsage | None = None
    error: str | None = None
    """A sentence: why the engine failed, where `finish` is error; else why the output cannot be
    told to its end, though the engine did what it was asked."""
    stop: str | None = None
    """The stop string that ended the row."""
    choice: int = 0
    open_choices: int = 0
    """How many choices go on; with `finish`, 0 means that the request has ended."""

    @property
    def is_last(self) -> bool:
        """Whether the request ends with it."""
        return self.finish is not None and not self.open_choices


# --- agent to engine -------------------------------------------------------------------------


class Load(msgspec.Struct, frozen=True, tag="load"):
    """The first command of all: what to load."""

    spec: "EngineSpec"


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    request: GenerateRequest


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    uid: str


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    pass


class SetLease(msgspec.Struct, frozen=True, tag="set_lease"):
    """The engine's new lease. Answered by an `EngineStats` once the engine is within it."""

    lease: "MemoryLease"
    number: int = 0
    """Told in the answer."""


class SetPressure(msgspec.Struct, frozen=True, tag="set_pressure"):
    """How short the machine is of memory."""

    level: "Pressure"


class ClearCache(msgspec.Struct, frozen=True, tag="clear_cache"):
    """Forget all stored KV, on disk too, pinned too. Answered by an `EngineStats`."""

    number: int = 0
    """As in `SetLease`."""


Command = Load | Submit | Cancel | Shutdown | SetLease | SetPressure | ClearCache


# --- engine to agent -------------------------------------------------------------------------


class Loading(msgspec.Struct, frozen=True, tag="loading"):
    """Progress of a load, 0 to 1."""

    fraction: float


class Loaded(msgspec.Struct, frozen=True, tag="loaded"):
    """The engine serves from now on."""

    weight_bytes: int
    context_tokens: int
    max_rows: int
    vocab_size: int
    snapshot_only: bool = False
    """The model can go on from stored snapshots only, not from any token."""
    stored_bytes_per_token: int = 0
    """Of its prefix cache; 0 where that does not grow with the tokens, or is not told."""
    disk_bytes: int = 0
    """Most that its prefix cache may take on disk; 0: there is no such tier."""
    disk_folder: str = ""
    """Where that is; only this engine uses it now."""


class LoadFailed(msgspec.Struct, frozen=True, tag="load_failed"):
    reason: str
    """A sentence."""


class Accepted(msgspec.Struct, frozen=True, tag="accepted"):
    uid: str
    prompt_tokens: int
    cached_tokens: int


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The engine will not run the request; `param` names the field at fault if there is one."""

    uid: str
    reason: str
    param: str | None = None
    overflow: Overflow | None = None
    """Of a prompt that is too long."""
    is_fault: bool = False
    """Whether the engine failed on it; it is then no fault of the request."""
    is_short: bool = False
    """Whether the machine is too short of memory for it now; it may be sent again later."""


class Broken(msgspec.Struct, frozen=True, tag="broken"):
    """The engine can do no more, and its process ends now. What came before it is whole; rows that
    are still open get nothing more."""

    reason: str
    """A sentence."""
    is_overload: bool = False
    """Whether the GPU had too much to do at a time."""


class Marked(msgspec.Struct, frozen=True, tag="marked"):
    """A `Cancel` has reached the engine process; the row leaves at its next step."""

    uid: str
    monotonic_s: float


class Progress(msgspec.Struct, frozen=True, array_like=True):
    """How far the prefill of one row is."""

    uid: str
    done_tokens: int
    """Cached ones included."""
    total_tokens: int


class CacheEventKind(StrEnum):
    STORED = "stored"
    """Into memory."""
    SPLIT = "split"
    """`entry` keeps the tokens from `begin_tokens` on; those before are now `parent`'s."""
    EVICTED = "evicted"
    """From memory and from disk: gone."""
    SPILLED = "spilled"
    """Out of memory; still on disk."""
    PROMOTED = "promoted"
    """From disk back into memory."""
    FILED = "filed"
    """In memory, and on its way to disk."""


class CacheEvent(msgspec.Struct, frozen=True, array_like=True):
    """A change of one entry of the prefix cache: the KV of a run of tokens that continues
    `parent`'s. Entries form a tree; ids are never used twice within an engine's life."""

    kind: CacheEventKind
    entry: int
    parent: int
    """0 for an entry that begins a prompt."""
    begin_tokens: int
    end_tokens: int
    """The entry covers the tokens of its prompt from `begin_tokens` to here."""
    usable_tokens: int
    """How long a prefix a prompt that goes through this entry can reuse: `end_tokens`, or less
    where some layers can be restored only at a snapshot."""
    uid: str = ""
    """The request that was stored, of which this entry and its parents hold the tokens."""
    file: int = 0
    """The file that has the entry's tokens, on disk or on its way there, named by them and by all
    tokens before: the same after a restart. Files are cut otherwise than entries. 0: there is
    none."""


class Frame(msgspec.Struct, frozen=True, tag="frame"):
    """One engine step."""

    deltas: tuple[Delta, ...]
    progress: tuple[Progress, ...] = ()
    cache_events: tuple[CacheEvent, ...] = ()


class EngineStats(msgspec.Struct, frozen=True, tag="engine_stats"):
    """The state of an engine: at least every `STATS_S` while it works, and after each command
    that says so."""

    weight_bytes: int
    live_kv_bytes: int
    stored_kv_bytes: int
    """KV and snapshots in the prefix cache, in memory."""
    snapshot_bytes: int
    """Share of `stored_kv_bytes`."""
    disk_kv_bytes: int
    active_bytes: int
    """What MLX reports as in use."""
    free_bytes: int
    """What MLX holds for reuse."""
    entries: int
    """Of the prefix cache, in memory or on disk."""
    waiting_rows: int
    prefilling_rows: int
    decoding_rows: int
    prefill_tokens: int
    """Through the model's forward since the load."""
    cached_tokens: int
    """Reused from the prefix cache since the load."""
    prefill_rates: tuple[PrefillRate, ...] = ()
    decode_rates: tuple[DecodeRate, ...] = ()
    lease: "MemoryLease | None" = None
    """The lease that the engine keeps within."""
    pinned_kv_bytes: int = 0
    """Share of `stored_kv_bytes` that is never evicted."""
    stored_cap_bytes: int | None = None
    """Most stored KV that it keeps since the machine is, or was, short of memory; None: as the
    lease says."""
    answered: tuple[int, ...] = ()
    """Numbers of the `SetLease` and `ClearCache` commands that are done now; the worker's."""


STATS_S = 1.0

WITHOUT_MLX = frozenset({"scripted"})
"""Engines that need nothing imported that takes long."""

BROKEN_STATUS = 75
"""The exit status of a process that has told that it is `Broken`."""

LoadReport = Loading | Loaded | LoadFailed
Report = LoadReport | Accepted | Refused | Broken | Marked | LongStep | Frame | EngineStats


class Pressure(IntEnum):
    """How short the machine is of memory."""

    NONE = 0
    SOFT = 1
    """Evict what is stored, step by step; nothing is refused."""
    HARD = 2
    """Store nothing, load nothing, and take small requests only."""


class MemoryLease(msgspec.Struct, frozen=True):
    """Bytes that the agent grants to one engine."""

    weight_bytes: int
    live_kv_bytes: int
    """KV of the rows that are being prefilled or decoded."""
    stored_kv_bytes: int
    """The prefix cache in memory."""
    overhead_bytes: int = 0
    """Interpreter, MLX, compiled graphs, scratch of a step."""

    @property
    def total_bytes(self) -> int:
        return self.weight_bytes + self.live_kv_bytes + self.stored_kv_bytes + self.overhead_bytes


class DiskCache(msgspec.Struct, frozen=True):
    """Where evicted KV goes."""

    folder: str
    """`<home>/kv`; each model has a folder in it, named by its fingerprint."""
    max_bytes: int
    max_files: int = 100_000
    max_bytes_per_day: int = 0
    """Most that is written in a day, for the life of the SSD; 0: no limit."""


class EngineSpec(msgspec.Struct, frozen=True):
    """What an engine process is started with."""

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
    """Of one prompt in one step, while no row decodes."""
    decode_stall_target_ms: int = 200
    """Longest wait of decoding rows for one prefill chunk."""
    score_bytes_per_pair: int = 0
    """What attention holds of each query of a chunk and each key; 0: nothing."""
    prefill_scratch_bytes: int = 0
    """Most that it may hold so; part of the lease's overhead."""
    kv_cache_bits: int | None = None
    """4 or 8: how stored KV is quantised; None: not at all."""
    kv_live_bits: int | None = None
    """The same for the KV of running rows."""
    snapshot_bytes: int = 0
    """Most of the stored KV that snapshots may take; 0: half."""
    disk: DiskCache | None = None
    wired: Wired = "off"
    warm_up: bool = True
    """Whether it computes a little before it serves; not where a request waits, which does that
    itself."""
