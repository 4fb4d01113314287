"""The meaning of `auto`: the sizes of an engine, from its model and the machine, each with its
reason.

Pure: the machine is described by a `Room`. Explicit settings are used as they are.
"""

from dataclasses import dataclass
from pathlib import Path

from node.engines.memory_budget import OVERHEAD_BYTES, STORED_PERCENT
from node.ipc.messages import DiskCache, EngineSpec, MemoryLease
from node.models.store import ModelEntry
from node.settings import Settings
from serving.units import GIB, gib

MAX_ROWS = 16
"""Sequences decoded together; more add little throughput and slow each one down."""
LIVE_BYTES = 2 * GIB
"""Live KV that even a small model gets if its rows can fill it."""
LEAST_LIVE_BYTES = GIB // 8
"""Minimum live KV of a model whose files do not show the size of a token."""
ROW_TOKENS = 8192
"""Length that each row gets memory for; all rows are seldom long at once."""
SHORT_ROW_TOKENS = 512
"""Minimum length of a row: even a full batch must have room for this many tokens a row."""
CHUNK_TOKENS = 2048
CPU_CHUNK_TOKENS = 512
LARGE_BYTES = 32 * GIB
"""Size of weights from which a prefill chunk takes so long that it is halved."""
LEAST_SCRATCH_BYTES = GIB // 8
"""Minimum scratch for the attention scores of a chunk, if the model's attention materializes
any."""
MOST_SCRATCH_BYTES = 4 * GIB
SCRATCH_SHARE = 8
"""Scratch takes at most one part in this many of the memory left beside the weights."""
STALL_TARGET_MS = 200
LEAST_DISK_BYTES = 10 * 10**9
"""Free bytes that a disk must have before KV is written to it by default."""
MOST_DISK_BYTES = 50 * GIB
DISK_BYTES_PER_DAY = 50 * GIB
"""Half of the daily writes that an SSD of 256 GB endures over five years, at 600 full writes."""


@dataclass(frozen=True, slots=True)
class Room:
    """Resources that are available for one model."""

    free_bytes: int
    """Bytes of the memory limit that other engines do not occupy."""
    disk_free_bytes: int
    has_gpu: bool


@dataclass(frozen=True, slots=True)
class Choice:
    """One size, as people see it."""

    name: str
    shown: str
    reason: str | None
    """Reason of `auto` for the size; None if a setting gives it."""

    @property
    def line(self) -> str:
        why = "as set" if self.reason is None else f"auto: {self.reason}"
        return f"{self.name} {self.shown} ({why})"


@dataclass(frozen=True, slots=True)
class Plan:
    """The sizes of one engine. Stored KV is shared out by the budget later."""

    fixed: MemoryLease
    """Weights, live KV and overhead; no stored KV."""
    max_rows: int
    prefill_chunk_tokens: int
    decode_stall_target_ms: int
    score_bytes_per_pair: int
    """Bytes that attention materializes for each pair of a query of the chunk and a key; 0 for
    none."""
    scratch_bytes: int
    """Part of the overhead that attention scores may take."""
    snapshot_bytes: int
    """Maximum of snapshots within the stored KV; 0 means half."""
    disk_bytes: int
    """0 means no KV on disk."""
    disk_bytes_per_day: int
    """0 means no limit."""
    choices: tuple[Choice, ...]


def plan_engine(entry: ModelEntry, room: Room, settings: Settings) -> Plan:
    """Returns the sizes of an engine of `entry`. Whether they fit is decided by the budget."""
    chunk_tokens, chunk = _chunk(entry, room, settings)
    scratch_bytes = _scratch_bytes(entry, room, settings)
    live_bytes, live = _live(entry, room, settings, OVERHEAD_BYTES + scratch_bytes)
    max_rows, rows = _rows(entry, live_bytes, settings)
    stall_ms, stall = _stall(settings)
    disk_bytes, disk = _disk(room.disk_free_bytes, settings)
    day_bytes, day = _disk_day(settings)
    return Plan(
        fixed=MemoryLease(entry.weight_bytes, live_bytes, 0, OVERHEAD_BYTES + scratch_bytes),
        max_rows=max_rows,
        prefill_chunk_tokens=chunk_tokens,
        decode_stall_target_ms=stall_ms,
        score_bytes_per_pair=_score_bytes(entry, room, settings),
        scratch_bytes=scratch_bytes,
        snapshot_bytes=settings.kv_snapshot_bytes or 0,
        disk_bytes=disk_bytes,
        disk_bytes_per_day=day_bytes,
        choices=(
            *(rows, chunk, *_scratch(scratch_bytes), stall, live, *_bits(settings)),
            *(disk, *([day] if disk_bytes else [])),
        ),
    )


