"""How OpenAI's dialects tell the probabilities of an answer's tokens."""

import codecs
from collections.abc import Sequence

from node.ipc.messages import Alternative, TokenLogprob


def alternative(token: Alternative) -> dict[str, object]:
    """A token with its logarithm and its bytes."""
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.data)}


def token_logprobs(tokens: Sequence[TokenLogprob]) -> list[dict[str, object]]:
    """As chat and responses list them."""
    return [
        {**alternative(each.token), "top_logprobs": [alternative(other) for other in each.top]}
        for each in tokens
    ]


class TextOffsets:
    """The older form, of one answer: lists side by side, with where each token begins."""

    def __init__(self) -> None:
        self._characters = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def lists(self, tokens: Sequence[TokenLogprob]) -> dict[str, object]:
        """The tokens that come next. An offset counts characters of the answer's tokens; one that
        completes a character begins where that does."""
        offsets = []
        for each in tokens:
            offsets.append(self._characters)
            self._characters += len(self._decoder.decode(each.token.data))
        return {
            "tokens": [each.token.text for each in tokens],
            "token_logprobs": [each.token.logprob for each in tokens],
            "top_logprobs": [_by_text(each) for each in tokens],
            "text_offset": offsets,
        }


def _by_text(token: TokenLogprob) -> dict[str, float]:
    """The likeliest and the token itself; of tokens with one text, the likeliest."""
    found: dict[str, float] = {}
    for each in (*token.top, token.token):
        found.setdefault(each.text, each.logprob)
    return found
