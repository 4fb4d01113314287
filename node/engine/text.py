"""The engine of text models: rows that join and leave one batch of mlx-lm."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import mlx.core as mx
from mlx_lm.generate import BatchGenerator, GenerationBatch

from node.engine.detokenizer import Detokenizer
from node.engine.gather import Gather
from node.engine.model import LoadedModel, load_folder
from node.engine.penalties import Penalties, needs_penalties
from node.engine.rows import RowOrder
from node.engine.sampler import BatchSampler, RowSampling
from node.parsing.stops import StopMatcher
from node.protocol.messages import FinishReason
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

_PREFILL_CHUNK_TOKENS = 512
"""Of each prompt, in one step. Running rows stall for it; larger chunks gain little speed."""
USUAL_ANSWER_TOKENS = 1024
"""What a request without max_tokens is taken to answer."""
_PREFILL_STEP_TOKENS = 4 * _PREFILL_CHUNK_TOKENS
"""Of all prompts together, padding included; it bounds the stall when many long ones come."""


def load(spec: EngineSpec, progress: Callable[[float], None]) -> "TextEngine":
    """The `EngineFactory` of text models. Raises `LoadError`."""
    try:
        return TextEngine(load_folder(Path(spec.folder), progress), spec)
    except BaseException:
        _leave_thread()
        raise


def _leave_thread() -> None:
    """Ends the thread's use of MLX; without it the process may abort at its exit."""
    mx.clear_cache()
    mx.clear_streams()


@dataclass(eq=False)
class _Row:
    """One request on its way through the engine. Times are of the monotonic clock, in seconds."""

    request: GenerateRequest
    limit: int
    """Most tokens of output."""
    detokenizer: Detokenizer
    stops: StopMatcher
    sampling: RowSampling
    accepted_s: float
    prefill_began_s: float | None = None
    first_token_s: float | None = None
    token_count: int = field(default=0)
    """Tokens of output; an end token is none of them."""

    @property
    def projected_tokens(self) -> int:
        """Prompt and output that the row counts for. Without max_tokens that is an answer of usual
        length: the limit is then the whole context, and rows that hold it each would run one by
        one."""
        asked = self.request.max_tokens
        expected = self.limit if asked is not None else min(self.limit, USUAL_ANSWER_TOKENS)
        return len(self.request.tokens) + max(expected, self.token_count)

    def read(self, token: int) -> tuple[str, bool]:
        """(text, whether a stop string ends the row) that one more token brings."""
        self.token_count += 1
        return self.stops.feed(self.detokenizer.step(token))

    def drain(self) -> tuple[str, bool]:
        """The same for what is held back, at the end of the row."""
        text, hit = self.stops.feed(self.detokenizer.flush())
        return (text, True) if hit else (text + self.stops.flush(), False)

    def usage(self, now_s: float) -> RowUsage:
        began_s = now_s if self.prefill_began_s is None else self.prefill_began_s
        first_s = now_s if self.first_token_s is None else self.first_token_s
        return RowUsage(
            prompt_tokens=len(self.request.tokens),
            cached_tokens=0,
            completion_tokens=self.token_count,
            queue_s=began_s - self.accepted_s,
            prefill_s=first_s - began_s,
            decode_s=now_s - first_s,
        )

    def last(self, finish: FinishReason, text: str = "", error: str | None = None) -> Delta:
        """The delta that ends the row."""
        return Delta(
            uid=self.request.uid,
            parts=_parts(text),
            token_count=self.token_count,
            finish=finish,
            usage=self.usage(time.monotonic()),
            error=error,
        )


def _parts(text: str) -> tuple[Part, ...]:
    return (Part(PartKind.CONTENT, text),) if text else ()


