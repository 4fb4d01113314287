"""A row: one choice of a request in the engine."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from node.engine.cache.index import salt_number
from node.engine.cache.parts import Tokens
from node.engine.constraints.token_constraints import TokenConstraint
from node.engine.decoding.choices import Tally, choice_of
from node.engine.decoding.chunking import USUAL_OUTPUT_TOKENS
from node.engine.decoding.output import OutputReader
from node.engine.model.detokenizer import Vocabulary
from node.engine.sampling.logprobs import TopLogprobs
from node.engine.sampling.penalties import Penalties
from node.engine.sampling.sampler import RowSampling
from node.ipc.generate import GenerateRequest
from node.ipc.messages import Delta, Part
from node.protocol.messages import FinishReason


@dataclass(eq=False, slots=True)
class Row:
    """One choice of a request, from acceptance to its last delta. Times are seconds of the
    monotonic clock."""

    request: GenerateRequest
    prompt: Tokens
    tokens: Tokens
    """Tokens to prefill: the prompt, and after a preemption the output so far, too."""
    limit: int
    """Most tokens of output."""
    reader: OutputReader
    sampling: RowSampling
    accepted_s: float
    tally: Tally
    """The sums over all choices of the request; they share it."""
    choice: int = 0
    waiting_choices: "list[Row]" = field(default_factory=list)
    """Choices that wait for this one's prefill and then start from copies of its caches."""
    ended: bool = False
    """True once its last delta has been made."""
    penalties: Penalties | None = None
    constraint: TokenConstraint | None = None
    """The constraint on its next token; None if the row never has one."""
    output: list[int] = field(default_factory=list)
    """Output tokens, including an end token."""
    token_count: int = 0
    """Number of output tokens, without an end token."""
    done_tokens: int = 0
    """Number of `tokens` that are in the row's cache during prefill."""
    checkpoints: tuple[int, ...] = ()
    """Positions where the prefill stops to store its KV; ascending."""
    rest_estimate: int = 0
    """Number of tokens left to prefill when the row was queued, given the cache at that time."""
    shared_prefixes: "dict[Row, int]" = field(default_factory=dict)
    """Length in tokens of the prefix shared with each row that is being prefilled."""
    salt: int = field(init=False)
    """The request's salt as the prefix cache's number."""

    def __post_init__(self) -> None:
        self.salt = salt_number(self.request.salt)

    @property
    def uid(self) -> str:
        return self.request.uid

    @property
    def choices(self) -> "list[Row]":
        """The row and the choices that wait for its prefill."""
        return [self, *self.waiting_choices]

    def release_waiting_choices(self) -> "list[Row]":
        """Removes and returns the waiting choices, with as many tokens done as this row has."""
        released, self.waiting_choices = self.waiting_choices, []
        for other in released:
            other.done_tokens = self.done_tokens
        return released

    @property
    def prefill_tokens(self) -> int:
        """Number of tokens to prefill; the last token is left to the first decode step."""
        return len(self.tokens) - 1

    @property
    def rest_tokens(self) -> int:
        return self.prefill_tokens - self.done_tokens

    @property
    def expected_tokens(self) -> int:
        """Expected length of prompt and output, for which memory is planned. Without max_tokens an
        output of usual length is assumed: the limit is then the whole context, and rows that
        reserved so much would run one by one."""
        is_limited = self.request.max_tokens is not None
        expected = self.limit if is_limited else min(self.limit, USUAL_OUTPUT_TOKENS)
        return len(self.prompt) + max(expected, len(self.output) + 1)

    def next_stop(self) -> int:
        """Returns the position up to which the prefill may go on."""
        return next((at for at in self.checkpoints if at > self.done_tokens), self.prefill_tokens)

    def add_checkpoint(self, at: int) -> None:
        """Adds a position where the prefill stops, unless it has passed it."""
        if self.done_tokens < at <= self.prefill_tokens and at not in self.checkpoints:
            self.checkpoints = tuple(sorted((*self.checkpoints, at)))

    def tokens_until(self, length: int) -> Tokens:
        """Returns the first `length` tokens of prompt and output."""
        if length <= len(self.prompt):
            return self.prompt[:length]
        output = np.asarray(self.output[: length - len(self.prompt)], dtype=np.int32)
        return np.concatenate([self.prompt, output])

    @property
    def reusable_prompt_tokens(self) -> int:
        """Number of the prompt's tokens that a later prompt can begin with."""
        reusable = self.request.reusable_tokens
        return len(self.prompt) if reusable is None else reusable

    def restart(self) -> None:
        """Resets the row after a preemption, so that prompt and output so far are prefilled
        again."""
        self.tokens = self.tokens_until(len(self.prompt) + len(self.output))
        self.done_tokens = 0
        self.checkpoints = ()
        self.shared_prefixes.clear()
        # The k-th token uses the k-th draw, even if a pass has made a draw that was not used.
        self.sampling = RowSampling.of(self.sampling.params, self.sampling.logprobs)
        for _ in self.output:
            self.sampling.draw()

    def add_token(
        self,
        token: int,
        end_tokens: frozenset[int],
        now_s: float,
        logprobs: TopLogprobs | None = None,
    ) -> Delta | None:
        """Processes one more token. Returns the resulting delta; None if there is nothing to send.
        The first token always has a delta, since it ends the prefill. `logprobs` are the token's
        log probabilities, if the request asks for them."""
        self.tally.note_token(now_s)
        self.output.append(token)
        if self.constraint is not None and self.constraint.error is not None:
            # The constraint failed, so this token was drawn without it.
            how = FinishReason.REFUSED if self.constraint.is_refused else FinishReason.ERROR
            return self.final_delta(how, self.reader.end(is_cut=True), self.constraint.error)
        if token in end_tokens and not (self.constraint is not None and self.constraint.is_forced):
            return self.final_delta(FinishReason.STOP, self.reader.end(token))
        self.token_count += 1
        parts = self.reader.read(token, logprobs)
        if self.reader.ended:
            return self.final_delta(FinishReason.STOP, parts)
        if self.token_count >= self.limit:
            return self.cut_short(parts)
        if self.constraint is not None:
            self.constraint.advance(token)
        if not parts and self.token_count > 1:
            return None
        return Delta(self.uid, tuple(parts), self.token_count, choice=self.choice)

    def cut_short(self, parts: Sequence[Part] = ()) -> Delta:
        """Returns the last delta of a row that has no room for another token. `parts` have not been
        sent yet."""
        rest = self.reader.end(is_cut=True)
        ended = self.reader.ended
        return self.final_delta(
            FinishReason.STOP if ended else FinishReason.LENGTH, (*parts, *rest)
        )

    def final_delta(
        self, finish: FinishReason, parts: Sequence[Part] = (), error: str | None = None
    ) -> Delta:
        """Returns the delta that ends the row. It is made only once."""
        self.ended = True
        reader = self.reader
        is_last = self.tally.end(
            self.token_count, reader.reasoning_tokens, reader.reasoning_overflow_tokens
        )
        usage = (
            self.tally.usage(len(self.prompt), self.accepted_s, time.monotonic())
            if is_last
            else None
        )
        return Delta(
            uid=self.uid,
            parts=tuple(parts),
            token_count=self.token_count,
            finish=finish,
            usage=usage,
            error=error or reader.parser.error,
            stop=reader.parser.stop,
            choice=self.choice,
            open_choices=self.tally.open_choices,
        )


def output_limit(request: GenerateRequest, longest: int) -> int:
    """Returns the most output tokens of a request if a row has at most `longest` tokens."""
    room = longest - len(request.tokens)
    return room if request.max_tokens is None else min(request.max_tokens, room)


def make_row(request: GenerateRequest, tokens: Tokens, limit: int, vocabulary: Vocabulary) -> Row:
    """Returns the row of a request's first choice, with the others waiting for it. `tokens` are the
    prompt. Raises `KeyError` for an unknown output format."""
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
    rows[0].waiting_choices = rows[1:]
    return rows[0]
