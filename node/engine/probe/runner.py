"""Runs a `TextEngine` in a thread of its own, for the probes: prompts in, outputs with
probabilities out."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from node.engine.base import LoadError
from node.engine.model.load import LoadedModel
from node.engine.scheduling.engine import TextEngine
from node.ipc.generate import GenerateRequest, SamplingParams
from node.ipc.messages import (
    Accepted,
    Delta,
    DiskCache,
    EngineSpec,
    MemoryLease,
    Refused,
    RowUsage,
    TokenLogprob,
)

GREEDY = SamplingParams(temperature=0.0)
LIKELIEST = 5
_LIVE_BYTES, _STORED_BYTES, _OVERHEAD_BYTES = 2 << 30, 1 << 30, 1 << 29

Prompt = tuple[int, ...]


@dataclass(slots=True)
class ProbeOutput:
    """An engine's output for a prompt."""

    tokens: list[TokenLogprob] = field(default_factory=list)
    usage: RowUsage | None = None
    error: str | None = None

    def read(self, delta: Delta) -> None:
        for part in delta.parts:
            self.tokens += part.logprobs
        self.usage = delta.usage or self.usage
        self.error = delta.error or self.error


@dataclass(frozen=True, slots=True)
class Divergence:
    """The point at which two outputs for one prompt differ."""

    at: int | None
    """Index of the first token that differs; None if none does."""
    gap: float = 0.0
    """Difference in probability of the two tokens there, in nats; infinite if the other one was not
    among the likeliest."""
    shift: float = 0.0
    """Largest difference of a token's log probability before it, in nats."""

    def is_near_tie(self, nats: float) -> bool:
        return self.at is None or self.gap <= nats


def divergence(left: ProbeOutput, right: ProbeOutput) -> Divergence:
    shift = 0.0
    for at, (one, other) in enumerate(zip(left.tokens, right.tokens, strict=False)):
        if one.token.data != other.token.data:
            return Divergence(at, _gap(one, other.token.data), shift)
        shift = max(shift, abs(one.token.logprob - other.token.logprob))
    if len(left.tokens) != len(right.tokens):
        return Divergence(min(len(left.tokens), len(right.tokens)), float("inf"), shift)
    return Divergence(None, 0.0, shift)


def _gap(token: TokenLogprob, other: bytes) -> float:
    logprobs = {each.data: each.logprob for each in token.top}
    return abs(token.token.logprob - logprobs.get(other, float("-inf")))


def spec_of(folder: str = "", disk: Path | None = None, *, rows: int = 8) -> EngineSpec:
    return EngineSpec(
        engine="text",
        model="probe",
        folder=folder,
        max_rows=rows,
        lease=MemoryLease(0, _LIVE_BYTES, _STORED_BYTES, _OVERHEAD_BYTES),
        disk=None if disk is None else DiskCache(str(disk), _STORED_BYTES),
        warm_up=False,
    )


class Runner:
    """An engine and its thread. Closing it ends the thread's use of MLX."""

    def __init__(self, model: LoadedModel, spec: EngineSpec) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._engine = self._thread.submit(TextEngine, model, spec).result()
        self._number = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._thread.submit(self._engine.close).result()
        self._thread.shutdown()

    def warm_up(self) -> None:
        self._thread.submit(self._engine.warm_up).result()

    def generate(self, prompts: Sequence[Prompt], count: int) -> list[ProbeOutput]:
        """Returns the outputs, of `count` tokens at most, for all prompts, which run together.
        Raises `LoadError` if the engine refuses one."""
        return self._thread.submit(self._generate, prompts, count).result()

    def _generate(self, prompts: Sequence[Prompt], count: int) -> list[ProbeOutput]:
        outputs = {self._submit(prompt, count): ProbeOutput() for prompt in prompts}
        open_uids = set(outputs)
        while open_uids:
            for delta in self._engine.step():
                outputs[delta.uid].read(delta)
                if delta.is_last:
                    open_uids.discard(delta.uid)
        return list(outputs.values())

    def _submit(self, prompt: Prompt, count: int) -> str:
        self._number += 1
        uid = f"probe-{self._number}"
        request = GenerateRequest(uid, prompt, count, GREEDY, logprobs=LIKELIEST)
        reply: Accepted | Refused | None = self._engine.submit(request)
        if not isinstance(reply, Accepted):
            raise LoadError("The engine takes no prompt of the probe.")
        return uid
