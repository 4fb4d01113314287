"""Runs a `TextEngine` in a thread of its own, as the worker does."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import mlx.core as mx
import msgspec
import numpy as np
from mlx_lm.models.cache import make_prompt_cache
from tokenizers import Tokenizer

from node.engine.base import ignore_long_step
from node.engine.decoding.row import Row as EngineRow
from node.engine.model.load import LoadedModel, load_folder
from node.engine.scheduling.engine import TextEngine
from node.ipc.generate import GenerateRequest, SamplingParams
from node.ipc.messages import (
    Accepted,
    Delta,
    EngineSpec,
    MemoryLease,
    Part,
    PartKind,
    Refused,
    RowUsage,
)
from node.protocol.messages import FinishReason
from tests.mlx.likeness import (
    NEAR,
    Logits,
    assert_alike,
    draw_gap,
    greedy_gap,
    is_exact,
    pair_gap,
    penalized,
    tie_gap,
)

GREEDY = SamplingParams(temperature=0.0)
_TIMEOUT_S = 60
T = TypeVar("T")


def make_spec(folder: Path, **options: Any) -> EngineSpec:
    """The spec of an engine of the folder: 4 sequences, and memory for all that a test does."""
    spec = EngineSpec(
        engine="text",
        model="m",
        folder=str(folder),
        max_rows=4,
        lease=MemoryLease(0, live_kv_bytes=1 << 30, stored_kv_bytes=1 << 28),
    )
    return msgspec.structs.replace(spec, **options)


def prompt(length: int, seed: int) -> tuple[int, ...]:
    """Random tokens, none of them special."""
    return tuple(np.random.default_rng(seed).integers(3, 400, length).tolist())


def _greedy(model: LoadedModel, tokens: tuple[int, ...], count: int) -> list[int]:
    cache, inputs, out = make_prompt_cache(model.network), list(tokens), list[int]()
    while len(out) < count and (not out or out[-1] not in model.end_tokens):
        logits = model.network(mx.array([inputs]), cache=cache)[:, -1]
        inputs = np.array(mx.argmax(logits, axis=-1)).tolist()
        out += inputs
    return out


def bare_logits(model: LoadedModel, tokens: tuple[int, ...], output: list[int]) -> Logits:
    """By the bare model, those [output, V] that each token of an output is picked from."""
    fed = mx.array([[*tokens, *output[:-1]]])
    logits = model.network(fed, cache=make_prompt_cache(model.network))
    return np.array(logits[0, len(tokens) - 1 :].astype(mx.float32))


@dataclass
class Row:
    """The reports of an engine about one request."""

    parts: list[Part] = field(default_factory=list)
    token_count: int = 0
    finish: FinishReason | None = None
    usage: RowUsage | None = None
    error: str | None = None

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts)

    def read(self, delta: Delta) -> None:
        assert self.finish is None, "a delta after the last one"
        texts = [part for part in delta.parts if part.kind is not PartKind.TOOL_START]
        assert all(part.text for part in texts), "an empty part"
        self.parts += delta.parts
        self.token_count = delta.token_count
        self.finish, self.usage, self.error = delta.finish, delta.usage, delta.error


class Driver:
    """An engine and everything it has reported. Its steps run when a test calls for them."""

    def __init__(
        self,
        folder: Path,
        *,
        spec: EngineSpec | None = None,
        change: Callable[[LoadedModel], LoadedModel] = lambda model: model,
        on_long_step: Callable[[float], None] = ignore_long_step,
    ) -> None:
        self.rows: dict[str, Row] = {}
        self.outputs: dict[str, list[int]] = {}
        """Token ids of each sequence, an end token included."""
        self.tokenizer: Tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._thread = ThreadPoolExecutor(1)
        chosen = make_spec(folder) if spec is None else spec
        self.engine = self.call(
            lambda: TextEngine(
                change(load_folder(folder, lambda fraction: None)),
                chosen,
                on_long_step=on_long_step,
            )
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.call(self.engine.close)
        self._thread.shutdown()

    def call(self, function: Callable[[], T], timeout_s: float = _TIMEOUT_S) -> T:
        """Runs the function in the engine's thread."""
        return self._thread.submit(function).result(timeout_s)

    def ids(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def submit(
        self,
        uid: str,
        prompt: str | tuple[int, ...],
        sampling: SamplingParams = GREEDY,
        *,
        max_tokens: int | None = 24,
        stops: tuple[str, ...] = (),
        **options: Any,
    ) -> Accepted | Refused:
        tokens = self.ids(prompt) if isinstance(prompt, str) else prompt
        request = GenerateRequest(uid, tokens, max_tokens, sampling, stops, **options)
        reply = self.call(lambda: self.engine.submit(request))
        while reply is None:
            # Its grammar is being compiled.
            self.step()
            reply = next(iter(self.call(self.engine.take_responses)), None)
        if isinstance(reply, Accepted):
            # Those that waited for a prefill may be on their own by now.
            inside = [row for row in self.engine._rows() if row.uid == uid]
            choices = [each for row in inside for each in row.choices]
            self.rows |= {place(uid, each.choice): Row() for each in choices}
            self.outputs |= {place(uid, each.choice): each.output for each in choices}
        return reply

    def row(self, uid: str) -> EngineRow:
        """The sequence inside the engine."""
        return next(row for row in self.engine._rows() if row.uid == uid)

    def step(self) -> list[Delta]:
        deltas = self.call(self.engine.step)
        self.read(deltas)
        return deltas

    def read(self, deltas: list[Delta]) -> None:
        for delta in deltas:
            self.rows[place(delta.uid, delta.choice)].read(delta)

    def cancel(self, uid: str) -> Delta | None:
        deltas = self.call(lambda: self.engine.cancel(uid))
        self.read(deltas)
        return deltas[-1] if deltas else None

    def run(self) -> dict[str, Row]:
        """Steps until all sequences have ended."""
        while any(row.finish is None for row in self.rows.values()):
            self.step()
        return self.rows

    def steps_until(self, uid: str, token_count: int) -> None:
        """Steps until the sequence has reported so many tokens. One that ends before fails."""
        row = self.rows[uid]
        while row.token_count < token_count:
            assert row.finish is None, f"{uid} has ended after {row.token_count} tokens"
            self.step()

    def bare(self, tokens: tuple[int, ...], count: int) -> list[int]:
        """Returns the tokens that mlx-lm's model generates greedily, without any of our code."""
        return self.call(lambda: _greedy(self.engine._model, tokens, count))

    def assert_greedy(self, uid: str, tokens: tuple[int, ...], count: int | None = None) -> None:
        """That a sequence has generated what the bare model does greedily, in `count` tokens
        if it has no end before; on a GPU, but for near ties."""
        output = self.outputs[uid]
        count = len(output) if count is None else count
        if is_exact():
            assert output == self.bare(tokens, count), uid
            return
        assert len(output) == count or output[-1] in self.engine._model.end_tokens, uid
        logits = self.call(lambda: bare_logits(self.engine._model, tokens, output))
        assert greedy_gap(logits, output) <= NEAR, uid

    def assert_alike(
        self,
        tokens: tuple[int, ...],
        left: list[int],
        right: list[int],
        sampling: SamplingParams = GREEDY,
        *,
        near: float = NEAR,
        is_constrained: bool = False,
    ) -> None:
        """That two answers to the prompt are the same; on a GPU, up to a near tie: of two tokens
        that a grammar allowed, where the answer `is_constrained` by one."""

        def logits_at(at: int) -> Logits:
            logits = self.call(lambda: bare_logits(self.engine._model, tokens, left[: at + 1]))[-1]
            return penalized(sampling, logits, tokens, left[:at])

        def drawn(logits: Logits, one: int, other: int) -> float:
            return draw_gap(logits, one, other, sampling.temperature)

        assert sampling.temperature == 0 or not is_constrained, "a draw among what a grammar allows"
        picked = pair_gap if is_constrained else tie_gap
        assert_alike(left, right, logits_at, drawn if sampling.temperature else picked, near)

    def alone(self, prompt: str | tuple[int, ...], *args: Any, **options: Any) -> Row:
        """The sequence that the prompt gives with nothing beside it."""
        self.submit("alone", prompt, *args, **options)
        self.run()
        return self.rows.pop("alone")


def place(uid: str, choice: int) -> str:
    """Where a driver has the sequence of a choice."""
    return f"{uid}#{choice}" if choice else uid
