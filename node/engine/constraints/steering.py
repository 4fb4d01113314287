"""What a row's next token is held to: the end of its reasoning, and the grammar of its answer.

While a row reasons, only its budget of tokens counts: once that is used up, the tokens of the
format's end of reasoning are the only ones that may come, one after another. Its answer has a
grammar from its first token on, which is known to the token: what a grammar begins behind is a
boundary between tokens.
"""

from dataclasses import dataclass
from typing import Protocol

from node.engine.constraints.compile import HeldAnswer
from node.engine.constraints.grammar import Grammar, GrammarFailed, Matcher
from node.engine.model.detokenizer import Vocabulary
from node.engine.sampling.token_mask import Mask, all_but, only
from node.ipc.generate import GenerateRequest
from node.parsing.output_layout import layout_of, reads_calls

_LONGEST_TEAR = 3
"""Tokens of one byte each that may complete a character."""
NOT_ENDED = "The reasoning could not be ended where its budget of tokens was used up."


class Steer(Protocol):
    """Of one row."""

    error: str | None
    """Why the row cannot go on, a sentence."""
    is_refused: bool
    """Whether it is the request's own, whose grammar became too complex to follow."""

    @property
    def is_forced(self) -> bool:
        """Whether the token that comes next is no choice of the model's: it ends no row."""

    def take(self, token: int) -> None:
        """The row's reader has read the token."""

    def next(self) -> Mask | None:
        """Which tokens may come next, of a row that has taken all its tokens; None: any."""


class Steered(Protocol):
    """A row, as far as it is steered."""

    @property
    def steer(self) -> Steer | None: ...


class Read(Protocol):
    """What a row has said, as far as it steers it."""

    reasoning_tokens: int

    @property
    def in_reasoning(self) -> bool: ...

    @property
    def is_torn(self) -> bool: ...

    @property
    def block_begin(self) -> int | None:
        """Where what has come of a call begins that is being read, in characters of the output;
        None where there is no call."""

    @property
    def block_text(self) -> str:
        """What has come of it; to be asked once for each, since it is put together."""

    def end_block(self) -> None:
        """What comes from here on is no part of a call that is being read."""


@dataclass(frozen=True, slots=True)
class Steering:
    """What all choices of a request are held to."""

    vocab_size: int
    budget: int | None
    """Tokens of reasoning."""
    closing: tuple[int, ...]
    """What ends it."""
    openings: tuple[tuple[int, ...], ...]
    """One of which follows what was forced, if there is no grammar."""
    answer: HeldAnswer | None
    while_reasoning: Mask | None
    """Of a row whose answer has a grammar."""
    vocabulary: Vocabulary

    def open(self, reader: Read) -> "RowSteer":
        """Of a row that has said nothing."""
        return RowSteer(self, reader)


def steering_of(
    request: GenerateRequest,
    vocabulary: Vocabulary,
    vocab_size: int,
    end_tokens: frozenset[int],
    answer: HeldAnswer | None = None,
) -> Steering | None:
    """What the request is held to, `answer` included; None: nothing."""
    output, budget = request.output, request.thinking_tokens
    closing: tuple[int, ...] = ()
    openings: tuple[tuple[int, ...], ...] = ()
    if output is not None and budget is not None:
        spelling, names = layout_of(output), [tool.name for tool in output.tools]
        closing = vocabulary.encode(spelling.closing)
        begins = spelling.answer_openings(reads_calls=reads_calls(output), names=names)
        openings = tuple(vocabulary.encode(begin) for begin in begins)
    if answer is not None and answer.is_free:
        answer = None
    if answer is None and not closing:
        return None
    while_reasoning = None
    if answer is not None and answer.behind_reasoning is not None:
        # Who ends within the reasoning has given no answer.
        while_reasoning = all_but(end_tokens | answer.straddling, vocab_size)
    return Steering(
        vocab_size,
        budget if closing else None,
        closing,
        openings,
        answer,
        while_reasoning,
        vocabulary,
    )


