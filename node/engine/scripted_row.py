"""One request inside the scripted engine."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from node.generate import GenerateRequest
from node.parsing.machine import TextMachine
from node.protocol.messages import FinishReason
from node.types import Delta, Part, Progress, RowUsage

_WORD_TEXT = (
    "a ant ash bay bee bow box cat cup day den dew dog ear egg elm fen fig fin fog fox gem gum hat "
    "hen ice inn ivy jam jar jug key kit lap log map mud net nut oak oar orb owl pea pen pie pin "
    "rain ray rye salt sea sky sun tea tin toe urn van wax web yak zoo"
)
_WORDS = _WORD_TEXT.split()


@dataclass(slots=True, eq=False)
class ScriptedRow:
    """Times are of the engine's clock, in seconds."""

    request: GenerateRequest
    cached_tokens: int
    limit_tokens: int
    """Length at which the row ends with `length`."""
    natural_tokens: int
    """Length at which the row ends with `stop`."""
    arrived_s: float
    machine: TextMachine
    prompt_hash: int
    pieces: Sequence[str] = ()
    """Of the output, a token each; again from the first after the last."""
    started_s: float | None = None
    first_token_s: float | None = None
    prefill_s: float = 0.0
    """How long its prefill takes."""
    told_s: float = 0.0
    """When the progress of the prefill was last told."""
    due_s: float = 0.0
    token_count: int = 0
    reasoning_tokens: int = 0
    stalled: bool = False

    def read(self) -> list[Part]:
        """What one more token brings."""
        reasons = self.machine.in_reasoning
        parts = self.machine.feed(self._token_text())
        self.token_count += 1
        self.reasoning_tokens += reasons or self.machine.in_reasoning
        return parts

    def _token_text(self) -> str:
        """The next token's text: the next piece, or a word that depends on the prompt."""
        index = self.token_count
        if not self.pieces:
            word = _WORDS[zlib.crc32(index.to_bytes(8, "little"), self.prompt_hash) % len(_WORDS)]
            return word if index == 0 else f" {word}"
        turn, at = divmod(index, len(self.pieces))
        piece = self.pieces[at]
        return f" {piece}" if turn and at == 0 else piece

    def progress(self, now_s: float) -> Progress:
        """How far the prefill is; told now."""
        self.told_s = now_s
        total_tokens = len(self.request.tokens)
        spent_s = 0.0 if self.started_s is None else now_s - self.started_s
        share = min(spent_s / self.prefill_s, 1.0) if self.prefill_s else 1.0
        done_tokens = self.cached_tokens + int(share * (total_tokens - self.cached_tokens))
        return Progress(self.request.uid, done_tokens, total_tokens)

    def delta(self, parts: Sequence[Part]) -> Delta:
        """A delta that does not end the row."""
        return Delta(self.request.uid, tuple(parts), self.token_count)

    def last(
        self,
        now_s: float,
        finish: FinishReason,
        parts: Sequence[Part] = (),
        error: str | None = None,
    ) -> Delta:
        """The delta that ends the row."""
        if finish in (FinishReason.STOP, FinishReason.LENGTH):
            parts = [*parts, *self.machine.finish()]
        started_s = now_s if self.started_s is None else self.started_s
        first_token_s = now_s if self.first_token_s is None else self.first_token_s
        usage = RowUsage(
            prompt_tokens=len(self.request.tokens),
            cached_tokens=self.cached_tokens,
            completion_tokens=self.token_count,
            queue_s=started_s - self.arrived_s,
            prefill_s=first_token_s - started_s,
            decode_s=now_s - first_token_s,
            reasoning_tokens=self.reasoning_tokens,
        )
        stop = self.machine.stop
        uid, count = self.request.uid, self.token_count
        return Delta(uid, tuple(parts), count, finish, usage, error, stop)
