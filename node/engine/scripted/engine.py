"""An engine that generates a scripted output at a set pace, without a model or MLX.

It is part of the product: for dry runs of a fleet, and for tests of everything around an engine.
Its faults imitate those of real engines: stall, wedge, crash, failures of a step, a load or an
unload.
"""

import time
from collections import deque
from collections.abc import Callable

from node.engine.base import LoadError, ignore_long_step
from node.engine.decoding.choices import Tally
from node.engine.scheduling.refusals import (
    refused_choices,
    refused_length,
    refused_under_pressure,
    unknown_format,
)
from node.engine.scripted.faults import DEFAULT_HOOKS, EngineHooks, ScriptedFaults
from node.engine.scripted.memory import ScriptedMemory
from node.engine.scripted.row import ScriptedRow
from node.engine.scripted.rows import RowMaker
from node.engine.scripted.script import Script, parse_script
from node.ipc.generate import GenerateRequest
from node.ipc.messages import (
    Accepted,
    CacheEvent,
    Delta,
    EngineSpec,
    EngineStats,
    Loaded,
    MemoryLease,
    Pressure,
    Progress,
    Refused,
)
from node.protocol.messages import FinishReason

VOCAB_SIZE = 256
PROGRESS_STEP_S = 0.02
NOT_FORCED = "The scripted engine generates only what its script contains; nothing can be forced."
NOT_KEPT = "The prompt was prefilled, but the script's cache has no room to keep it."