def needed_bytes(entry: ModelEntry, room: Room, settings: Settings) -> int:
    """Returns the memory that an engine of `entry` occupies until it ends, as in its plan."""
    overhead_bytes = OVERHEAD_BYTES + _scratch_bytes(entry, room, settings)
    live_bytes, _ = _live(entry, room, settings, overhead_bytes)
    return entry.weight_bytes + live_bytes + overhead_bytes


def engine_spec(
    entry: ModelEntry, plan: Plan, settings: Settings, script_json: str = ""
) -> EngineSpec:
    """Returns the start parameters of an engine of `entry`; it has no stored KV yet."""
    disk = None
    if plan.disk_bytes:
        disk = DiskCache(
            folder=str(settings.kv_folder),
            max_bytes=plan.disk_bytes,
            max_bytes_per_day=plan.disk_bytes_per_day,
        )
    return EngineSpec(
        engine=settings.engine,
        model=entry.name,
        # A scripted model has no folder.
        folder="" if entry.folder == Path() else str(entry.folder),
        max_rows=plan.max_rows,
        lease=plan.fixed,
        script_json=script_json,
        prefill_chunk_tokens=plan.prefill_chunk_tokens,
        decode_stall_target_ms=plan.decode_stall_target_ms,
        score_bytes_per_pair=plan.score_bytes_per_pair,
        prefill_scratch_bytes=plan.scratch_bytes,
        kv_cache_bits=settings.kv_cache_bits,
        kv_live_bits=settings.kv_live_bits,
        snapshot_bytes=plan.snapshot_bytes,
        disk=disk,
        wired=settings.wired,
    )


def stored_choices(stored_bytes: int, sharers: int, settings: Settings) -> tuple[Choice, ...]:
    """Returns the sizes of stored KV and snapshots, as people see them, when `sharers` engines
    share it."""
    stored = f"{STORED_PERCENT} % of what is left of the limit"
    if sharers > 1:
        stored += f", shared by {sharers} models"
    is_set = stored_bytes == settings.kv_cache_bytes
    return (
        Choice("stored KV", gib(stored_bytes), None if is_set else stored),
        _snapshots(stored_bytes, settings),
    )


def most_disk_bytes(disk_free_bytes: int, settings: Settings) -> int:
    """Returns the maximum of KV on disk for one model, in bytes; 0 for none."""
    return _disk(disk_free_bytes, settings)[0]


