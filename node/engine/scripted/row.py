"""One choice of a request inside the scripted engine."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from node.engine.decoding.choices import Tally
from node.engine.sampling.logprobs import LogprobBuffer
from node.ipc.generate import GenerateRequest
from node.ipc.messages import Alternative, Delta, Part, Progress, TokenLogprob
from node.parsing.output_layout import layout_of
from node.parsing.output_parser import OutputParser
from node.protocol.messages import FinishReason

PIECE_LENGTH = 4
"""Characters per token of the script's outputs, and of the text that ends reasoning."""

_WORD_TEXT = (
    "a ant ash bay bee bow box cat cup day den dew dog ear egg elm fen fig fin fog fox gem gum hat "
    "hen ice inn ivy jam jar jug key kit lap log map mud net nut oak oar orb owl pea pen pie pin "
    "rain ray rye salt sea sky sun tea tin toe urn van wax web yak zoo"
)
_WORDS = _WORD_TEXT.split()


@dataclass(slots=True, eq=False)
class ScriptedRow:
    """One choice. Times are of the engine's clock, in seconds."""

    request: GenerateRequest
    limit_tokens: int
    """Length at which the row ends with `length`."""
    natural_tokens: int
    """Scripted length at which the row ends with `stop`."""
    arrived_s: float
    parser: OutputParser
    prompt_hash: int
    tally: Tally
    """Counts of all choices of the request."""
    choice: int = 0
    others: "list[ScriptedRow]" = field(default_factory=list)
    """Choices that wait for this one's prefill."""
    pieces: Sequence[str] = ()
    """Tokens of the output, repeated from the first after the last."""
    prefill_s: float = 0.0
    """Duration of its prefill."""
    reported_s: float = 0.0
    """Time of the last progress report."""
    due_s: float = 0.0
    token_count: int = 0
    script_tokens: int = 0
    """Scripted tokens generated so far."""
    reasoning_tokens: int = 0
    stalled: bool = False
    _forced: list[str] = field(default_factory=list)
    """Tokens to generate before the script continues."""
    _waiting: LogprobBuffer = field(default_factory=LogprobBuffer)

    @property
    def choices(self) -> "list[ScriptedRow]":
        """The row, and those that wait for its prefill."""
        return [self, *self.others]

    @property
    def is_complete(self) -> bool:
        return self.script_tokens >= self.natural_tokens and not self._forced

    def read(self) -> list[Part]:
        """Generates one token; returns the parts that it completes."""
        reasons = self.parser.in_reasoning
        if reasons and not self._forced and self._overflow_tokens >= 0:
            self.parser.end_block()
            self._forced = pieces_of(self._closing())
        text = self._forced.pop(0) if self._forced else self._next_text()
        if self.request.logprobs is not None and not reasons:
            self._waiting.add(_certain(text, self.request.logprobs))
        parts = self._waiting.attach(self.parser.feed(text))
        self.token_count += 1
        self.reasoning_tokens += reasons
        return parts

    @property
    def _overflow_tokens(self) -> int:
        """Tokens of reasoning beyond the thinking budget; negative while some of it is left."""
        budget = self.request.thinking_tokens
        return -1 if budget is None else self.reasoning_tokens - budget

    def _closing(self) -> str:
        """Returns the text that ends reasoning."""
        output = self.request.output
        return "" if output is None else layout_of(output).closing

    def _next_text(self) -> str:
        """Returns the script's next token: the next piece, or a word that depends on the prompt."""
        index = self.script_tokens
        self.script_tokens += 1
        if not self.pieces:
            word = _WORDS[zlib.crc32(index.to_bytes(8, "little"), self.prompt_hash) % len(_WORDS)]
            return word if index == 0 else f" {word}"
        turn, at = divmod(index, len(self.pieces))
        piece = self.pieces[at]
        return f" {piece}" if turn and at == 0 else piece

    def progress(self, now_s: float) -> Progress:
        """Returns the progress of the prefill, and records the time of the report."""
        self.reported_s = now_s
        total_tokens = len(self.request.tokens)
        began_s = self.tally.prefill_began_s
        spent_s = 0.0 if began_s is None else now_s - began_s
        share = min(spent_s / self.prefill_s, 1.0) if self.prefill_s else 1.0
        done_tokens = self.tally.cached_tokens + int(
            share * (total_tokens - self.tally.cached_tokens)
        )
        return Progress(self.request.uid, done_tokens, total_tokens)

    def delta(self, parts: Sequence[Part]) -> Delta:
        """Returns a delta that does not end the row."""
        return Delta(self.request.uid, tuple(parts), self.token_count, choice=self.choice)

    def last(
        self,
        now_s: float,
        finish: FinishReason,
        parts: Sequence[Part] = (),
        error: str | None = None,
    ) -> Delta:
        """Returns the delta that ends the row; called once."""
        if finish in (FinishReason.STOP, FinishReason.LENGTH):
            rest = self.parser.finish(is_cut=finish is FinishReason.LENGTH)
            parts = [*parts, *self._waiting.attach(rest)]
        is_last = self.tally.end(
            self.token_count, self.reasoning_tokens, max(0, self._overflow_tokens)
        )
        usage = (
            self.tally.usage(len(self.request.tokens), self.arrived_s, now_s) if is_last else None
        )
        return Delta(
            uid=self.request.uid,
            parts=tuple(parts),
            token_count=self.token_count,
            finish=finish,
            usage=usage,
            error=error or self.parser.error,
            stop=self.parser.stop,
            choice=self.choice,
            open_choices=self.tally.open_choices,
        )


def pieces_of(text: str) -> list[str]:
    """Splits the text into tokens."""
    return [text[at : at + PIECE_LENGTH] for at in range(0, len(text), PIECE_LENGTH)]


def _certain(text: str, count: int) -> TokenLogprob:
    """Returns the log probability of a token without alternatives."""
    token = Alternative(text, text.encode(), 0.0)
    return TokenLogprob(token, (token,) if count else ())
