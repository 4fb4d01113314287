"""The logits processor of one row: repetition, presence and frequency penalties, logit bias."""

from collections.abc import Sequence

import mlx.core as mx

from node.types import SamplingParams


def needs_penalties(params: SamplingParams) -> bool:
    """Whether the row has to pay for a processor at all."""
    return bool(
        params.repetition_penalty != 1.0
        or params.presence_penalty
        or params.frequency_penalty
        or params.logit_bias
    )


class Penalties:
    """`processor(tokens[n] int32, logits[1, V]) -> logits[1, V]`, called once a step.

    `tokens` is prompt and output so far. Counts live on the device and take in the newest token
    there, so nothing waits. An exception here would break the step of every row: all ids must be
    inside the vocabulary, and `repetition_penalty` above 0.
    """

    def __init__(self, params: SamplingParams, prompt: Sequence[int], vocab_size: int) -> None:
        self._params = params
        self._prompt_tokens = len(prompt)
        self._counts = mx.zeros(vocab_size)
        self._seen = mx.zeros(vocab_size).at[mx.array(list(prompt))].add(1.0) > 0
        self._bias = mx.zeros(vocab_size)
        if params.logit_bias:
            tokens, addends = zip(*params.logit_bias, strict=True)
            self._bias = self._bias.at[mx.array(tokens)].add(mx.array(addends))

    def __call__(self, tokens: mx.array, logits: mx.array) -> mx.array:
        params = self._params
        if tokens.shape[0] > self._prompt_tokens:
            self._counts = self._counts.at[tokens[-1]].add(1.0)
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
