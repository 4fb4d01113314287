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
from dataclasses import dataclass
from pathlib import Path

import msgspec

from node.engine.base import LoadError
from node.engine.scripted_cache import PrefixCache, ScriptedCache
from node.parsing.stops import StopMatcher
from node.protocol.messages import FinishReason
from node.store import ModelEntry
from node.types import (
    Accepted,
    Delta,
    EngineSpec,
    GenerateRequest,
    Loaded,
    Part,
    PartKind,
    Refused,
    RowUsage,
)

VOCAB_SIZE = 256
PROGRESS_STEP_S = 0.02

_WORD_TEXT = (
    "a ant ash bay bee bow box cat cup day den dew dog ear egg elm fen fig fin fog fox gem gum hat "
    "hen ice inn ivy jam jar jug key kit lap log map mud net nut oak oar orb owl pea pen pie pin "
    "rain ray rye salt sea sky sun tea tin toe urn van wax web yak zoo"
)
_WORDS = _WORD_TEXT.split()


class ScriptedModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model that the scripted node claims to have on disk."""

    name: str = "scripted"
    weight_bytes: int = 1024**3
    context_tokens: int = 32_768


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
    cache: ScriptedCache = ScriptedCache()


class StepFailure(Exception):
    """The script asked for a step that fails."""


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
            kv_bytes_per_token=0,
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
    return ScriptedEngine(info, script)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass(slots=True, eq=False)
class _Row:
    request: GenerateRequest
    cached_tokens: int
    limit_tokens: int
    """Length at which the row ends with `length`."""
    natural_tokens: int
    """Length at which the row ends with `stop`."""
    arrived_s: float
    matcher: StopMatcher
    prompt_hash: int
    started_s: float | None = None
    first_token_s: float | None = None
    due_s: float = 0.0
    token_count: int = 0
    stalled: bool = False


class ScriptedEngine:
    """Rows that wait for a place, then get one token whenever one is due."""

    def __init__(
        self,
        info: Loaded,
        script: Script,
        *,
        clock: Callable[[], float] = time.monotonic,
        die: Callable[[], None] = _die,
    ) -> None:
        self.info = info
        self._script = script
        self._clock = clock
        self._die = die
        self._words = script.text.split() if script.text is not None else []
        self._waiting: deque[_Row] = deque()
        self._running: list[_Row] = []
        self._prefixes = PrefixCache(script.cache)

    def submit(self, request: GenerateRequest) -> Accepted | Refused:
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
        row = _Row(
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
        for rows in (self._waiting, self._running):
            row = next((row for row in rows if row.request.uid == uid), None)
            if row is not None:
                rows.remove(row)
                return self._last(row, FinishReason.CANCELLED)
        return None

    def wait_s(self) -> float | None:
        now_s = self._clock()
        self._admit(now_s)
        due = [row.due_s for row in self._running if not row.stalled]
        if self._waiting and len(self._running) < self.info.max_rows:
            due.append(self._waiting[0].arrived_s + self._script.accept_delay_s)
        return max(min(due) - now_s, 0.0) if due else None

    def step(self) -> list[Delta]:
        now_s = self._clock()
        self._admit(now_s)
        due = [row for row in self._running if not row.stalled and row.due_s <= now_s]
        self._raise_faults(due)
        deltas = [self._advance(row, now_s) for row in due]
        ended = {delta.uid for delta in deltas if delta.finish is not None}
        if ended:
            self._running = [row for row in self._running if row.request.uid not in ended]
        return deltas

    def reset(self, reason: str) -> list[Delta]:
        lost = [*self._running, *self._waiting]
        self._running.clear()
        self._waiting.clear()
        return [self._last(row, FinishReason.ERROR, error=reason) for row in lost]

    def close(self) -> None:
        self._running.clear()
        self._waiting.clear()
        time.sleep(self._script.unload_delay_s)
        if self._script.unload_failure is not None:
            raise UnloadFailure(self._script.unload_failure)

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
            fresh_tokens = len(row.request.tokens) - row.cached_tokens
            prefill_s = fresh_tokens * script.prefill_s_per_token
            row.due_s = now_s + prefill_s + script.first_token_delay_s
            row.stalled = script.wedge or script.stall_after_tokens == 0
            self._running.append(row)

    def _raise_faults(self, due: list[_Row]) -> None:
        counts = {row.token_count for row in due}
        if self._script.crash_after_tokens in counts:
            self._die()
        if self._script.step_failure_after_tokens in counts:
            raise StepFailure("The script asked for a step that fails.")

    def _advance(self, row: _Row, now_s: float) -> Delta:
        if row.first_token_s is None:
            row.first_token_s = now_s
            self._prefixes.store(row.request.tokens)
        text, hit = row.matcher.feed(self._token_text(row))
        row.token_count += 1
        row.due_s += self._script.token_interval_s
        row.stalled = row.token_count == self._script.stall_after_tokens
        if hit or row.token_count >= row.natural_tokens:
            return self._last(row, FinishReason.STOP, text=text, hit=hit)
        if row.token_count >= row.limit_tokens:
            return self._last(row, FinishReason.LENGTH, text=text)
        return Delta(row.request.uid, _parts(text), row.token_count)

    def _token_text(self, row: _Row) -> str:
        index = row.token_count
        if self._words:
            word = self._words[index % len(self._words)]
        else:
            word = _WORDS[zlib.crc32(index.to_bytes(8, "little"), row.prompt_hash) % len(_WORDS)]
        return word if index == 0 else f" {word}"

    def _last(
        self,
        row: _Row,
        finish: FinishReason,
        *,
        text: str = "",
        hit: bool = False,
        error: str | None = None,
    ) -> Delta:
        if finish in (FinishReason.STOP, FinishReason.LENGTH) and not hit:
            text += row.matcher.flush()
        now_s = self._clock()
        started_s = now_s if row.started_s is None else row.started_s
        first_token_s = now_s if row.first_token_s is None else row.first_token_s
        usage = RowUsage(
            prompt_tokens=len(row.request.tokens),
            cached_tokens=row.cached_tokens,
            completion_tokens=row.token_count,
            queue_s=started_s - row.arrived_s,
            prefill_s=first_token_s - started_s,
            decode_s=now_s - first_token_s,
        )
        return Delta(row.request.uid, _parts(text), row.token_count, finish, usage, error)


def _parts(text: str) -> tuple[Part, ...]:
    return (Part(PartKind.CONTENT, text),) if text else ()
