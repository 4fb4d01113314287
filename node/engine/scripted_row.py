"""One request inside the scripted engine."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from node.parsing.stops import StopMatcher
from node.protocol.messages import FinishReason
from node.types import Delta, GenerateRequest, Part, PartKind, Progress, RowUsage

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
    matcher: StopMatcher
    prompt_hash: int
    started_s: float | None = None
    first_token_s: float | None = None
    prefill_s: float = 0.0
    """How long its prefill takes."""
    told_s: float = 0.0
    """When the progress of the prefill was last told."""
    due_s: float = 0.0
    token_count: int = 0
    stalled: bool = False

    def token_text(self, words: Sequence[str]) -> str:
        """The next token's text: of `words` in turn, or one that depends on the prompt."""
        index = self.token_count
        if words:
            word = words[index % len(words)]
        else:
            word = _WORDS[zlib.crc32(index.to_bytes(8, "little"), self.prompt_hash) % len(_WORDS)]
        return word if index == 0 else f" {word}"

    def progress(self, now_s: float) -> Progress:
        """How far the prefill is; told now."""
        self.told_s = now_s
        total_tokens = len(self.request.tokens)
        spent_s = 0.0 if self.started_s is None else now_s - self.started_s
        share = min(spent_s / self.prefill_s, 1.0) if self.prefill_s else 1.0
        done_tokens = self.cached_tokens + int(share * (total_tokens - self.cached_tokens))
        return Progress(self.request.uid, done_tokens, total_tokens)

    def delta(self, text: str) -> Delta:
        """A delta that does not end the row."""
        return Delta(self.request.uid, _parts(text), self.token_count)

    def last(
        self,
        now_s: float,
        finish: FinishReason,
        *,
        text: str = "",
        hit: bool = False,
        error: str | None = None,
    ) -> Delta:
        """The delta that ends the row; `hit` where a stop string did."""
        if finish in (FinishReason.STOP, FinishReason.LENGTH) and not hit:
            text += self.matcher.flush()
        started_s = now_s if self.started_s is None else self.started_s
        first_token_s = now_s if self.first_token_s is None else self.first_token_s
        usage = RowUsage(
            prompt_tokens=len(self.request.tokens),
            cached_tokens=self.cached_tokens,
            completion_tokens=self.token_count,
            queue_s=started_s - self.arrived_s,
            prefill_s=first_token_s - started_s,
            decode_s=now_s - first_token_s,
        )
        return Delta(self.request.uid, _parts(text), self.token_count, finish, usage, error)


def _parts(text: str) -> tuple[Part, ...]:
    return (Part(PartKind.CONTENT, text),) if text else ()