def row_bytes(entry: ModelEntry, tokens: int, live_bits: int | None) -> int:
    """Returns an upper estimate of the live KV of a row of `tokens`; 0 if the model's files do not
    show it."""
    full_bytes = entry.kv_bytes_per_token * tokens + entry.kv_bytes_per_row
    # Groups of 64 values share a scale and a bias, each as wide as a value of 16 bits.
    return full_bytes if live_bits is None else -(-full_bytes * (2 * live_bits + 1) // 32)


def _live(
    entry: ModelEntry, room: Room, settings: Settings, overhead_bytes: int
) -> tuple[int, Choice]:
    if settings.kv_live_bytes is not None:
        return settings.kv_live_bytes, Choice("live KV", gib(settings.kv_live_bytes), None)
    left_bytes = room.free_bytes - entry.weight_bytes - overhead_bytes
    half_bytes = max(left_bytes // 2, 0)
    usual_bytes = max(entry.weight_bytes // 2, LIVE_BYTES)
    context_tokens = entry.context_tokens or ROW_TOKENS
    row_tokens = min(context_tokens, ROW_TOKENS)
    each_bytes = row_bytes(entry, row_tokens, settings.kv_live_bits)
    long_bytes = row_bytes(entry, context_tokens, settings.kv_live_bits)
    rows = settings.max_rows or MAX_ROWS
    wanted = (
        (each_bytes * rows, f"room for {rows} rows of {row_tokens} tokens"),
        (usual_bytes, "half the weights, at least 2 GiB"),
    )
    amount_bytes, reason = min(wanted) if each_bytes else wanted[1]
    if long_bytes > amount_bytes:
        amount_bytes = long_bytes
        reason = f"one row of the whole context of {context_tokens} tokens"
    if amount_bytes > half_bytes:
        amount_bytes, reason = half_bytes, "half of what is left beside the weights"
    least_bytes = each_bytes or LEAST_LIVE_BYTES
    if amount_bytes < least_bytes:
        amount_bytes = least_bytes
        reason = f"the least: one row of {row_tokens} tokens" if each_bytes else "the least"
    return amount_bytes, Choice("live KV", gib(amount_bytes), reason)


def _rows(entry: ModelEntry, live_bytes: int, settings: Settings) -> tuple[int, Choice]:
    if settings.max_rows is not None:
        return settings.max_rows, Choice("max_rows", str(settings.max_rows), None)
    rows = MAX_ROWS
    reason = "more rows slow each other down; memory admits them by their length"
    short_bytes = row_bytes(entry, SHORT_ROW_TOKENS, settings.kv_live_bits)
    if short_bytes * rows > live_bytes:
        rows = max(live_bytes // short_bytes, 1)
        reason = f"the live KV has room for no more rows of {SHORT_ROW_TOKENS} tokens"
    return rows, Choice("max_rows", str(rows), reason)


def _chunk(entry: ModelEntry, room: Room, settings: Settings) -> tuple[int, Choice]:
    name = "prefill_chunk"
    if settings.prefill_chunk_tokens is not None:
        tokens = settings.prefill_chunk_tokens
        return tokens, Choice(name, f"{tokens} tokens", None)
    tokens, reason = CHUNK_TOKENS, "larger ones gain no speed, and a cancel waits for one"
    if not room.has_gpu:
        tokens, reason = CPU_CHUNK_TOKENS, "a cancel waits for a chunk, and a CPU is slow"
    elif entry.weight_bytes >= LARGE_BYTES:
        tokens, reason = CHUNK_TOKENS // 2, "a cancel waits for a chunk, and the model is large"
    return tokens, Choice(name, f"{tokens} tokens", reason)


def _score_bytes(entry: ModelEntry, room: Room, settings: Settings) -> int:
    # No fused kernel reads quantized KV, and there is none for the CPU.
    is_fused = entry.scores.is_fused and room.has_gpu and settings.kv_live_bits is None
    return 0 if is_fused else entry.scores.bytes_per_pair


def _scratch_bytes(entry: ModelEntry, room: Room, settings: Settings) -> int:
    """Returns the memory for the attention scores of a chunk: enough for a whole chunk behind the
    whole context, or a share of the free memory; then longer rows get shorter chunks."""
    chunk_tokens, _ = _chunk(entry, room, settings)
    pairs = chunk_tokens * max(entry.context_tokens or ROW_TOKENS, chunk_tokens)
    left_bytes = room.free_bytes - entry.weight_bytes - OVERHEAD_BYTES
    most_bytes = min(max(left_bytes // SCRATCH_SHARE, LEAST_SCRATCH_BYTES), MOST_SCRATCH_BYTES)
    return min(_score_bytes(entry, room, settings) * pairs, most_bytes)


def _scratch(scratch_bytes: int) -> tuple[Choice, ...]:
    if not scratch_bytes:
        return ()
    reason = "attention scores of a chunk; chunks behind long prompts are shorter"
    return (Choice("prefill scratch", gib(scratch_bytes), reason),)


def _stall(settings: Settings) -> tuple[int, Choice]:
    name = "decode_stall_target"
    if settings.decode_stall_target_ms is not None:
        return settings.decode_stall_target_ms, Choice(
            name, f"{settings.decode_stall_target_ms} ms", None
        )
    return STALL_TARGET_MS, Choice(name, f"{STALL_TARGET_MS} ms", "readers notice longer pauses")


def _bits(settings: Settings) -> tuple[Choice, ...]:
    pairs = (("kv_cache_bits", settings.kv_cache_bits), ("kv_live_bits", settings.kv_live_bits))
    return tuple(
        Choice(name, "off", "nothing of the KV is lost")
        if bits is None
        else Choice(name, str(bits), None)
        for name, bits in pairs
    )


def _snapshots(stored_bytes: int, settings: Settings) -> Choice:
    given_bytes = settings.kv_snapshot_bytes
    if given_bytes is None:
        return Choice("snapshots", gib(stored_bytes // 2), "at most half of the stored KV")
    return Choice("snapshots", gib(min(given_bytes, stored_bytes)), None)


def _disk(disk_free_bytes: int, settings: Settings) -> tuple[int, Choice]:
    name = "KV on disk"
    given_bytes = settings.kv_disk_bytes
    if given_bytes is not None:
        return given_bytes, Choice(name, gib(given_bytes) if given_bytes else "off", None)
    if settings.engine == "scripted":
        return 0, Choice(name, "off", "a scripted engine has no KV")
    if disk_free_bytes < LEAST_DISK_BYTES:
        return 0, Choice(name, "off", "less than 10 GB of the disk are free")
    amount_bytes = min(disk_free_bytes // 10, MOST_DISK_BYTES)
    return amount_bytes, Choice(name, gib(amount_bytes), "a tenth of what is free, at most 50 GiB")


def _disk_day(settings: Settings) -> tuple[int, Choice]:
    name = "KV written to disk a day"
    given_bytes = settings.kv_disk_bytes_per_day
    if given_bytes is not None:
        return given_bytes, Choice(name, gib(given_bytes) if given_bytes else "unlimited", None)
    return DISK_BYTES_PER_DAY, Choice(name, gib(DISK_BYTES_PER_DAY), "spares the SSD")
