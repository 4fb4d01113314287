"""Log probabilities of an answer's content: what is told of each token, and with which part."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from node.ipc.messages import Alternative, Part, PartKind, TokenLogprob

Spell = Callable[[int], tuple[str, bytes]]
"""Text and bytes of one token."""


class Likely(NamedTuple):
    """What could have been drawn where a token was, in natural logarithms of probabilities."""

    own: float
    """Of the token itself."""
    tokens: list[int]
    """The likeliest, the most likely first."""
    logprobs: list[float]
    """Of `tokens`; -inf for those that could not be drawn."""


def spelled(spell: Spell, token: int, likely: Likely, count: int) -> TokenLogprob:
    """What is told of a token, with up to `count` of the likeliest."""
    pairs = zip(likely.tokens[:count], likely.logprobs, strict=False)
    top = [_alternative(spell, *pair) for pair in pairs if pair[1] > -math.inf]
    return TokenLogprob(_alternative(spell, token, likely.own), tuple(top))


def _alternative(spell: Spell, token: int, logprob: float) -> Alternative:
    # Rounding may leave a certain token a little above 0.
    return Alternative(*spell(token), min(logprob, 0.0))


class Waiting:
    """What is to be told of tokens whose parts are still to come."""

    def __init__(self) -> None:
        self._told: list[TokenLogprob] = []

    def add(self, told: TokenLogprob) -> None:
        """Takes in a token that was read while the text was no reasoning."""
        self._told.append(told)

    def attach(self, parts: Sequence[Part]) -> list[Part]:
        """The parts that came of the tokens so far: the first of content says what is told of
        them. Where there is none among them, the tokens were markup, and nothing is told."""
        out = list(parts)
        if not out:
            return out
        told, self._told = tuple(self._told), []
        for at, part in enumerate(out):
            if told and part.kind is PartKind.CONTENT:
                out[at] = msgspec.structs.replace(part, logprobs=told)
                break
        return out
