"""Log probabilities of tokens, as OpenAI's dialects serialize them."""

import codecs
from collections.abc import Sequence

from node.ipc.messages import Alternative, TokenLogprob


def alternative(token: Alternative) -> dict[str, object]:
    """Returns a token with its log probability and its UTF-8 bytes."""
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.data)}


def token_logprobs(tokens: Sequence[TokenLogprob]) -> list[dict[str, object]]:
    """Returns the list that chat and responses use."""
    return [
        {**alternative(each.token), "top_logprobs": [alternative(other) for other in each.top]}
        for each in tokens
    ]


class TextOffsets:
    """The format of completions: parallel lists, with the offset of each token. One instance serves
    one choice."""

    def __init__(self) -> None:
        self._characters = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def lists(self, tokens: Sequence[TokenLogprob]) -> dict[str, object]:
        """Returns the lists for the tokens that follow. Offsets count characters of the response's
        tokens; a token that completes a character begins where that character begins."""
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
    """Maps texts to log probabilities, for the likeliest tokens and the sampled one; of tokens with
    the same text, the likeliest counts."""
    found: dict[str, float] = {}
    for each in (*token.top, token.token):
        found.setdefault(each.text, each.logprob)
    return found
