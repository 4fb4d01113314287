"""Log probabilities of a response's content, and the parts with which they are sent."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from node.ipc.messages import Alternative, Part, PartKind, TokenLogprob

Spell = Callable[[int], tuple[str, bytes]]
"""Returns text and bytes of one token."""


class TopLogprobs(NamedTuple):
    """The candidates for one drawn token. Log probabilities are natural logarithms."""

    own: float
    """Log probability of the drawn token."""
    tokens: list[int]
    """The most likely tokens, in descending order."""
    logprobs: list[float]
    """Log probabilities of `tokens`; -inf for those that filters had excluded."""


def token_logprob(spell: Spell, token: int, logprobs: TopLogprobs, count: int) -> TokenLogprob:
    """Returns the report of a token, with up to `count` of the most likely ones."""
    pairs = zip(logprobs.tokens[:count], logprobs.logprobs, strict=False)
    top = [_alternative(spell, *pair) for pair in pairs if pair[1] > -math.inf]
    return TokenLogprob(_alternative(spell, token, logprobs.own), tuple(top))


def _alternative(spell: Spell, token: int, logprob: float) -> Alternative:
    # Rounding may put the log probability of a certain token slightly above 0.
    return Alternative(*spell(token), min(logprob, 0.0))


class LogprobBuffer:
    """Buffers log probabilities of tokens until the parts of their text are complete."""

    def __init__(self) -> None:
        self._buffered: list[TokenLogprob] = []

    def add(self, logprob: TokenLogprob) -> None:
        """Buffers the report of a token outside reasoning."""
        self._buffered.append(logprob)

    def attach(self, parts: Sequence[Part]) -> list[Part]:
        """Returns the parts, with all buffered log probabilities attached to the first part of
        content. If there are parts but none of content, the tokens were markup and their log
        probabilities are dropped."""
        out = list(parts)
        if not out:
            return out
        logprobs, self._buffered = tuple(self._buffered), []
        for at, part in enumerate(out):
            if logprobs and part.kind is PartKind.CONTENT:
                out[at] = msgspec.structs.replace(part, logprobs=logprobs)
                break
        return out
