"""An engine that says what it is told, at a set pace, with no model and no MLX.

It ships with the product: for dry runs of a fleet, and for tests of everything around an engine.
Its switches imitate what real engines do wrong: stall, wedge, crash, fail a step, a load or an
unload.
"""

import os
import signal
import time
import zlib
from array import array
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from node.engine.base import LoadError
from node.engine.scripted_cache import PrefixCache, ScriptedCache
from node.engine.scripted_row import ScriptedRow
from node.parsing.stops import StopMatcher
from node.protocol.messages import FinishReason
from node.store import ModelEntry
from node.types import (
    Accepted,
    CacheEvent,
    Delta,
    EngineSpec,
    EngineStats,
    GenerateRequest,
    Loaded,
    MemoryLease,
    Pressure,
    Progress,
    Refused,
)

VOCAB_SIZE = 256
PROGRESS_STEP_S = 0.02
NOT_KEPT = "The prompt was prefilled, but the script's cache has no room to keep it."


class ScriptedModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model that the scripted node claims to have on disk."""

    name: str = "scripted"
    weight_bytes: int = 1024**3
    context_tokens: int = 32_768
    kv_bytes_per_token: int = 0
    """What the KV of a token is said to take; the lease bounds the cache by it."""


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a scripted engine does. All waits are in seconds; `None` switches a fault off."""

    models: tuple[ScriptedModel, ...] = (ScriptedModel(),)
    text: str | None = None
    """Said word by word to every request, which then ends. None: short words, one a token, which
    depend on the prompt and the position, so that two requests can be told apart."""
    tokens: int | None = None
    """Length of an answer to a request without max_tokens; default: the text, or 32."""
    max_rows: int | None = None
    """In place of the agent's setting."""
    accept_delay_s: float = 0.0
    """How long a request waits in the queue even when there is room."""
    first_token_delay_s: float = 0.0
    prefill_s_per_token: float = 0.0
    """For each prompt token that the cache does not hold."""
    progress_interval_s: float = 0.0
    """How often the progress of a prefill is told; 0: never."""
    token_interval_s: float = 0.0
    """0: as fast as the engine steps."""
    load_delay_s: float = 0.0
    load_failure: str | None = None
    """The sentence of a load that fails."""
    load_out_of_memory: bool = False
    """The load raises MemoryError."""
    unload_delay_s: float = 0.0
    """How long the engine takes to free its memory; the agent kills one that takes too long."""
    unload_failure: str | None = None
    """The sentence of an unload that raises; the process ends with status 1."""
    wedge: bool = False
    """Requests are accepted and never get a token; the process stays healthy."""
    stall_after_tokens: int | None = None
    """A row stops for good after so many tokens and can only be cancelled."""
    crash_after_tokens: int | None = None
    """The engine process dies as from kill -9 when a row has so many tokens."""
    step_failure_after_tokens: int | None = None
    """`step` raises when a row has so many tokens."""
    failing_command: Literal["submit", "cancel", "set_lease", "clear_cache"] | None = None
    """That command raises."""
    cache: ScriptedCache = ScriptedCache()


class StepFailure(Exception):
    """The script asked for a step that fails."""


class CommandFailure(Exception):
    """The script asked for a command that fails."""


class UnloadFailure(Exception):
    """The script asked for an unload that fails."""


def read_script(path: Path | None) -> Script:
    """The script in a JSON file, the default script for None. Raises `LoadError`."""
    if path is None:
        return Script()
    try:
        return parse_script(path.read_bytes())
    except OSError as error:
        raise LoadError(f"The script {path} cannot be read: {error.strerror}.") from None


def parse_script(text: str | bytes) -> Script:
    """The script of a JSON text, the default script for an empty one. Raises `LoadError` naming
    the field at fault."""
    if not text:
        return Script()
    try:
        script = msgspec.json.decode(text, type=Script)
    except msgspec.MsgspecError as error:
        raise LoadError(f"The script is not valid: {error}.") from None
    names = [model.name for model in script.models]
    if len(set(names)) != len(names) or not names:
        raise LoadError("The script must name at least one model, and each name only once.")
    return script


def encode_script(script: Script) -> str:
    """The script as `EngineSpec.script_json` carries it."""
    return msgspec.json.encode(script).decode()


def scripted_entries(script: Script) -> tuple[ModelEntry, ...]:
    """The script's models as if they were on disk; their folder is empty."""
    return tuple(
        ModelEntry(
            name=model.name,
            folder=Path(),
            weight_bytes=model.weight_bytes,
            context_tokens=model.context_tokens,
            kv_bytes_per_token=model.kv_bytes_per_token,
        )
        for model in script.models
    )


