"""One choice of a request on its way through the engine."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from node.engine.cache.index import salt_number
from node.engine.cache.parts import Tokens
from node.engine.constraints.steering import Steer
from node.engine.decoding.choices import Tally, choice_of
from node.engine.decoding.chunking import USUAL_ANSWER_TOKENS
from node.engine.decoding.output import OutputReader
from node.engine.model.detokenizer import Vocabulary
from node.engine.sampling.logprobs import Likely
from node.engine.sampling.penalties import Penalties
from node.engine.sampling.sampler import RowSampling
from node.ipc.generate import GenerateRequest
from node.ipc.messages import Delta, Part, RowUsage
from node.protocol.messages import FinishReason


@dataclass(eq=False, slots=True)
class Row:
    """Times are of the monotonic clock, in seconds."""

    request: GenerateRequest
    prompt: Tokens
    tokens: Tokens
    """What is prefilled: the prompt, and after a preemption the output so far too."""
    limit: int
    """Most tokens of output."""
    reader: OutputReader
    sampling: RowSampling
    accepted_s: float
    tally: Tally
    """Of all choices of the request."""
    choice: int = 0
    others: "list[Row]" = field(default_factory=list)
    """Choices that wait for this one's prefill, to go on from its caches."""
    ended: bool = False
    """Whether its last delta has been made."""
    penalties: Penalties | None = None
    steer: Steer | None = None
    """What its next token is held to; None: nothing ever."""
    output: list[int] = field(default_factory=list)
    """Tokens of output; an end token is among them."""
    token_count: int = 0
    """Tokens of output; an end token is none of them."""
    done_tokens: int = 0
    """Of `tokens`, those in the row's cache, during prefill."""
    cuts: tuple[int, ...] = ()
    """Where the prefill stops to store what it has; ascending."""
    rest_estimate: int = 0
    """Tokens that were left to prefill when the row came, with what was cached then."""
    shares: "dict[Row, int]" = field(default_factory=dict)
    """Length of the prefix in common with rows that are being prefilled."""
    salt: int = field(init=False)
    """As the prefix cache has it."""

    def __post_init__(self) -> None:
        self.salt = salt_number(self.request.salt)

    @property
    def uid(self) -> str:
        return self.request.uid

    @property
    def choices(self) -> "list[Row]":
        """The row, and those that wait for its prefill."""
        return [self, *self.others]

    def release_others(self) -> "list[Row]":
        """The choices that waited, which have of the prompt what this one has."""
        others, self.others = self.others, []
        for other in others:
            other.done_tokens = self.done_tokens
        return others

    @property
    def prefill_tokens(self) -> int:
        """Tokens to prefill; the last one is left to the first decode step."""
        return len(self.tokens) - 1

    @property
    def rest_tokens(self) -> int:
        return self.prefill_tokens - self.done_tokens

    @property
    def expected_tokens(self) -> int:
        """Prompt and output that the row counts for. Without max_tokens that is an answer of usual
        length: the limit is then the whole context, and rows that hold it each would run one by
        one."""
        asked = self.request.max_tokens
        expected = self.limit if asked is not None else min(self.limit, USUAL_ANSWER_TOKENS)
        return len(self.prompt) + max(expected, len(self.output) + 1)

    def next_stop(self) -> int:
        """Up to which token the prefill may run on."""
        return next((cut for cut in self.cuts if cut > self.done_tokens), self.prefill_tokens)

    def add_cut(self, at: int) -> None:
        """One more place to stop, if it is still ahead."""
        if self.done_tokens < at <= self.prefill_tokens and at not in self.cuts:
            self.cuts = tuple(sorted((*self.cuts, at)))

    def key(self, length: int) -> Tokens:
        """The first `length` tokens of prompt and output."""
        if length <= len(self.prompt):
            return self.prompt[:length]
        output = np.asarray(self.output[: length - len(self.prompt)], dtype=np.int32)
        return np.concatenate([self.prompt, output])

    @property
    def keepable_tokens(self) -> int:
        """How much of the prompt a later prompt can begin with."""
        reusable = self.request.reusable_tokens
        return len(self.prompt) if reusable is None else reusable

    def restart(self) -> None:
        """After a preemption: everything up to now is prefilled again before the row goes on."""
        self.tokens = self.key(len(self.prompt) + len(self.output))
        self.done_tokens = 0
        self.cuts = ()
        self.shares.clear()
        # The k-th token takes the k-th draw, also where a pass has drawn one that was not used.
        self.sampling = RowSampling.of(self.sampling.params, self.sampling.logprobs)
        for _ in self.output:
            self.sampling.draw()

    def take(
        self, token: int, end_tokens: frozenset[int], now_s: float, likely: Likely | None = None
    ) -> Delta | None:
        """What one more token brings; None where it is nothing to tell, as the first one always is:
        it ends the prefill. `likely` comes with it where the request asks for log probabilities."""
        self.tally.note_token(now_s)
        self.output.append(token)
        if self.steer is not None and self.steer.error is not None:
            # Nothing held the token that has just been drawn.
            how = FinishReason.REFUSED if self.steer.is_refused else FinishReason.ERROR
            return self.last(how, self.reader.end(is_cut=True), self.steer.error)
        if token in end_tokens and not (self.steer is not None and self.steer.is_forced):
            return self.last(FinishReason.STOP, self.reader.end(token))
        self.token_count += 1
        parts = self.reader.read(token, likely)
        if self.reader.ended:
            return self.last(FinishReason.STOP, parts)
        if self.token_count >= self.limit:
            return self.cut_short(parts)
        if self.steer is not None:
            self.steer.take(token)
        if not parts and self.token_count > 1:
            return None
        return Delta(self.uid, tuple(parts), self.token_count, choice=self.choice)

    def cut_short(self, parts: Sequence[Part] = ()) -> Delta:
        """The last delta of a row for whose next token there is no room; `parts` are not told
        yet."""
        rest = self.reader.end(is_cut=True)
        ended = self.reader.ended
        return self.last(FinishReason.STOP if ended else FinishReason.LENGTH, (*parts, *rest))

    def usage(self, now_s: float) -> RowUsage:
        """Of the request, all of whose choices have ended."""
        tally = self.tally
        began_s = now_s if tally.prefill_began_s is None else tally.prefill_began_s
        first_s = now_s if tally.first_token_s is None else tally.first_token_s
        return RowUsage(
            prompt_tokens=len(self.prompt),
            cached_tokens=tally.cached_tokens,
            completion_tokens=tally.completion_tokens,
            queue_s=began_s - self.accepted_s,
            prefill_s=first_s - began_s,
            decode_s=now_s - first_s,
            reasoning_tokens=tally.reasoning_tokens,
            reasoning_overflow_tokens=tally.reasoning_overflow_tokens,
        )

    def last(
        self, finish: FinishReason, parts: Sequence[Part] = (), error: str | None = None
    ) -> Delta:
        """The delta that ends the row; made once."""
        self.ended = True
        reader = self.reader
        is_last = self.tally.end(
            self.token_count, reader.reasoning_tokens, reader.reasoning_overflow_tokens
        )
        return Delta(
            uid=self.uid,
            parts=tuple(parts),
            token_count=self.token_count,
            finish=finish,
            usage=self.usage(time.monotonic()) if is_last else None,
            error=error or reader.error,
            stop=reader.stop,
            choice=self.choice,
            open_choices=self.tally.open_choices,
        )


def output_limit(request: GenerateRequest, longest: int) -> int:
    """Most tokens of output where a row may become so long."""
    room = longest - len(request.tokens)
    return room if request.max_tokens is None else min(request.max_tokens, room)


def make_row(request: GenerateRequest, tokens: Tokens, limit: int, vocabulary: Vocabulary) -> Row:
    """The row of a request's first choice, with those of the others; `tokens` are the prompt.
    Raises `KeyError` for an output format that is not known."""
    tally, accepted_s = Tally(request.choices), time.monotonic()
    rows = [
        Row(
            request=request,
            prompt=tokens,
            tokens=tokens,
            limit=limit,
            reader=OutputReader(vocabulary, choice_of(request, choice)),
            sampling=RowSampling.of(choice_of(request, choice).sampling, request.logprobs),
            accepted_s=accepted_s,
            tally=tally,
            choice=choice,
        )
        for choice in range(request.choices)
    ]
    rows[0].others = rows[1:]
    return rows[0]