class TextEngine:
    """An `Engine` of one text model. All calls come from the thread that made it."""

    def __init__(self, model: LoadedModel, spec: EngineSpec) -> None:
        self.info = Loaded(
            weight_bytes=model.weight_bytes,
            context_tokens=model.context_tokens,
            max_rows=spec.max_rows,
            vocab_size=model.vocab_size,
        )
        self._model: LoadedModel | None = model
        self._kv_bytes_per_token = spec.kv_bytes_per_token
        self._kv_bytes = spec.lease_bytes - model.weight_bytes
        """What the rows inside may come to hold together."""
        self._waiting: dict[str, _Row] = {}
        self._gather = Gather()
        self._start(model)

    def _start(self, model: LoadedModel) -> None:
        """A generator with nothing in it."""
        self._inside: dict[int, _Row] = {}
        """By the generator's numbers."""
        self._order: RowOrder[RowSampling] = RowOrder(_PREFILL_CHUNK_TOKENS, _PREFILL_STEP_TOKENS)
        self._sampler = BatchSampler()
        # Prompts and decoding rows share one limit, so what goes in is admitted in the same step.
        self._generator = BatchGenerator(
            model.network,
            stop_tokens=[[token] for token in sorted(model.end_tokens)],
            sampler=self._sampler,
            completion_batch_size=self.info.max_rows,
            prefill_batch_size=self.info.max_rows,
            prefill_step_size=_PREFILL_CHUNK_TOKENS,
        )

    def submit(self, request: GenerateRequest) -> Accepted | Refused:
        refused = self._refusal(request)
        if refused is not None:
            return refused
        assert self._model is not None
        room = self.info.context_tokens - len(request.tokens)
        self._waiting[request.uid] = _Row(
            request=request,
            limit=room if request.max_tokens is None else min(request.max_tokens, room),
            detokenizer=self._model.vocabulary.open(request.tokens),
            stops=StopMatcher(request.stops),
            sampling=RowSampling.of(request.sampling),
            accepted_s=time.monotonic(),
        )
        return Accepted(request.uid, prompt_tokens=len(request.tokens), cached_tokens=0)

    def _refusal(self, request: GenerateRequest) -> Refused | None:
        tokens, vocab_size = request.tokens, self.info.vocab_size
        bias = [token for token, _ in request.sampling.logit_bias]
        if request.uid in self._waiting or self._number(request.uid) is not None:
            return Refused(request.uid, "A request with this id is running.")
        if not tokens:
            return Refused(request.uid, "The prompt is empty.", "messages")
        if len(tokens) >= self.info.context_tokens:
            reason = (
                f"The prompt has {len(tokens)} tokens; the model's context of "
                f"{self.info.context_tokens} leaves no room for an answer."
            )
            return Refused(request.uid, reason, "messages")
        if not 0 <= min(tokens) <= max(tokens) < vocab_size:
            return Refused(request.uid, "The prompt has ids beyond the vocabulary.", "messages")
        if request.max_tokens is not None and request.max_tokens < 1:
            return Refused(request.uid, "max_tokens must be at least 1.", "max_tokens")
        if bias and not 0 <= min(bias) <= max(bias) < vocab_size:
            reason = f"logit_bias names ids beyond the vocabulary of {vocab_size} tokens."
            return Refused(request.uid, reason, "logit_bias")
        return None

    def _number(self, uid: str) -> int | None:
        """The generator's number of a row that is inside."""
        inside = self._inside.items()
        return next((number for number, row in inside if row.request.uid == uid), None)

    def cancel(self, uid: str) -> Delta | None:
        row = self._waiting.pop(uid, None)
        number = self._number(uid)
        if number is not None:
            row = self._inside[number]
            self._remove([number])
        return None if row is None else row.last(FinishReason.CANCELLED)

    def wait_s(self) -> float | None:
        if self._inside:
            return 0.0
        if not self._waiting:
            return None
        rows = list(self._waiting.values())
        tokens = sum(len(row.request.tokens) for row in rows)
        due_s = self._gather.due_s(rows[0].accepted_s, rows[-1].accepted_s, tokens)
        return max(0.0, due_s - time.monotonic())

    def step(self) -> list[Delta]:
        self._admit()
        if not self._inside:
            return []
        self._sampler.expect(self._order.sampled_next())
        tokens, began_s = self._order.prefilled_next(), time.monotonic()
        _, responses = self._generator.next()
        if not responses:
            self._gather.learn(tokens, time.monotonic() - began_s)
        ended = [response.uid for response in responses if response.finish_reason]
        self._order.advance([response.uid for response in responses], ended)
        now_s = time.monotonic()
        deltas = [self._take(response, now_s) for response in responses]
        gone = [
            response.uid
            for response, delta in zip(responses, deltas, strict=True)
            if delta is not None and delta.finish is not None
        ]
        if gone:
            self._remove(gone)
        return [delta for delta in deltas if delta is not None]

    def _admit(self) -> None:
        """Moves waiting rows into the generator, first in, first out, while there is room."""
        while self._waiting and len(self._inside) < self.info.max_rows:
            row = next(iter(self._waiting.values()))
            request = row.request
            if not self._order.has_room(len(request.tokens)) or not self._is_within_lease(row):
                return
            row.prefill_began_s = time.monotonic()
            processors: list[Callable[[mx.array, mx.array], mx.array]] = []
            if needs_penalties(request.sampling):
                processors.append(Penalties(request.sampling, request.tokens, self.info.vocab_size))
            # The generator changes its token lists in place.
            (number,) = self._generator.insert(
                [list(request.tokens)], max_tokens=[row.limit], logits_processors=[processors]
            )
            self._inside[number] = self._waiting.pop(request.uid)
            self._order.insert(number, row.sampling, len(request.tokens))

    def _is_within_lease(self, row: _Row) -> bool:
        """Whether the row may go in beside those inside, if all become as long as projected. A row
        that comes alone always may: its context bounds it."""
        if not self._inside:
            return True
        tokens = sum(each.projected_tokens for each in (*self._inside.values(), row))
        return tokens * self._kv_bytes_per_token <= max(self._kv_bytes, 0)

    def _take(self, response: GenerationBatch.Response, now_s: float) -> Delta | None:
        """What one row's token brings; None where it is nothing to tell."""
        row = self._inside[response.uid]
        if row.first_token_s is None:
            row.first_token_s = now_s
        if response.finish_reason == "stop":
            text, _ = row.drain()
            return row.last(FinishReason.STOP, text)
        text, hit = row.read(response.token)
        if hit:
            return row.last(FinishReason.STOP, text)
        if response.finish_reason == "length":
            rest, hit = row.drain()
            return row.last(FinishReason.STOP if hit else FinishReason.LENGTH, text + rest)
        return Delta(row.request.uid, _parts(text), row.token_count) if text else None

    def _remove(self, numbers: list[int]) -> None:
        """Takes rows out; the generator has dropped some of them itself."""
        self._generator.remove(numbers)
        for number in numbers:
            del self._inside[number]
            self._order.remove(number)

    def reset(self, reason: str) -> list[Delta]:
        assert self._model is not None
        # Waiting rows are not lost, unless it was one of them that could not even go in.
        lost = list(self._inside.values()) or list(self._waiting.values())
        if not self._inside:
            self._waiting.clear()
        self._generator.close()
        self._start(self._model)
        mx.clear_cache()
        return [row.last(FinishReason.ERROR, error=reason) for row in lost]

    def close(self) -> None:
        mx.synchronize(self._generator.stream)
        self._generator.close()
        del self._generator, self._sampler
        self._inside.clear()
        self._waiting.clear()
        self._model = None
        _leave_thread()