def load(spec: EngineSpec, progress: Callable[[float], None]) -> "ScriptedEngine":
    """Makes the engine after the script's load delay. Raises `LoadError` as the script says."""
    script = parse_script(spec.script_json)
    model = next((model for model in script.models if model.name == spec.model), None)
    if model is None:
        raise LoadError(f"The script has no model {spec.model!r}.")
    started_s = time.monotonic()
    while (spent_s := time.monotonic() - started_s) < script.load_delay_s:
        progress(spent_s / script.load_delay_s)
        time.sleep(min(PROGRESS_STEP_S, script.load_delay_s - spent_s))
    if script.load_out_of_memory:
        raise MemoryError("The script asked for a load that runs out of memory.")
    if script.load_failure is not None:
        raise LoadError(script.load_failure)
    progress(1.0)
    info = Loaded(
        weight_bytes=model.weight_bytes,
        context_tokens=model.context_tokens,
        max_rows=script.max_rows or spec.max_rows,
        vocab_size=VOCAB_SIZE,
    )
    kv_bytes = model.kv_bytes_per_token
    return ScriptedEngine(info, script, kv_bytes_per_token=kv_bytes, lease=spec.lease)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class ScriptedEngine:
    """Rows that wait for a place, then get one token whenever one is due."""

    def __init__(
        self,
        info: Loaded,
        script: Script,
        *,
        kv_bytes_per_token: int = 0,
        lease: MemoryLease | None = None,
        clock: Callable[[], float] = time.monotonic,
        die: Callable[[], None] = _die,
    ) -> None:
        self.info = info
        self._script = script
        self._clock = clock
        self._die = die
        self._words = script.text.split() if script.text is not None else []
        self._waiting: deque[ScriptedRow] = deque()
        self._running: list[ScriptedRow] = []
        self._prefixes = PrefixCache(script.cache)
        self._kv_bytes = kv_bytes_per_token
        self._lease = lease
        self._pressure = Pressure.NONE
        self._progress: list[Progress] = []
        self._prefill_tokens = 0
        self._cached_tokens = 0
        self._limit_cache()

    def submit(self, request: GenerateRequest) -> Accepted | Refused:
        self._fail("submit")
        prompt_tokens = len(request.tokens)
        room_tokens = self.info.context_tokens - prompt_tokens
        if room_tokens < 1 or prompt_tokens == 0:
            return Refused(
                request.uid,
                f"The prompt has {prompt_tokens} tokens; the context of this model is "
                f"{self.info.context_tokens}, and one must be left for the answer."
                if prompt_tokens
                else "The prompt is empty.",
                "messages",
            )
        row = ScriptedRow(
            request=request,
            cached_tokens=self._prefixes.cached_tokens(request.tokens),
            limit_tokens=min(request.max_tokens or room_tokens, room_tokens),
            natural_tokens=self._natural_tokens(request, room_tokens),
            arrived_s=self._clock(),
            matcher=StopMatcher(request.stops),
            prompt_hash=zlib.crc32(array("q", request.tokens).tobytes()),
        )
        self._waiting.append(row)
        return Accepted(request.uid, prompt_tokens, row.cached_tokens)

    def cancel(self, uid: str) -> Delta | None:
        self._fail("cancel")
        for rows in (self._waiting, self._running):
            row = next((row for row in rows if row.request.uid == uid), None)
            if row is not None:
                rows.remove(row)
                return row.last(self._clock(), FinishReason.CANCELLED)
        return None

    def wait_s(self) -> float | None:
        now_s = self._clock()
        self._admit(now_s)
        due = [row.due_s for row in self._running if not row.stalled]
        due += [row.told_s + self._script.progress_interval_s for row in self._prefilling()]
        if self._waiting and len(self._running) < self.info.max_rows:
            due.append(self._waiting[0].arrived_s + self._script.accept_delay_s)
        return max(min(due) - now_s, 0.0) if due else None

    def step(self) -> list[Delta]:
        now_s = self._clock()
        self._admit(now_s)
        due = [row for row in self._running if not row.stalled and row.due_s <= now_s]
        self._raise_faults(due)
        self._note_progress(now_s)
        deltas = [self._advance(row, now_s) for row in due]
        ended = {delta.uid for delta in deltas if delta.finish is not None}
        if ended:
            self._running = [row for row in self._running if row.request.uid not in ended]
        return deltas

    def reset(self, reason: str) -> list[Delta]:
        lost = [*self._running, *self._waiting]
        self._running.clear()
        self._waiting.clear()
        return [row.last(self._clock(), FinishReason.ERROR, error=reason) for row in lost]

    def set_lease(self, lease: MemoryLease) -> None:
        self._fail("set_lease")
        self._lease = lease
        self._limit_cache()

    def set_pressure(self, level: Pressure) -> None:
        self._pressure = level
        self._limit_cache()

    def clear_cache(self) -> None:
        self._fail("clear_cache")
        self._prefixes.clear()

    def stats(self) -> EngineStats:
        decoding = [row for row in self._running if row.first_token_s is not None]
        live_tokens = sum(len(row.request.tokens) + row.token_count for row in self._running)
        live_bytes = live_tokens * self._kv_bytes
        stored_bytes = self._prefixes.held_tokens * self._kv_bytes
        return EngineStats(
            weight_bytes=self.info.weight_bytes,
            live_kv_bytes=live_bytes,
            stored_kv_bytes=stored_bytes,
            snapshot_bytes=0,
            disk_kv_bytes=0,
            active_bytes=self.info.weight_bytes + live_bytes + stored_bytes,
            free_bytes=0,
            entries=len(self._prefixes),
            waiting_rows=len(self._waiting),
            prefilling_rows=len(self._running) - len(decoding),
            decoding_rows=len(decoding),
            prefill_tokens=self._prefill_tokens,
            cached_tokens=self._cached_tokens,
            lease=self._lease,
            pinned_kv_bytes=self._prefixes.pinned_tokens * self._kv_bytes,
        )

    def take_progress(self) -> tuple[Progress, ...]:
        progress, self._progress = tuple(self._progress), []
        return progress

    def take_cache_events(self) -> tuple[CacheEvent, ...]:
        return self._prefixes.take_events()

    def close(self) -> None:
        self._running.clear()
        self._waiting.clear()
        time.sleep(self._script.unload_delay_s)
        if self._script.unload_failure is not None:
            raise UnloadFailure(self._script.unload_failure)

    def _fail(self, command: str) -> None:
        if self._script.failing_command == command:
            raise CommandFailure("The script asked for a command that fails.")

    def _limit_cache(self) -> None:
        tokens = self._script.cache.capacity_tokens
        if self._pressure >= Pressure.SOFT:
            tokens = 0
        elif self._lease is not None and self._kv_bytes:
            tokens = self._lease.stored_kv_bytes // self._kv_bytes
        self._prefixes.limit(tokens)

    def _prefilling(self) -> list[ScriptedRow]:
        """The rows of which a progress is to be told."""
        if not self._script.progress_interval_s:
            return []
        return [row for row in self._running if row.first_token_s is None and not row.stalled]

    def _note_progress(self, now_s: float) -> None:
        for row in self._prefilling():
            if now_s >= row.told_s + self._script.progress_interval_s:
                self._progress.append(row.progress(now_s))

    def _natural_tokens(self, request: GenerateRequest, room_tokens: int) -> int:
        if self._script.tokens is not None and request.max_tokens is None:
            return self._script.tokens
        if self._words:
            return len(self._words)
        # Without a text to end, only a request's own limit ends it.
        return 32 if request.max_tokens is None else room_tokens + 1

    def _admit(self, now_s: float) -> None:
        script = self._script
        while self._waiting and len(self._running) < self.info.max_rows:
            row = self._waiting[0]
            if row.arrived_s + script.accept_delay_s > now_s:
                return
            self._waiting.popleft()
            row.started_s = now_s
            # More, or less, than when it was accepted: the rows before it have stored theirs.
            row.cached_tokens = self._prefixes.cached_tokens(row.request.tokens)
            fresh_tokens = len(row.request.tokens) - row.cached_tokens
            row.prefill_s = fresh_tokens * script.prefill_s_per_token
            row.told_s = now_s
            row.due_s = now_s + row.prefill_s + script.first_token_delay_s
            row.stalled = script.wedge or script.stall_after_tokens == 0
            self._running.append(row)

    def _raise_faults(self, due: list[ScriptedRow]) -> None:
        counts = {row.token_count for row in due}
        if self._script.crash_after_tokens in counts:
            self._die()
        if self._script.step_failure_after_tokens in counts:
            raise StepFailure("The script asked for a step that fails.")

    def _advance(self, row: ScriptedRow, now_s: float) -> Delta:
        if row.first_token_s is None:
            row.first_token_s = now_s
            is_kept = self._on_prefilled(row)
            if row.request.warm and not is_kept:
                return row.last(self._clock(), FinishReason.ERROR, error=NOT_KEPT)
            if row.request.warm:
                return row.last(self._clock(), FinishReason.STOP)
        text, hit = row.matcher.feed(row.token_text(self._words))
        row.token_count += 1
        row.due_s += self._script.token_interval_s
        row.stalled = row.token_count == self._script.stall_after_tokens
        if hit or row.token_count >= row.natural_tokens:
            return row.last(self._clock(), FinishReason.STOP, text=text, hit=hit)
        if row.token_count >= row.limit_tokens:
            return row.last(self._clock(), FinishReason.LENGTH, text=text)
        return row.delta(text)

    def _on_prefilled(self, row: ScriptedRow) -> bool:
        """Whether the prompt is kept."""
        request = row.request
        self._prefill_tokens += len(request.tokens) - row.cached_tokens
        self._cached_tokens += row.cached_tokens
        return self._prefixes.store(request.uid, request.tokens, pinned=request.warm)
