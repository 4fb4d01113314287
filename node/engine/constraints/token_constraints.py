"""Constrains a row's next token: to the end of its reasoning, and to the grammar of its answer.

While a row reasons, only its thinking budget counts: once that is used up, only the tokens of the
format's end of reasoning are allowed, one after another. The grammar of the answer applies from the
first token after the reasoning, so it always begins at a boundary between tokens.
"""

from dataclasses import dataclass
from typing import Protocol

from node.engine.constraints.compile import AnswerGrammars
from node.engine.constraints.grammar import Grammar, GrammarFailed, Matcher
from node.engine.model.detokenizer import Vocabulary
from node.engine.sampling.token_mask import Mask, all_but, only
from node.ipc.generate import GenerateRequest
from node.parsing.output_layout import layout_of, reads_calls
from node.parsing.output_parser import OutputParser

_MAX_PARTIAL_TOKENS = 3
"""Most tokens, of one byte each, that may still be needed to complete a character."""
NOT_ENDED = "The reasoning could not be ended where its budget of tokens was used up."


class TokenConstraint(Protocol):
    """The constraint of one row."""

    error: str | None
    """A sentence that says why the row cannot go on; None while it can."""
    is_refused: bool
    """True if the error is the request's fault: its grammar became too complex to follow."""

    @property
    def is_forced(self) -> bool:
        """True if the next token is forced; such a token never ends the row."""

    def advance(self, token: int) -> None:
        """Advances by a token that the row's reader has read."""

    def next(self) -> Mask | None:
        """Returns the tokens that may come next; None if all may. `advance` must have been called
        for all tokens so far."""


class ConstrainedRow(Protocol):
    """A row, as far as constraints need it."""

    @property
    def constraint(self) -> TokenConstraint | None: ...


