"""Changes of a row's logits: repetition, presence and frequency penalties, logit bias."""

from collections.abc import Sequence

import mlx.core as mx

from node.ipc.generate import SamplingParams


def needs_penalties(params: SamplingParams) -> bool:
    """True if the parameters change any logits."""
    return bool(
        params.repetition_penalty != 1.0
        or params.presence_penalty
        or params.frequency_penalty
        or params.logit_bias
    )


class Penalties:
    """The penalties of one row. Counts are kept and updated on the device, so that nothing waits
    for it. All ids must be inside the vocabulary, and `repetition_penalty` above 0.
    """

    def __init__(
        self, params: SamplingParams, prompt: Sequence[int], output: Sequence[int], vocab_size: int
    ) -> None:
        """`output` are the output tokens so far."""
        self._params = params
        self._counts = mx.zeros(vocab_size)
        if output:
            self._counts = self._counts.at[mx.array(list(output))].add(1.0)
        self._seen = mx.zeros(vocab_size).at[mx.array(list(prompt))].add(1.0) > 0
        self._bias = mx.zeros(vocab_size)
        if params.logit_bias:
            tokens, addends = zip(*params.logit_bias, strict=True)
            self._bias = self._bias.at[mx.array(tokens)].add(mx.array(addends))

    def count(self, token: mx.array) -> None:
        """Counts one more output token, of shape [] or [1]."""
        self._counts = self._counts.at[token].add(1.0)

    def apply(self, logits: mx.array) -> mx.array:
        """Returns logits [1, V] with the penalties applied, in their dtype."""
        params = self._params
        out = logits.astype(mx.float32)
        if params.repetition_penalty != 1.0:
            damped = mx.where(
                out > 0, out / params.repetition_penalty, out * params.repetition_penalty
            )
            out = mx.where(self._seen | (self._counts > 0), damped, out)
        if params.frequency_penalty:
            out = out - self._counts * params.frequency_penalty
        if params.presence_penalty:
            out = out - (self._counts > 0) * params.presence_penalty
        if params.logit_bias:
            out = out + self._bias
        return out.astype(logits.dtype)