def load(
    spec: EngineSpec,
    progress: Callable[[float], None],
    on_long_step: Callable[[float], None] = ignore_long_step,
) -> "ScriptedEngine":
    """Makes the engine after the script's load delay. Raises `LoadError` as scripted."""
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
        snapshot_only=not script.cache.trimmable,
        stored_bytes_per_token=model.kv_bytes_per_token,
    )
    kv_bytes = model.kv_bytes_per_token
    return ScriptedEngine(
        info,
        script,
        kv_bytes_per_token=kv_bytes,
        lease=spec.lease,
        hooks=EngineHooks(on_long_step=on_long_step),
    )


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
        hooks: EngineHooks = DEFAULT_HOOKS,
    ) -> None:
        self.info = info
        self._script = script
        self._clock = clock
        self._faults = ScriptedFaults(script, hooks)
        self._maker = RowMaker(script, info.context_tokens, clock)
        self._memory = ScriptedMemory(script.cache, kv_bytes_per_token, lease, clock())
        self._waiting: deque[ScriptedRow] = deque()
        self._running: list[ScriptedRow] = []
        self._progress: list[Progress] = []
        self._prefill_tokens = 0
        self._cached_tokens = 0

    def submit(self, request: GenerateRequest) -> Accepted | Refused:
        self._faults.at_command("submit")
        if (refused := self._refusal(request)) is not None:
            return refused
        cached_tokens = self._memory.cached_tokens(request)
        tally = Tally(request.choices, cached_tokens)
        self._waiting.append(self._maker.row(request, tally))
        return Accepted(request.uid, len(request.tokens), cached_tokens)

    def _refusal(self, request: GenerateRequest) -> Refused | None:
        """Returns a refusal if the script cannot serve the request."""
        if (refused := refused_length(request, self.info)) is not None:
            return refused
        output = request.output
        if output is not None and output.must_call:
            return Refused(request.uid, NOT_FORCED, output.must_call_param)
        if request.constraint is not None:
            return Refused(request.uid, NOT_FORCED, request.constraint.param)
        memory = self._memory
        if memory.pressure is Pressure.HARD and memory.lease is not None:
            refused = refused_under_pressure(request, memory.live_bytes, memory.lease)
            if refused is not None:
                return refused
        return refused_choices(request, self.info) or unknown_format(request)

    def cancel(self, uid: str) -> list[Delta]:
        self._faults.at_command("cancel")
        ended = [row for row in (*self._waiting, *self._running) if row.request.uid == uid]
        for row in ended:
            (self._waiting if row in self._waiting else self._running).remove(row)
        choices = [each for row in ended for each in row.choices]
        return [each.last(self._clock(), FinishReason.CANCELLED) for each in choices]

    def take_responses(self) -> list[Accepted | Refused]:
        return []

    def wait_s(self) -> float | None:
        now_s = self._clock()
        self._admit(now_s)
        self._faults.at_wait(has_rows=bool(self._running))
        due = [row.due_s for row in self._running if not row.stalled]
        due += [] if (cap_s := self._memory.due_s()) is None else [cap_s]
        due += [row.reported_s + self._script.progress_interval_s for row in self._prefilling()]
        if self._waiting and self._has_place(self._waiting[0]):
            due.append(self._waiting[0].arrived_s + self._script.accept_delay_s)
        return max(min(due) - now_s, 0.0) if due else None

    def step(self) -> list[Delta]:
        now_s = self._clock()
        self._memory.refresh(now_s)
        self._admit(now_s)
        due = [row for row in self._running if not row.stalled and row.due_s <= now_s]
        self._faults.at_step(row.token_count for row in due)
        self._note_progress(now_s)
        deltas = [self._advance(row, now_s) for row in due]
        ended = [row for row, delta in zip(due, deltas, strict=True) if delta.finish is not None]
        if ended:
            self._running = [row for row in self._running if row not in ended]
        return deltas

    def reset(self, reason: str) -> list[Delta]:
        self._faults.at_reset()
        lost = [each for row in (*self._running, *self._waiting) for each in row.choices]
        self._running.clear()
        self._waiting.clear()
        return [row.last(self._clock(), FinishReason.ERROR, error=reason) for row in lost]

    def set_lease(self, lease: MemoryLease) -> None:
        self._faults.at_command("set_lease")
        self._memory.set_lease(lease, self._clock())

    def set_pressure(self, level: Pressure) -> None:
        self._memory.set_pressure(level, self._clock())

    def clear_cache(self) -> None:
        self._faults.at_command("clear_cache")
        self._memory.clear()

    def stats(self) -> EngineStats:
        decoding = [row for row in self._running if row.tally.first_token_s is not None]
        live_tokens = sum(len(row.request.tokens) + row.token_count for row in self._running)
        memory = self._memory
        live_bytes, stored_bytes = memory.live_bytes(live_tokens), memory.stored_bytes
        return EngineStats(
            weight_bytes=self.info.weight_bytes,
            live_kv_bytes=live_bytes,
            stored_kv_bytes=stored_bytes,
            snapshot_bytes=0,
            disk_kv_bytes=0,
            active_bytes=self.info.weight_bytes + live_bytes + stored_bytes,
            free_bytes=0,
            entries=memory.entries,
            waiting_rows=sum(len(row.choices) for row in self._waiting),
            prefilling_rows=len(self._running) - len(decoding),
            decoding_rows=len(decoding),
            prefill_tokens=self._prefill_tokens,
            cached_tokens=self._cached_tokens,
            lease=memory.lease,
            pinned_kv_bytes=memory.pinned_bytes,
            stored_cap_bytes=memory.cap_bytes,
        )

    def take_progress(self) -> tuple[Progress, ...]:
        progress, self._progress = tuple(self._progress), []
        return progress

    def take_cache_events(self) -> tuple[CacheEvent, ...]:
        return self._memory.take_events()

    def close(self) -> tuple[CacheEvent, ...]:
        self._running.clear()
        self._waiting.clear()
        time.sleep(self._script.unload_delay_s)
        self._faults.at_unload()
        return self.take_cache_events()

    def _prefilling(self) -> list[ScriptedRow]:
        """Returns the rows whose progress is reported."""
        if not self._script.progress_interval_s:
            return []
        return [
            row
            for row in self._running
            if row.tally.first_token_s is None and not row.stalled and not row.choice
        ]

    def _note_progress(self, now_s: float) -> None:
        for row in self._prefilling():
            if now_s >= row.reported_s + self._script.progress_interval_s:
                self._progress.append(row.progress(now_s))

    def _has_place(self, row: ScriptedRow) -> bool:
        return len(self._running) + len(row.choices) <= self.info.max_rows

    def _admit(self, now_s: float) -> None:
        script = self._script
        while self._waiting and self._has_place(self._waiting[0]):
            row = self._waiting[0]
            if row.arrived_s + script.accept_delay_s > now_s:
                return
            self._waiting.popleft()
            tally = row.tally
            tally.prefill_began_s = now_s
            # May differ from the number at acceptance: rows before it have stored their prompts.
            tally.cached_tokens = self._memory.cached_tokens(row.request)
            fresh_tokens = len(row.request.tokens) - tally.cached_tokens
            for each in row.choices:
                each.prefill_s = fresh_tokens * script.prefill_s_per_token
                each.reported_s = now_s
                each.due_s = now_s + each.prefill_s + script.first_token_delay_s
                each.stalled = script.wedge or script.stall_after_tokens == 0
                self._running.append(each)
            row.others = []

    def _advance(self, row: ScriptedRow, now_s: float) -> Delta:
        if row.tally.first_token_s is None:
            row.tally.note_token(now_s)
            is_kept = self._on_prefilled(row)
            if row.request.warm and not is_kept:
                return row.last(self._clock(), FinishReason.ERROR, error=NOT_KEPT)
            if row.request.warm:
                return row.last(self._clock(), FinishReason.STOP)
        parts = row.read()
        row.due_s += self._script.token_interval_s
        row.stalled = row.token_count == self._script.stall_after_tokens
        if row.parser.ended or row.is_complete:
            return row.last(self._clock(), FinishReason.STOP, parts)
        if row.token_count >= row.limit_tokens:
            return row.last(self._clock(), FinishReason.LENGTH, parts)
        return row.delta(parts)

    def _on_prefilled(self, row: ScriptedRow) -> bool:
        """Stores the prompt; returns True if it is stored."""
        request = row.request
        cached_tokens = row.tally.cached_tokens
        self._prefill_tokens += len(request.tokens) - cached_tokens
        self._cached_tokens += cached_tokens
        return self._memory.store(request, self._clock())