class RowSteer:
    """The `Steer` of one row."""

    def __init__(self, steering: Steering, reader: Read) -> None:
        self.error: str | None = None
        self.is_refused = False
        self._steering = steering
        self._reader = reader
        self._matcher: Matcher | None = None
        self._routes: tuple[tuple[int, ...], ...] = ()
        """Runs of tokens, one of which comes next."""
        self._is_closing = False
        """Whether they end the reasoning."""
        self._is_block = False
        """Whether the output is in a block of calls that may be held."""
        self._known_block: int | None = None
        """Where the block begins that was looked at."""
        self._is_answer = False
        """Whether the grammar is that of what comes behind reasoning."""
        self._reasons = reader.in_reasoning
        if self._reasons:
            self._go_on_reasoning()
        elif steering.answer is not None and steering.answer.at_begin is not None:
            self._matcher = steering.answer.at_begin.open()

    @property
    def is_forced(self) -> bool:
        return bool(self._routes)

    def next(self) -> Mask | None:
        if self._routes:
            return only({route[0] for route in self._routes}, self._steering.vocab_size)
        if self._matcher is not None:
            try:
                return self._matcher.mask()
            except GrammarFailed as error:
                self._on_failed(error)
        return self._steering.while_reasoning if self._reasons else None

    def take(self, token: int) -> None:
        if self._routes:
            self._take_routed(token)
            return
        if self._matcher is not None:
            try:
                self._matcher.take(token)
            except GrammarFailed as error:
                self._on_failed(error)
        if self._is_answer:
            return
        answer = self._steering.answer
        if self._reader.in_reasoning:
            self._reasons, self._matcher = True, None
            self._go_on_reasoning()
        elif self._reasons:
            self._begin_answer()
        elif answer is not None and answer.calls is not None:
            self._follow_block(answer, answer.calls)

    def _on_failed(self, error: GrammarFailed) -> None:
        """The grammar is too complex to follow any further."""
        answer = self._steering.answer
        if self._is_block and answer is not None and answer.is_wish:
            self._matcher = None
        else:
            self.error, self.is_refused = str(error), True

    def _take_routed(self, token: int) -> None:
        rests = [route[1:] for route in self._routes if route[0] == token]
        self._routes = () if () in rests else tuple(rests)
        if not self._routes and self._is_closing:
            self._close()

    def _follow_block(self, answer: HeldAnswer, calls: Grammar) -> None:
        """Holds a block of calls from its opener to its end, and nothing around it."""
        begin = self._reader.block_begin
        if self._is_block:
            if begin is None and (self._matcher is None or self._matcher.is_accepting):
                self._matcher, self._is_block = None, False
        elif begin is not None and begin != self._known_block:
            block = self._reader.block_text
            if block.startswith(answer.openers):
                self._is_block, matcher = True, calls.open()
                if matcher.take_all(self._steering.vocabulary.encode(block)):
                    self._matcher = matcher
        self._known_block = begin

    def _go_on_reasoning(self) -> None:
        """Ends the reasoning where the budget is used up, unless a character is torn."""
        budget = self._steering.budget
        if budget is None:
            return
        over = self._reader.reasoning_tokens - budget
        if over >= 0 and (not self._reader.is_torn or over >= _LONGEST_TEAR):
            self._reader.end_block()
            self._routes, self._is_closing = (self._steering.closing,), True

    def _close(self) -> None:
        """All of the forced end has come."""
        self._is_closing = False
        if self._reader.in_reasoning:
            self.error = NOT_ENDED
            return
        self._begin_answer()
        if self._matcher is None:
            self._routes = self._steering.openings

    def _begin_answer(self) -> None:
        self._reasons = False
        answer = self._steering.answer
        if answer is not None and answer.behind_reasoning is not None:
            self._matcher, self._is_answer = answer.behind_reasoning.open(), True