class OutputState(Protocol):
    """The output of a row, as far as constraints need it."""

    parser: OutputParser
    reasoning_tokens: int

    @property
    def has_partial_utf8(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class RequestConstraint:
    """The constraints that all choices of a request share."""

    vocab_size: int
    budget: int | None
    """Most tokens of reasoning; None if unlimited."""
    closing: tuple[int, ...]
    """Tokens that end the reasoning."""
    openings: tuple[tuple[int, ...], ...]
    """Token sequences of which one follows a forced end of reasoning, if there is no grammar."""
    answer: AnswerGrammars | None
    while_reasoning: Mask | None
    """Tokens allowed during reasoning if the answer after it has a grammar."""
    vocabulary: Vocabulary

    def open(self, reader: OutputState) -> "RowConstraint":
        """Returns the constraint of a row that has no output yet."""
        return RowConstraint(self, reader)


def request_constraint(
    request: GenerateRequest,
    vocabulary: Vocabulary,
    vocab_size: int,
    end_tokens: frozenset[int],
    answer: AnswerGrammars | None = None,
) -> RequestConstraint | None:
    """Returns the constraints of the request, with the grammars of `answer`; None if there are
    none."""
    output, budget = request.output, request.thinking_tokens
    closing: tuple[int, ...] = ()
    openings: tuple[tuple[int, ...], ...] = ()
    if output is not None and budget is not None:
        spelling, names = layout_of(output), [tool.name for tool in output.tools]
        closing = vocabulary.encode(spelling.closing)
        begins = spelling.answer_openings(reads_calls=reads_calls(output), names=names)
        openings = tuple(vocabulary.encode(begin) for begin in begins)
    if answer is not None and answer.is_empty:
        answer = None
    if answer is None and not closing:
        return None
    while_reasoning = None
    if answer is not None and answer.behind_reasoning is not None:
        # A row that ended within its reasoning would give no answer.
        while_reasoning = all_but(end_tokens | answer.straddling, vocab_size)
    return RequestConstraint(
        vocab_size,
        budget if closing else None,
        closing,
        openings,
        answer,
        while_reasoning,
        vocabulary,
    )


class RowConstraint:
    """Implements `TokenConstraint` for one row."""

    def __init__(self, shared: RequestConstraint, reader: OutputState) -> None:
        self.error: str | None = None
        self.is_refused = False
        self._shared = shared
        self._reader = reader
        self._parser = reader.parser
        self._matcher: Matcher | None = None
        self._forced: tuple[tuple[int, ...], ...] = ()
        """Forced token sequences, of which the row has to follow one."""
        self._is_closing = False
        """True while the forced sequence ends the reasoning."""
        self._is_block = False
        """True while the output is in a block of calls that has a grammar."""
        self._known_block: int | None = None
        """Begin of the block that was last checked."""
        self._is_answer = False
        """True once the matcher follows the grammar of the output after reasoning."""
        self._reasons = reader.parser.in_reasoning
        if self._reasons:
            self._go_on_reasoning()
        elif shared.answer is not None and shared.answer.at_begin is not None:
            self._matcher = shared.answer.at_begin.open()

    @property
    def is_forced(self) -> bool:
        return bool(self._forced)

    def next(self) -> Mask | None:
        if self._forced:
            return only({route[0] for route in self._forced}, self._shared.vocab_size)
        if self._matcher is not None:
            try:
                return self._matcher.mask()
            except GrammarFailed as error:
                self._on_failed(error)
        return self._shared.while_reasoning if self._reasons else None

    def advance(self, token: int) -> None:
        if self._forced:
            self._advance_forced(token)
            return
        if self._matcher is not None:
            try:
                self._matcher.consume(token)
            except GrammarFailed as error:
                self._on_failed(error)
        if self._is_answer:
            return
        answer = self._shared.answer
        if self._parser.in_reasoning:
            self._reasons, self._matcher = True, None
            self._go_on_reasoning()
        elif self._reasons:
            self._begin_answer()
        elif answer is not None and answer.calls is not None:
            self._follow_block(answer, answer.calls)

    def _on_failed(self, error: GrammarFailed) -> None:
        """Handles a grammar that became too complex to follow: drops it, or ends the row."""
        answer = self._shared.answer
        if self._is_block and answer is not None and answer.is_best_effort:
            self._matcher = None
        else:
            self.error, self.is_refused = str(error), True

    def _advance_forced(self, token: int) -> None:
        rests = [route[1:] for route in self._forced if route[0] == token]
        self._forced = () if () in rests else tuple(rests)
        if not self._forced and self._is_closing:
            self._close()

    def _follow_block(self, answer: AnswerGrammars, calls: Grammar) -> None:
        """Constrains a block of calls from its opener to its end, and nothing around it."""
        begin = self._parser.block_begin
        if self._is_block:
            if begin is None and (self._matcher is None or self._matcher.is_accepting):
                self._matcher, self._is_block = None, False
        elif begin is not None and begin != self._known_block:
            block = self._parser.block_text
            if block.startswith(answer.openers):
                self._is_block, matcher = True, calls.open()
                if matcher.consume_all(self._shared.vocabulary.encode(block)):
                    self._matcher = matcher
        self._known_block = begin

    def _go_on_reasoning(self) -> None:
        """Forces the end of reasoning once the budget is used up, after a character that is still
        incomplete."""
        budget = self._shared.budget
        if budget is None:
            return
        over = self._reader.reasoning_tokens - budget
        if over >= 0 and (not self._reader.has_partial_utf8 or over >= _MAX_PARTIAL_TOKENS):
            self._parser.end_block()
            self._forced, self._is_closing = (self._shared.closing,), True

    def _close(self) -> None:
        """Begins the answer after the forced end of reasoning is complete."""
        self._is_closing = False
        if self._parser.in_reasoning:
            self.error = NOT_ENDED
            return
        self._begin_answer()
        if self._matcher is None:
            self._forced = self._shared.openings

    def _begin_answer(self) -> None:
        self._reasons = False
        answer = self._shared.answer
        if answer is not None and answer.behind_reasoning is not None:
            self._matcher, self._is_answer = answer.behind_reasoning.open(), True
